"""Putting images where machines find them, giving them names, and taking both away again."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from pathlib import Path

import msgspec

from encamp.home import Home
from encamp.images import store
from encamp.images.content import check_content, settle, write_file
from encamp.images.waiting import locked
from encamp.model.errors import EncampError
from encamp.model.image import Image
from encamp.progress import Silent
from encamp.workplace import Workplace, workplace


def place(images: store.ImageStore, work: Workplace, result: Path, record: store.Record) -> Image:
    """Move a directory with an image's files, whose content is known to be right, to its place.

    The same image may be there already; a damaged one goes."""
    (result / store.RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    for path in result.iterdir():
        path.chmod(0o444)
    result.chmod(0o755)
    settle(result)
    target = images.home.images / record.digest
    if not _whole(images, target):
        if target.exists():
            target.rename(work.directory / f"damaged-{record.digest}")
        result.rename(target)
    image = images.read(target)
    assert image is not None, "what it is a layer over is put in place before it"
    images.stamp(image, store.look(image))
    return image


def _whole(images: store.ImageStore, target: Path) -> bool:
    there = images.read(target)
    if there is None:
        return False
    try:
        check_content(there, store.look(there), Silent())
    except EncampError:
        return False
    return True


def name_image(home: Home, record: store.Record, name: str) -> None:
    link = store.Link(record.digest, record.recipe)
    write_file(store.link_path(home, name), msgspec.json.encode(link))


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
