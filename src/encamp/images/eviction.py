"""Keeping images within their limit: what goes first, and what stays."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from encamp.home import Home
from encamp.images import store
from encamp.images.holding import nobody_using
from encamp.images.needs import (
    elsewhere,
    last_used,
    opened,
    own_size,
    parents,
    users,
    with_parents,
)
from encamp.images.records import directories, links, read_origin, read_record
from encamp.images.reference import is_digest
from encamp.images.removing import take_away
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.size import format_bytes
from encamp.progress import Progress

SPARE = 64 << 20
"""Bytes of the disk that images leave free."""


def evict(home: Home, digest: str) -> bool:
    """Remove an image with its names, unless somebody needs it after all."""
    tags = {tag for tag, link in links(home).items() if link.digest == digest}
    with nobody_using(home.images / digest) as unused:
        # Looked at once more: a machine may have been written down since it was chosen.
        if not unused or digest in users(home) or digest in elsewhere(home):
            return False
        # Without their locks: one who builds under such a name may be the one who needs the room.
        take_away(home, tags, {digest})
    return True


def make_room(
    images: store.ImageStore,
    needed: int,
    purpose: str,
    keep: Collection[str],
    progress: Progress,
    *,
    to_write: int | None = None,
) -> None:
    """Remove images, the one that was not used for longest first, until `needed` bytes fit into
    the limit, and those of them that are not on the disk yet onto that."""
    home = images.home
    written = needed if to_write is None else to_write
    if _lacking(images, needed, written) <= 0:
        return
    with locked(home, "room-for-images", "waiting: another encamp makes room", progress):
        may_go = list(unneeded(home, {*keep, *irreplaceable(home)}))
        # What would not be enough is not worth losing anything for.
        if sum(own_size(home.images / digest) for digest in may_go) < _lacking(
            images, needed, written
        ):
            raise _refusal(images, needed, purpose)
        for digest in may_go:
            if _lacking(images, needed, written) <= 0:
                return
            progress.update(f"making room: image {digest[:12]} was not used for longest")
            evict(home, digest)
        if _lacking(images, needed, written) > 0:
            raise _refusal(images, needed, purpose)


def unneeded(home: Home, keep: Collection[str]) -> Iterator[str]:
    """Images that may go, the one that was not used for longest first. One that another is a
    layer over comes up when that one has gone."""
    gone: set[str] = set()
    others = elsewhere(home)
    while True:
        above = parents(home)
        here = {path.name for path in directories(home)} - gone
        needed = with_parents({*keep, *users(home), *others, *opened(home)}, above)
        needed |= {above[digest] for digest in here if digest in above}
        candidates = sorted(here - needed, key=lambda digest: last_used(home, digest))
        if not candidates:
            return
        gone.add(candidates[0])
        yield candidates[0]


def irreplaceable(home: Home) -> set[str]:
    """Images that neither a repository nor a recipe could bring back, such as saved ones. They
    go only if somebody says so."""
    found = set()
    for directory in directories(home):
        record = read_record(directory)
        if record is not None and read_origin(directory) is None and not is_digest(record.recipe):
            found.add(record.digest)
    return found


def taken(home: Home) -> int:
    return sum(own_size(directory) for directory in directories(home))


def free(home: Home) -> int:
    found = os.statvfs(home.images)
    return found.f_bavail * found.f_frsize - SPARE


def _lacking(images: store.ImageStore, needed: int, to_write: int) -> int:
    """How many bytes have to go before that many fit, into the limit and on the disk."""
    lacking = to_write - free(images.home) if to_write else 0
    limit = images.settings.image_limit
    if limit is not None:
        lacking = max(lacking, taken(images.home) + needed - limit)
    return lacking


def _refusal(images: store.ImageStore, needed: int, purpose: str) -> EncampError:
    home, limit = images.home, images.settings.image_limit
    figures = f"{format_bytes(needed)} are needed, {format_bytes(max(0, free(home)))} of the disk"
    figures += " are free"
    if limit is not None:
        figures += f", and images take {format_bytes(taken(home))} of their {format_bytes(limit)}"
    return EncampError(
        Code.NO_ROOM,
        f"There is no room to {purpose}: {figures}.",
        "What is left is in use, or saved, or something is a layer over it. End machines, remove"
        " saved images ('encamp image rm'), or raise the limit (image_limit, ENCAMP_IMAGE_LIMIT).",
        transient=True,
    )
