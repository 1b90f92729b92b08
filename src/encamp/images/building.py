"""Building an image exactly once, and leaving nothing behind when that fails.

An image is a layer over its parent: what a recipe adds lies apart from what it is added to, so
that all recipes with the same foundation share it, on disk and in memory.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from encamp.images import (
    added_files,
    build_disk,
    build_oci,
    build_rootfs,
    oci_layout,
    records,
    store,
    tree,
)
from encamp.images.adding import Adding, codename
from encamp.images.build_log import keeping_log
from encamp.images.content import describe, image_digest
from encamp.images.failures import explained
from encamp.images.foundation import Foundation, Site, lay
from encamp.images.holding import vanished
from encamp.images.packages import Shelf
from encamp.images.placing import Readers, check_version, name_image, place, readers_of
from encamp.images.portion import Aging, Forward, Portion
from encamp.images.recognising import found_again, made_before
from encamp.images.squash import squash, unsquash
from encamp.images.steps import Steps, Tree, key_of
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.image import Defaults, Image
from encamp.model.recipe import Kind, Recipe
from encamp.progress import Progress, Silent
from encamp.workplace import Workplace, clear_cache, workplace


def build_once(
    images: store.ImageStore,
    recipe: Recipe,
    progress: Progress,
    *,
    explicit: bool = False,
    force: bool = False,
) -> Image:
    """The image of a recipe, built unless it is there.

    Asked for explicitly, it is built again if what it was made of on this host has changed.
    `force` lets it take the name of its version from another image.
    """
    refuse_circle(recipe)
    home = images.home.prepare()
    image = images.made_by(recipe)
    if image is not None and not explicit:
        return image
    waiting = f"waiting: another encamp is building '{recipe.name}'"
    with contextlib.ExitStack() as held:
        progress = held.enter_context(Aging(progress))
        portion = Portion(Forward(progress))
        # Before the name is locked: what others wait for, we do not hold while we wait.
        with explained(home, recipe):
            part = portion.part(0, 0.5)
            parent = find_parent(images, recipe, part, explicit=explicit, force=force)
            if parent is not None:
                held.enter_context(images.using(parent))
        held.enter_context(locked(home, f"image-{recipe.name}", waiting, progress))
        # Somebody else may have built it while we waited.
        image = images.made_by(recipe)
        if image is None and not force:
            check_version(home, recipe)
        if not explicit:
            image = image or found_again(images, recipe)
            if image is not None:
                return image
        clear_cache(home)
        with explained(home, recipe):
            inputs = inputs_of(recipe, parent)
            if image is not None and is_made_of(images, recipe, inputs):
                return image
            part = portion.part(0.5 if parent else 0, 1)
            return build(images, recipe, parent, inputs, part, force=force)


def refuse_circle(recipe: Recipe) -> None:
    """Two images cannot have one name, least of all one that is made of the other."""
    above = recipe.parent
    while above is not None:
        name = above.name if isinstance(above, Recipe) else above
        if name == recipe.name:
            raise EncampError(
                Code.CONFIGURATION,
                f"The recipe of '{recipe.name}' is to be added to an image of the same name.",
                "Give it another name.",
            )
        above = above.parent if isinstance(above, Recipe) else None


def is_made_of(images: store.ImageStore, recipe: Recipe, inputs: str) -> bool:
    found = (records.read_link(home, recipe.name) for home in images.homes)
    link = next((link for link in found if link is not None), None)
    return link is not None and link.inputs == inputs


def inputs_of(recipe: Recipe, parent: Image | None) -> str:
    """Names what a recipe takes from this host, as it is now; what is elsewhere may have changed
    at any time."""
    words = [parent.digest if parent else "", added_files.digest(recipe.files)]
    source = recipe.source or ""
    if source.startswith(build_oci.REGISTRY):
        words.append(f"{time.time()}")
    elif source:
        try:
            words.append(build_rootfs.source_digest(Path(source)))
        except EncampError as error:
            if recipe.kind is Kind.OCI and error.code is Code.INPUT_MISSING:
                raise EncampError(error.code, error.sentence, oci_layout.EXPECTED) from error
            raise
    return key_of("inputs", *words)


def find_parent(
    images: store.ImageStore, recipe: Recipe, progress: Portion, *, explicit: bool, force: bool
) -> Image | None:
    """What a layer is put over: built first if it is another recipe's."""
    if recipe.kind is not Kind.LAYER:
        return None
    if isinstance(recipe.parent, str):
        return images.fetch(recipe.parent, progress)
    if recipe.parent is None:
        raise EncampError(
            Code.CONFIGURATION, f"The recipe of '{recipe.name}' names nothing to add to."
        )
    if explicit:
        return build_once(images, recipe.parent, progress, explicit=True, force=force)
    return images.ensure(recipe.parent, progress)


def build(
    images: store.ImageStore,
    recipe: Recipe,
    parent: Image | None,
    inputs: str,
    progress: Portion,
    *,
    force: bool = False,
) -> Image:
    if parent is not None and parent.disk is not None:
        raise EncampError(
            Code.CONFIGURATION,
            f"Image '{recipe.name}' cannot be a layer over '{parent.name}': that is a whole disk.",
            "Hand files and commands to each machine with the environment's 'context'.",
        )
    with (
        workplace(images.home, f"build-{recipe.name}") as work,
        keeping_log(images.home, recipe.name, work),
    ):
        if recipe.kind is Kind.DISK:
            image = disk_image(images, recipe, work, progress.part(0, 0.98))
        else:
            site = Site(images.home, recipe, work, Steps(images.home, work))
            image = Building(images, site).build(parent, progress)
        progress.update("writing the image", 0.98)
        link = records.Link(image.digest, recipe.digest(), inputs=inputs)
        force = force or images.made_by(recipe) is None
        name_image(images.home, link, recipe.name, recipe.version, force=force)
        found = images.made_by(recipe)
        if found is None:
            raise vanished(image)
    progress.update(f"image '{recipe.name}' ready", 1.0)
    return found


