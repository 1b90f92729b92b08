"""Building an image exactly once, and leaving nothing behind when that fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from encamp import programs
from encamp.home import Home
from encamp.images import build_debian, build_mini, store
from encamp.images.apt import Apt
from encamp.images.content import check_content, describe, image_digest, settle, write_file
from encamp.images.failures import explained
from encamp.images.kernel import get_kernel
from encamp.images.portion import Forward, Portion
from encamp.images.squash import squash
from encamp.model.errors import EncampError
from encamp.model.image import Image, ImageFile
from encamp.model.recipe import Kind, Recipe
from encamp.progress import Progress, Silent
from encamp.workplace import Workplace, clear_cache, workplace

LOOK_AGAIN = 0.2
"""Seconds between two tries for a lock that somebody else holds."""


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
    (result / store.RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    for path in result.iterdir():
        path.chmod(0o444)
    result.chmod(0o755)
    settle(result)
    place = images.home.images / record.digest
    put(images, result, place, work)
    link = store.Link(record.digest, record.recipe)
    write_file(store.link_path(images.home, recipe.name), msgspec.json.encode(link))
    image = images.find(recipe.name, record.recipe)
    assert image is not None
    images.stamp(image, store.look(image))
    return image


def put(images: store.ImageStore, result: Path, place: Path, work: Workplace) -> None:
    """Move an image to its place. The same image may be there already; a damaged one goes."""
    there = images.read(place)
    if there is not None:
        try:
            check_content(there, store.look(there), Silent())
            return
        except EncampError:
            pass
    if place.exists():
        place.rename(work.directory / "damaged")
    result.rename(place)


def discard(home: Home, wanted: set[str], digests: set[str]) -> None:
    """Take away names and files of images. Whoever has the files open can go on reading."""
    home.prepare()
    with ExitStack() as held:
        for name in sorted(wanted):
            waiting = f"waiting: another encamp is building '{name}'"
            held.enter_context(locked(home, f"image-{name}", waiting, Silent()))
        work = held.enter_context(workplace(home, "removed"))
        for name in wanted:
            store.link_path(home, name).unlink(missing_ok=True)
        for digest in digests:
            with contextlib.suppress(FileNotFoundError):
                (home.images / digest).rename(work.directory / digest)
            store.stamp_path(home, digest).unlink(missing_ok=True)


@contextmanager
def locked(home: Home, name: str, waiting: str, progress: Progress) -> Iterator[int]:
    """Hold one of the home's locks; say so while somebody else has it.

    A program that is given the descriptor goes on holding the lock should this process be killed.
    """
    path = home.locks / f"{name}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress.update(waiting)
                if programs.STOPPING.wait(LOOK_AGAIN):
                    programs.refuse_when_stopping()
        yield handle
    finally:
        os.close(handle)
