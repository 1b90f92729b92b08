"""Building an image exactly once, and leaving nothing behind when that fails."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from encamp.images import build_debian, build_mini, store
from encamp.images.apt import Apt
from encamp.images.content import describe, image_digest
from encamp.images.failures import explained
from encamp.images.kernel import get_kernel
from encamp.images.placing import name_image, place
from encamp.images.portion import Forward, Portion
from encamp.images.squash import squash
from encamp.images.waiting import locked
from encamp.model.image import Image, ImageFile
from encamp.model.recipe import Kind, Recipe
from encamp.progress import Progress
from encamp.workplace import Workplace, clear_cache, workplace


def build_once(images: store.ImageStore, recipe: Recipe, progress: Progress) -> Image:
    home = images.home.prepare()
    waiting = f"waiting: another encamp is building '{recipe.name}'"
    with locked(home, f"image-{recipe.name}", waiting, progress):
        # Somebody else may have built it while we waited.
        image = images.find(recipe.name, recipe.digest())
        if image is not None:
            return image
        clear_cache(home)
        with explained(home, recipe):
            return build(images, recipe, Portion(Forward(progress)))


def build(images: store.ImageStore, recipe: Recipe, progress: Portion) -> Image:
    home = images.home
    fetched, installed = (0.85, 0.95) if recipe.kind is Kind.MINI else (0.3, 0.8)
    with workplace(home, f"build-{recipe.name}") as work:
        waiting = "waiting: another encamp is fetching packages"
        with locked(home, "packages", waiting, progress) as packages:
            directory = home.cache / f"apt-{recipe.suite}"
            apt = Apt(directory, recipe.suite, hold=(work.lock, packages))
            apt.update(progress.part(0, fetched * 0.3))
            kernel = get_kernel(home, apt, recipe.kernel, progress.part(fetched * 0.3, fetched))
            result = work.directory / "result"
            result.mkdir()
            for file in kernel.files:
                shutil.copyfile(file, result / file.name)
            if recipe.kind is Kind.MINI:
                build_mini.fetch(recipe, work, apt, progress.part(fetched, installed))
        build_root = build_mini.build_root if recipe.kind is Kind.MINI else build_debian.build_root
        tar = build_root(recipe, work, apt, progress.part(fetched, installed))
        packing = progress.part(installed, 0.98)
        all_root = recipe.kind is Kind.MINI
        squash(tar, result / Image.ROOT, packing, all_root=all_root, hold=(work.lock,))
        progress.update("writing the image", 0.98)
        image = finish(images, recipe, work, result, kernel.release)
    progress.update(f"image '{recipe.name}' ready", 1.0)
    return image


def finish(
    images: store.ImageStore, recipe: Recipe, work: Workplace, result: Path, release: str
) -> Image:
    """Describe what was built, move it to its place, and give it its name."""
    files: tuple[ImageFile, ...] = tuple(
        describe(result / name) for name in sorted((Image.ROOT, Image.KERNEL, Image.MODULES))
    )
    record = store.Record(
        digest=image_digest(files),
        name=recipe.name,
        kernel_release=release,
        created=time.time(),
        recipe=recipe.digest(),
        files=files,
    )
    place(images, work, result, record)
    name_image(images.home, record, recipe.name)
    image = images.find(recipe.name, record.recipe)
    assert image is not None
    return image