class Building:
    """Builds root trees into images, one part over the other."""

    def __init__(self, images: store.ImageStore, site: Site) -> None:
        self.images = images
        self.site = site
        self.recipe = site.recipe

    def build(self, parent: Image | None, progress: Portion) -> Image:
        site = self.site
        with contextlib.ExitStack() as held:
            try:
                begin, made, parent = self.trees(parent, held, progress)
            except EncampError:
                site.put_back()
                raise
            site.put_back()
            if made.digest == begin.digest:
                return parent
            image = self.layer_image(parent, begin, made, progress.part(0.9, 0.98))
        site.steps.also(tree_key(image), made)
        return image

    def trees(
        self, parent: Image | None, held: contextlib.ExitStack, progress: Portion
    ) -> tuple[Tree, Tree, Image]:
        """The tree to begin with, the tree that is wanted, and the image of the first, which
        nobody removes meanwhile though it may not have a name."""
        before = 0.7 if self.recipe.kind is Kind.MINI else 0.6
        if parent is None:
            foundation = lay(self.site, progress.part(0, before))
            begin = foundation.tree
            parent = self.foundation_image(foundation, progress.part(before, before + 0.1))
            held.enter_context(self.images.using(parent))
        else:
            begin = self.tree_of(parent)
        adding = Adding(self.recipe, self.site.work, self.site.steps, self.shelf)
        return begin, adding.to(begin, progress.part(before + 0.1, 0.9)), parent

    def shelf(self, begin: Tree) -> Shelf:
        """Packages that fit a tree."""
        suite = self.recipe.suite
        if self.recipe.kind is not Kind.DEBIAN:
            suite = codename(begin, self.recipe)
        with self.site.packages(suite, Portion(Silent()), self.recipe.sources) as apt:
            return self.site.shelf(apt)

    def foundation_image(self, foundation: Foundation, progress: Portion) -> Image:
        """The image of a whole tree with its kernel: the one that is there, or a new one."""
        kernels = [describe(file) for file in foundation.kernel.files]
        made_of = (file.sha256 for file in kernels)
        compression = self.recipe.compression.value
        defaults = repr(foundation.defaults)
        words = (foundation.tree.digest, *made_of, compression, defaults)
        key = key_of("foundation", *words)
        image = made_before(self.images, key)
        if image is not None:
            return image
        result = self.result()
        for file in foundation.kernel.files:
            shutil.copyfile(file, result / file.name)
        self.squash(foundation.tree.archive, result, progress)
        return place_image(
            self.images,
            self.site.work,
            result,
            recipe=key,
            release=foundation.kernel.release,
            defaults=foundation.defaults,
        )

    def layer_image(self, parent: Image, begin: Tree, made: Tree, progress: Portion) -> Image:
        result = self.result()
        if len(parent.layers) >= store.DEEPEST:
            # Too many to put over one another: all of it in one.
            for file in (parent.kernel, parent.modules):
                shutil.copyfile(file, result / file.name)
            self.squash(made.archive, result, progress)
            below = None
        else:
            changed = tree.difference(tree.read(begin.archive), tree.read(made.archive))
            archive = self.site.steps.place()
            tree.write(changed, archive)
            self.squash(archive, result, progress)
            below = parent
        return place_image(
            self.images,
            self.site.work,
            result,
            recipe=self.recipe.digest(),
            release=parent.kernel_release,
            parent=below,
            defaults=parent.defaults,
            name=self.recipe.name,
            readers=readers_of(parent.directory),
        )

    def result(self) -> Path:
        result = self.site.steps.place().with_suffix(".image")
        result.mkdir()
        return result

    def squash(self, archive: Path, result: Path, progress: Portion) -> None:
        hold = (self.site.work.lock,)
        compression = self.recipe.compression
        squash(archive, result / Image.ROOT, progress, compression=compression, hold=hold)

    def tree_of(self, image: Image) -> Tree:
        """The whole tree of an image: as it was built, or put together from its layers."""
        steps = self.site.steps
        found = steps.find(tree_key(image))
        if found is not None:
            return found
        self.images.check(image)
        layers = []
        for layer in image.layers:
            archive = steps.place()
            unsquash(layer, archive, hold=(self.site.work.lock,))
            layers.append(tree.read(archive))
        return steps.keep(tree_key(image), tree.merge(layers))


def tree_key(image: Image) -> str:
    return key_of("image", image.digest)


def place_image(
    images: store.ImageStore,
    work: Workplace,
    result: Path,
    *,
    recipe: str,
    release: str,
    parent: Image | None = None,
    defaults: Defaults | None = None,
    name: str = "",
    readers: Readers | None = None,
) -> Image:
    """Put a directory of finished files in place as an image, or as a layer over another one."""
    files = tuple(describe(path) for path in sorted(result.iterdir()))
    below = parent.digest if parent else None
    meant = defaults or Defaults()
    record = store.Record(
        digest=image_digest(files, below, meant, release),
        name=name,
        kernel_release=release,
        created=time.time(),
        recipe=recipe,
        files=files,
        parent=below,
        defaults=meant,
    )
    return place(images, work, result, record, readers)


def disk_image(
    images: store.ImageStore, recipe: Recipe, work: Workplace, progress: Portion
) -> Image:
    result = work.directory / "result"
    result.mkdir()
    build_disk.import_disk(recipe, work, result, progress)
    return place_image(images, work, result, recipe=recipe.digest(), release="", name=recipe.name)
