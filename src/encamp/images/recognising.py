"""Images that were built before, recognised by what their records say they were made by."""

from __future__ import annotations

from encamp.images import records, store
from encamp.images.placing import name_image
from encamp.model.errors import EncampError
from encamp.model.image import Image
from encamp.model.recipe import Recipe

REGISTRY = "docker://"
"""A source that is the same from every host."""


def is_local(recipe: Recipe) -> bool:
    """Whether it takes files of the host, or what it is a layer over does: the recipe names them,
    and on another host something else may lie there."""
    source = recipe.source
    if any(file.source is not None for file in recipe.files):
        return True
    if source is not None and not source.startswith(REGISTRY):
        return True
    return isinstance(recipe.parent, Recipe) and is_local(recipe.parent)


def found_again(images: store.ImageStore, recipe: Recipe) -> Image | None:
    """The image of this recipe that lost its name to another one, by its name again."""
    image = made_before(images, recipe.digest(), only_here=is_local(recipe))
    if image is None:
        return None
    link = records.Link(image.digest, recipe.digest())
    name_image(images.home, link, recipe.name, recipe.version)
    return images.made_by(recipe)


def made_before(images: store.ImageStore, key: str, *, only_here: bool = False) -> Image | None:
    """The newest sound image of those whose record names what it was made by, and that did not
    come from another host if `only_here` counts."""
    found = [
        record
        for home in images.homes
        for directory in records.directories(home)
        if (record := records.read_record(directory)) is not None
        and record.recipe == key
        and images.relies_on(directory)
        and not (only_here and records.read_origin(directory) is not None)
    ]
    for record in sorted(found, key=lambda record: record.created, reverse=True):
        image = images.by_digest(record.digest)
        if image is not None and is_whole(images, image):
            return image
    return None


def is_whole(images: store.ImageStore, image: Image) -> bool:
    try:
        images.check(image)
    except EncampError:
        return False
    return True
