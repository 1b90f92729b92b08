"""Where descriptions and settings are found, and which of them are believed.

A file that somebody else could have written is not read at all: whoever can write it decides what
runs here, with which directories of the caller's shown inside.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from encamp.describe.sources import Level, Source
from encamp.home import user_directory, user_name

ENVIRONMENTS = "environments.yaml"
SETTINGS = "settings.yaml"

SITE_CONFIG = "/etc/encamp"
LARGEST = 16 * 1024 * 1024 + 1
"""More is not read; reading.py refuses what is as large as this."""


STEP = 20_000_000
"""Nanoseconds, more than the kernel lets pass between two times it gives to files."""


class Place(msgspec.Struct, frozen=True):
    """A file that may be there."""

    path: str
    level: Level


class Found(msgspec.Struct):
    """What is at a place now."""

    place: Place
    status: os.stat_result | None
    """None: nothing."""
    refused: str = ""
    """Why it is not read, as a sentence."""

    def is_same(self, other: Found) -> bool:
        """Are both the same file?"""
        if self.status is None or other.status is None:
            return False
        return os.path.samestat(self.status, other.status)

    @property
    def stamp(self) -> tuple[bytes | int, ...]:
        """Differs whenever the file does, or whether it is believed."""
        found = self.status
        if found is None:
            return (os.fsencode(self.place.path), bool(self.refused))
        return (
            *(os.fsencode(self.place.path), found.st_mtime_ns, found.st_ctime_ns, found.st_size),
            *(found.st_dev, found.st_ino, found.st_uid, found.st_mode),
            bool(self.refused),
        )


_kept_site_directory = ""


def site_directory() -> str:
    """Only root may say that the site's files are elsewhere: they bind everybody else."""
    chosen = os.environ.get("ENCAMP_SITE_CONFIG") if os.geteuid() == 0 else None
    return chosen or _kept_site_directory or SITE_CONFIG


def keep_site_directory() -> None:
    """It stays where it is for this process, even if that becomes somebody else's."""
    global _kept_site_directory
    _kept_site_directory = site_directory()


def daemon_directory() -> str:
    """Where daemons find what they are told: root's in the site's directory, and those of an
    ordinary account, which make a site of its own, in that account's."""
    return site_directory() if os.geteuid() == 0 else user_directory()


def daemon_places(*names: str) -> list[Place]:
    level = Level.SITE if os.geteuid() == 0 else Level.USER
    return [Place(f"{daemon_directory()}/{name}", level) for name in names]


def shipped_environments() -> Place:
    return Place(f"{os.path.dirname(__file__)}/{ENVIRONMENTS}", Level.SHIPPED)  # noqa: PTH120


def environment_places() -> list[Place]:
    """All files that may describe environments, in the order they build on one another."""
    return [
        shipped_environments(),
        Place(f"{site_directory()}/{ENVIRONMENTS}", Level.SITE),
        Place(f"{user_directory()}/{ENVIRONMENTS}", Level.USER),
        Place(_here(ENVIRONMENTS), Level.HERE),
    ]


def settings_places() -> list[Place]:
    return [
        Place(f"{site_directory()}/{SETTINGS}", Level.SITE),
        Place(f"{user_directory()}/{SETTINGS}", Level.USER),
    ]


def _here(name: str) -> str:
    try:
        return f"{os.getcwd()}/{name}"  # noqa: PTH109
    except OSError:
        return f"/nowhere/{name}"  # The current directory has been removed.


def look(places: list[Place]) -> list[Found]:
    """What is at these places. One file at two places counts once, at the first."""
    found = []
    seen = set()
    for place in places:
        status, unknown = _status(place)
        if status is not None and (status.st_dev, status.st_ino) in seen:
            status = None
        if status is not None:
            seen.add((status.st_dev, status.st_ino))
        refused = unknown or _refusal(place, status) or _link_refusal(place)
        found.append(Found(place, status, refused))
    return found


def _status(place: Place) -> tuple[os.stat_result | None, str]:
    """What the system says about a file; or why it is unknown whether there is one, which must
    not pass for there being none: what a site requires would not be required any more."""
    try:
        return os.stat(place.path), ""  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        return None, f"{place.path} cannot be looked at: {error.strerror}."


def just_changed(found: list[Found], now: int) -> bool:
    """Could a file change again without its times telling? They advance in steps."""
    return any(
        entry.status is not None and 0 <= now - entry.status.st_ctime_ns < STEP for entry in found
    )


def _link_refusal(place: Place) -> str:
    """A link of somebody else's could lead to any file of the caller's."""
    try:
        status = os.lstat(place.path)
    except OSError:
        return ""
    return _refusal(place, status) if stat.S_ISLNK(status.st_mode) else ""


def _refusal(place: Place, status: os.stat_result | None) -> str:
    if status is None or place.level is Level.SHIPPED:
        return ""
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        return f"{place.path} is not a file."
    owners = {0} if place.level is Level.SITE else {0, os.geteuid()}
    if status.st_uid not in owners:
        wanted = "root" if place.level is Level.SITE else "you or root"
        return (
            f"{place.path} belongs to {user_name(status.st_uid)}; only files of {wanted} are read."
        )
    # The rights of a link mean nothing.
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{place.path} can be written to by others; 'chmod go-w' makes it yours alone."
    return ""


def read(found: list[Found], *, anybody: bool = False) -> list[tuple[Source, bytes]]:
    """What stands in the files that are there and believed, in order; or in anybody's files."""
    read_files: list[tuple[Source, bytes]] = []
    for entry in found:
        if entry.status is None or (entry.refused and not anybody):
            continue
        data = _contents(entry, anybody=anybody)
        if data is not None:
            path = entry.place.path
            # Names of directories need not be text; what is shown to people must be.
            shown = os.fsencode(path).decode(errors="backslashreplace")
            directory = str(Path(path).resolve().parent)
            source = Source(shown, entry.place.level, len(read_files), directory, path)
            read_files.append((source, data))
    return read_files


def _contents(entry: Found, *, anybody: bool) -> bytes | None:
    """The file, if it is still the one that was looked at."""
    try:
        # A file that became something to wait for in the meantime is not waited for.
        fd = os.open(entry.place.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        entry.refused = f"{entry.place.path} cannot be read: {error.strerror}."
        return None
    try:
        entry.status = os.fstat(fd)
        if not stat.S_ISREG(entry.status.st_mode):
            entry.refused = f"{entry.place.path} is not a file."
        else:
            entry.refused = "" if anybody else _refusal(entry.place, entry.status)
        if entry.refused:
            return None
        with open(fd, "rb", closefd=False) as file:
            return file.read(LARGEST)
    finally:
        os.close(fd)
