"""Taking images and their names away."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from contextlib import ExitStack

from encamp.home import Home
from encamp.images import store
from encamp.images.holding import nobody_using
from encamp.images.needs import check_unneeded
from encamp.images.records import directories, link_path, links, stamp_path
from encamp.images.reference import is_beginning, is_tag, only
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.progress import Silent
from encamp.workplace import workplace


def remove(images: store.ImageStore, wanted: str) -> list[Image]:
    """Remove an image that somebody asked to be removed, with its names."""
    home = images.home
    named = links(home)
    link = named.get(wanted)
    if link is not None:
        digest: str | None = link.digest
    else:
        here = (path.name for path in directories(home))
        digest = only(wanted, here) if is_beginning(wanted) else None
    if digest is None:
        raise refusal(images, wanted)
    tags = {tag for tag in named if named[tag].digest == digest}
    removed = [
        image for image in images.ls() if image.digest == digest and image.name in {"", *tags}
    ]
    with nobody_using(home.images / digest) as unused:
        check_unneeded(home, wanted, digest)
        if not unused:
            raise EncampError(
                Code.WRONG_STATE,
                f"Image '{wanted}' is in use: a machine is just being made of it.",
                "Try again in a moment.",
                transient=True,
            )
        discard(home, tags, {digest})
    return removed


def refusal(images: store.ImageStore, wanted: str) -> EncampError:
    """Why there is nothing of that name that could be removed."""
    found = images.resolve(wanted) if is_tag(wanted) or is_beginning(wanted) else None
    if found is not None:
        return EncampError(
            Code.NOT_PERMITTED,
            f"Image '{wanted}' belongs to the system ({found.directory}), not to you.",
            "Only root can remove it.",
        )
    return EncampError(
        Code.INPUT_MISSING, f"There is no image '{wanted}'.", "See 'encamp image ls'."
    )


def discard(home: Home, wanted: Collection[str], digests: Collection[str]) -> None:
    """Take away names and files of images, and see builders of those names finish first."""
    home.prepare()
    with ExitStack() as held:
        for name in sorted(wanted):
            waiting = f"waiting: another encamp is building '{name}'"
            held.enter_context(locked(home, f"image-{name}", waiting, Silent()))
        take_away(home, wanted, digests)


def take_away(home: Home, wanted: Collection[str], digests: Collection[str]) -> None:
    """Whoever has the files open can go on reading."""
    with workplace(home, "removed") as work:
        for name in wanted:
            link_path(home, name).unlink(missing_ok=True)
        for digest in digests:
            with contextlib.suppress(FileNotFoundError):
                (home.images / digest).rename(work.directory / digest)
            stamp_path(home, digest).unlink(missing_ok=True)
