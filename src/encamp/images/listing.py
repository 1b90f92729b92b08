"""What there is to say about the images of a host or of a repository, one line for each name."""

from __future__ import annotations

import enum

import msgspec

from encamp.images import store
from encamp.images.needs import last_used, users, with_parents
from encamp.images.records import SIGNATURE, read_origin
from encamp.images.reference import name_of, version_of
from encamp.images.repository import Repository
from encamp.model.image import Image


class Form(enum.Enum):
    """What an image is to the machine that reads it."""

    ROOT = "root"
    """A root file system with its kernel."""
    LAYER = "layer"
    """What is added to another image."""
    DISK = "disk"
    """A whole disk."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str | None
    digest: str
    parent: str | None
    form: Form | None
    kernel_release: str
    size: int
    """Of its own files."""
    created: float
    recipe: str
    used: float | None = None
    machines: tuple[str, ...] = ()
    """Those that need it, to go on or to wake up."""
    origin: str | None = None
    """The repository it came from."""
    signed: bool = False
    directory: str | None = None


def form_of(image: Image) -> Form:
    if image.disk is not None:
        return Form.DISK
    return Form.ROOT if image.parent is None else Form.LAYER


def list_images(images: store.ImageStore) -> list[Listed]:
    found = images.ls()
    above = {image.digest: image.parent.digest for image in found if image.parent}
    needing: dict[str, list[str]] = {}
    for home in images.homes:
        for digest, machines in users(home).items():
            for needed in with_parents({digest}, above):
                needing.setdefault(needed, []).extend(machines)
    return [list_image(images, image, needing.get(image.digest, [])) for image in found]


def list_image(images: store.ImageStore, image: Image, machines: list[str]) -> Listed:
    origin = read_origin(image.directory)
    return Listed(
        name=name_of(image.name),
        version=version_of(image.name),
        digest=image.digest,
        parent=image.parent.digest if image.parent else None,
        form=form_of(image),
        kernel_release=image.bootable.kernel_release,
        size=image.size,
        created=image.created,
        recipe=image.recipe,
        used=last_used(images.home, images.stamp_path(image).stem) or None,
        machines=tuple(sorted(set(machines))),
        origin=origin.repository if origin else None,
        signed=(image.directory / SIGNATURE).exists(),
        directory=str(image.directory),
    )


def list_repository(repository: Repository) -> list[Listed]:
    """As its index says; images that are only layers under others come without a name."""
    index = repository.index()
    return [
        Listed(
            name=name_of(tag),
            version=version_of(tag),
            digest=digest,
            parent=entry.parent,
            form=Form.LAYER if entry.parent else None,
            kernel_release=entry.kernel_release,
            size=entry.size,
            created=entry.created,
            recipe=entry.recipe,
            origin=repository.where,
        )
        for digest, entry in index.images.items()
        for tag in index.tags(digest) or [""]
    ]
