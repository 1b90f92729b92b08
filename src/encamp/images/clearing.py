"""Clearing up: images without a name, downloads nobody came back for, and other left-overs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from encamp.home import Home
from encamp.images import store
from encamp.images.eviction import evict, unneeded
from encamp.images.needs import last_used, own_size
from encamp.images.records import links
from encamp.images.transfer import PARTIAL
from encamp.images.waiting import held_by_nobody
from encamp.workplace import clear_cache

DAY = 86400.0
PARTIALS_KEPT = 7 * DAY
"""Seconds for which a download that broke off waits to be resumed."""
STEPS = "steps/*"
"""What builds keep to be quicker the next time."""
LOCKS = ("image-*.lock", "pull-*.lock", "place-*.lock")
"""Taken in a way that lets them be removed while nobody holds them."""


class Cleared(msgspec.Struct, frozen=True):
    """One thing that nobody needed."""

    what: str
    size: int


def clear(images: store.ImageStore, keep_days: float, *, dry_run: bool) -> Iterator[Cleared]:
    """Remove what nobody needs and nobody used for so many days."""
    home = images.home.prepare()
    if not dry_run:
        clear_cache(home)
    before = time.time() - keep_days * DAY
    yield from _unnamed(home, before, dry_run)
    yield from clear_partials(home, before, dry_run=dry_run)
    yield from _steps(home, before, dry_run)
    yield from _kernels(home, before, dry_run)
    yield from _stamps(images, dry_run)
    yield from _locks(home, before, dry_run)


def _unnamed(home: Home, before: float, dry_run: bool) -> Iterator[Cleared]:
    named = {link.digest for link in links(home).values()}
    for digest in unneeded(home, named):
        if last_used(home, digest) > before:
            continue
        size = own_size(home.images / digest)
        if dry_run or evict(home, digest):
            yield Cleared(f"image {digest[:12]}", size)


def clear_partials(
    home: Home, before: float, keep: str = "", *, dry_run: bool = False
) -> list[Cleared]:
    """Remove downloads that broke off and that nobody came back for, but not those of `keep`,
    nor those that somebody is at."""
    removed = []
    for path in home.cache.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            found = path.stat()
            name = path.name.removeprefix(PARTIAL)
            digest = name.partition(".")[0]
            if digest == keep or found.st_mtime > before:
                continue
            with held_by_nobody(home, f"pull-{digest}") as broken_off:
                if not broken_off:
                    continue
                if not dry_run:
                    path.unlink()
            if path.suffix != ".from":
                removed.append(Cleared(f"partial download {name[:12]}", found.st_blocks * 512))
    return removed


def _steps(home: Home, before: float, dry_run: bool) -> Iterator[Cleared]:
    for path in home.cache.glob(STEPS):
        with contextlib.suppress(OSError):
            found = path.stat()
            # A tree is as old as its record, which is touched whenever the tree is used.
            record = path.with_suffix(".json")
            used = record.stat().st_mtime if record.exists() else found.st_mtime
            if used > before:
                continue
            if not dry_run:
                path.unlink()
            yield Cleared(f"build step {path.name[:12]}", found.st_blocks * 512)


def _kernels(home: Home, before: float, dry_run: bool) -> Iterator[Cleared]:
    """What machines that boot keep to be quicker the next time."""
    for path in home.unpacked_kernels.glob("*"):
        with contextlib.suppress(OSError):
            found = path.stat()
            if found.st_mtime > before:
                continue
            if not dry_run:
                path.unlink()
            yield Cleared(f"unpacked kernel {path.name[:12]}", found.st_blocks * 512)


def _stamps(images: store.ImageStore, dry_run: bool) -> Iterator[Cleared]:
    """Stamps of images that are gone."""
    for path in (images.home.images / "stamps").glob("*.json"):
        if images.by_digest(path.name.removesuffix(".json").partition("@")[0]) is None:
            if not dry_run:
                path.unlink(missing_ok=True)
            yield Cleared(f"stamp {path.name[:12]}", 0)


def _locks(home: Home, before: float, dry_run: bool) -> Iterator[Cleared]:
    for path in [path for pattern in LOCKS for path in home.locks.glob(pattern)]:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > before:
                continue
            if dry_run or _remove_lock(path):
                yield Cleared(f"lock {path.name}", 0)


def _remove_lock(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
