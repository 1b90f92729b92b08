"""Who needs which images: machines, other images, and whoever has used one lately."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from encamp.home import SYSTEM_HOME, Home
from encamp.images.foreign_home import Foreign
from encamp.images.records import (
    RECORD,
    RECORDS,
    directories,
    links,
    read_record,
    stamp_path,
)
from encamp.model.errors import Code, EncampError
from encamp.model.machine import ALIVE, State
from encamp.small_file import read_small


class User(msgspec.Struct, frozen=True):
    """As much of a machine's record as says which image it needs."""

    name: str
    image: str
    state: State


USERS = msgspec.json.Decoder(User)

UNREADABLE = (OSError, msgspec.MsgspecError, UnicodeDecodeError)
"""What a record may turn out to be, when it is read."""


def users(home: Home) -> dict[str, list[str]]:
    """Digests of images that machines of this home need, to go on or to wake up, with the
    machines' names."""
    found: dict[str, list[str]] = {}
    for path in home.machines.glob("*/machine.json"):
        with contextlib.suppress(*UNREADABLE):
            user = USERS.decode(read_small(path))
            if user.state in ALIVE or user.state is State.SUSPENDED:
                found.setdefault(user.image, []).append(user.name)
    return found


def opened(home: Home) -> set[str]:
    """Digests of images whose files any process of the host has open, as far as we may know:
    root's images serve machines of all accounts. Records do not count, which are opened to be
    locked."""
    # The system shows where files really are.
    prefix = f"{home.images.resolve()}/"
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for target in _files_of(pid):
            digest, _, file = target.removeprefix(prefix).partition("/")
            if target.startswith(prefix) and file != RECORD:
                found.add(digest)
    return found


def _files_of(pid: str) -> Iterator[str]:
    """What a process has open; nothing if it has just ended, or is not ours to look at."""
    directory = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(directory):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{directory}/{number}")  # noqa: PTH115


def elsewhere(home: Home) -> dict[str, list[str]]:
    """Digests of images of this home that other accounts' homes rely on, as far as they can be
    found and read: for machines, and as what their own images are layers over; with those homes.

    Anybody can write a record. It counts only if what it tells of is there: the file that a
    machine wakes up from, the image's files open in some process, an image's own files."""
    found: dict[str, list[str]] = {}
    in_use: set[str] | None = None
    for other in _relying(home):
        foreign = Foreign(other)
        for path in foreign.list(other.machines, "machine.json"):
            with contextlib.suppress(*UNREADABLE):
                user = USERS.decode(foreign.read(path))
                if user.state in ALIVE and in_use is None:
                    in_use = opened(home)
                lives = user.state in ALIVE and user.image in (in_use or ())
                if lives or (user.state is State.SUSPENDED and foreign.is_context(path)):
                    found.setdefault(user.image, []).append(f"'{user.name}' in {other.root}")
        for path in foreign.list(other.images, RECORD):
            with contextlib.suppress(*UNREADABLE):
                record = RECORDS.decode(foreign.read(path))
                if record.parent is not None and foreign.is_image(path.parent, record):
                    found.setdefault(record.parent, []).append(f"an image in {other.images}")
    return found


def _relying(home: Home) -> Iterator[Home]:
    """Homes that images of this one serve, too: of those for whom its agent makes machines, and
    those of all accounts if it is the system's."""
    with contextlib.suppress(OSError):
        for path in sorted(home.owners.iterdir()):
            yield Home(path)
    if home.root.resolve() == SYSTEM_HOME.resolve():
        for other in account_homes():
            if other.root.resolve() != home.root.resolve():
                yield other


def account_homes() -> Iterator[Home]:
    """Where the accounts of this host have their homes unless they chose another place."""
    accounts = {Path(account.pw_dir) for account in pwd.getpwall()}
    with contextlib.suppress(OSError):
        accounts |= set(Path("/home").iterdir())
    for directory in sorted(accounts):
        root = directory / ".local" / "share" / "encamp"
        with contextlib.suppress(OSError):
            if root.is_dir():
                yield Home(root)


def parents(home: Home) -> dict[str, str]:
    """What each image of the home is a layer over, if it is one."""
    return {
        record.digest: record.parent
        for directory in directories(home)
        if (record := read_record(directory)) is not None and record.parent is not None
    }


def with_parents(digests: Collection[str], above: dict[str, str]) -> set[str]:
    found: set[str] = set()
    for digest in digests:
        while digest not in found:
            found.add(digest)
            if digest not in above:
                break
            digest = above[digest]
    return found


def last_used(home: Home, digest: str) -> float:
    for path in (stamp_path(home, digest), home.images / digest):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def own_size(directory: Path) -> int:
    """What an image really takes of the disk."""
    found = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            found += entry.stat(follow_symlinks=False).st_blocks * 512
    return found


def check_unneeded(home: Home, wanted: str, digest: str) -> None:
    """Refuse to remove an image that a machine or another image needs."""
    above = parents(home)
    over = [child for child, parent in above.items() if parent == digest]
    if over:
        tags = [tag for tag, link in links(home).items() if link.digest in over]
        raise EncampError(
            Code.WRONG_STATE,
            f"Image '{wanted}' is what {', '.join(tags) or over[0][:12]} is a layer over.",
            "Remove that first.",
        )
    machines = users(home).get(digest, []) + elsewhere(home).get(digest, [])
    if machines:
        raise EncampError(
            Code.WRONG_STATE,
            f"Image '{wanted}' is in use by {', '.join(machines)}.",
            "End them first.",
        )
    if digest in opened(home):
        raise EncampError(
            Code.WRONG_STATE,
            f"Image '{wanted}' is in use: some process has its files open.",
            "It may be a machine of another account, or a template ('encamp template ls').",
            transient=True,
        )
