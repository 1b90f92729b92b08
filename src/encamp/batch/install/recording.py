"""What was changed on this host, kept where it survives: an installation is written down before
its first change is made, so that it can be undone however it ended."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

import encamp
from encamp.batch.install import applying
from encamp.batch.install.changes import (
    Change,
    Directory,
    File,
    Installed,
    Kept,
    Object,
    Plan,
    State,
    merged,
)
from encamp.describe.places import daemon_directory
from encamp.model.errors import Code, EncampError

DIRECTORY = "batch-installed"

Tell = Callable[[Change], None]


def directory() -> Path:
    return Path(daemon_directory()) / DIRECTORY


def installed(system: str) -> Installed | None:
    """What was changed for a batch system; None: nothing, or it was undone."""
    path = _path(system)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Installed)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise EncampError(
            Code.CORRUPT,
            f"{path}, which tells what was changed, cannot be read: {error}",
            "Compare the batch system's files with your own copies before you remove it.",
        ) from error


def all_installed() -> list[Installed]:
    names = sorted(path.stem for path in directory().glob("*.json"))
    return [found for found in map(installed, names) if found is not None]


def install(plan: Plan, tell: Tell) -> None:
    """Make what is planned; `tell` hears of each change before it is made."""
    with _lock():
        former = installed(plan.system)
        changes = merged(former.changes if former else (), plan.changes)
        _refuse_changed(plan, former, changes)
        _write(
            Installed(
                system=plan.system,
                version=encamp.__version__,
                when=time.time(),
                changes=changes,
            )
        )
        for change in plan.changes:
            tell(change)
            _make(change)


def _make(change: Change) -> None:
    try:
        applying.apply(change)
    except OSError as error:
        raise EncampError(
            Code.NOT_PERMITTED if isinstance(error, PermissionError) else Code.DISK_FULL,
            f"{change.key.partition(' ')[2]} could not be changed: {error.strerror}.",
            "'encamp batch uninstall' undoes what was changed before.",
        ) from error


def uninstall(found: Installed, tell: Tell, *, forget: bool = False) -> list[Kept]:
    """Undo what was made, the last change first. What somebody else has changed since is left as
    it is, and returned; it stays written down, unless it is to be forgotten."""
    with _lock():
        states = applying.states(found.changes)
        kept = [
            Kept(change, reason)
            for change in reversed(found.changes)
            if (reason := _undone(change, states[change.key], tell))
        ]
        if kept and not forget:
            left = {each.change.key for each in kept}
            changes = [
                change
                for change in found.changes
                if change.key in left or isinstance(change, Directory)
            ]
            _write(msgspec.structs.replace(found, changes=tuple(changes)))
        else:
            _path(found.system).unlink(missing_ok=True)
    if not kept or forget:
        _remove_empty(found)
    return kept


def _undone(change: Change, state: State, tell: Tell) -> str:
    """Why it was not; nothing: it was."""
    if state is State.OTHER and isinstance(change, File) and change.begun:
        return ""
    if state is State.OTHER:
        return "somebody else has changed it since"
    try:
        if state is State.AFTER:
            tell(change)
            applying.undo(change)
        applying.tidy(change)
    except EncampError as error:
        said = error.detail.splitlines()[-1:] or [error.sentence]
        return said[0]
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _refuse_changed(plan: Plan, former: Installed | None, recorded: tuple[Change, ...]) -> None:
    """A place where somebody else has been is not overwritten. Of Grid Engine's, those that are new
    were looked at just now."""
    known = {change.key for change in (former.changes if former else ())}
    planned = {change.key for change in plan.changes}
    chosen = [
        change
        for change in recorded
        if change.key in planned and (change.key in known or not isinstance(change, Object))
    ]
    for key, state in applying.states(chosen).items():
        if state is State.OTHER:
            raise EncampError(
                Code.WRONG_STATE,
                f"What is at {key.partition(' ')[2]} was not put there by Encamp.",
                "Look at it; 'encamp batch uninstall' leaves it as it is and undoes the rest.",
            )


def _path(system: str) -> Path:
    return directory() / f"{system}.json"


def _write(found: Installed) -> None:
    path = _path(found.system)
    applying.write(str(path), msgspec.json.format(msgspec.json.encode(found)) + b"\n", 0o600)


@contextmanager
def _lock() -> Iterator[None]:
    """One at a time on a host."""
    where = directory()
    try:
        where.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise EncampError(
            Code.NOT_PERMITTED,
            f"{where}, where changes are written down, cannot be used: {error.strerror}.",
            "Only root sets a batch system up.",
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _remove_empty(found: Installed) -> None:
    """The directory of the records itself, and those that it kept from being removed."""
    with suppress(OSError):
        directory().rmdir()
    for change in reversed(found.changes):
        if isinstance(change, Directory):
            applying.undo(change)
