"""Making changes, and undoing them.

Every step leaves things either as they were or as they are to be, whenever it is cut short: files
are replaced in one go, and what is done is found out by looking, never remembered.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from encamp.batch.install import objects
from encamp.batch.install.changes import Change, Directory, Edit, File, Object, State, digest
from encamp.batch.install.lines import replaced, setting
from encamp.model.errors import Code, EncampError

UNFINISHED = ".encamp-new"
"""Ends the name of what is about to replace a file."""


def look(path: str) -> bytes | None:
    """What is in a file; None if there is none."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EncampError(
            Code.NOT_PERMITTED,
            f"{path} cannot be read: {error.strerror}.",
            "Only root sets a batch system up.",
        ) from error


def states(changes: Sequence[Change]) -> dict[str, State]:
    """How they stand, by their keys."""
    answers = objects.Answers()
    return {change.key: _state(change, answers) for change in changes}


def state(change: Change) -> State:
    return _state(change, objects.Answers())


def _state(change: Change, answers: objects.Answers) -> State:
    match change:
        case Directory():
            return State.AFTER if Path(change.path).is_dir() else State.BEFORE
        case File():
            return _state_of_file(change)
        case Edit():
            return _state_of_edit(change)
        case Object():
            return _state_of_object(change, answers)


def apply(change: Change) -> None:
    match change:
        case Directory():
            Path(change.path).mkdir(mode=0o755, exist_ok=True)
        case File():
            if change.aside and not Path(change.aside).exists():
                os.link(change.path, change.aside)
            before = _time(change.path)
            # What is kept aside may be a link: what that leads to is the site's, and stays.
            place = change.path if change.aside else os.path.realpath(change.path)
            _replace(Path(place), change.after, change.mode)
            _have_noticed(change, before)
        case Edit():
            write(change.path, change.after, 0o644)
        case Object():
            objects.write(change, change.after)


def undo(change: Change) -> None:
    """Of a change that stands as it was made."""
    match change:
        case Directory():
            with suppress(OSError):  # Something else is in it by now.
                Path(change.path).rmdir()
        case File():
            _discard_unfinished(change.path)
            if change.aside:
                before = _time(change.path)
                Path(change.aside).replace(change.path)
                _have_noticed(change, before)
            else:
                Path(change.path).unlink(missing_ok=True)
        case Edit():
            _undo_edit(change)
        case Object():
            objects.write(change, change.before)


def _have_noticed(change: File, before: int) -> None:
    """Give it a time that is later than that of what was there, and than any at which that can
    have been read."""
    if change.watched:
        later = max(int(time.time()), before) + 1
        with suppress(FileNotFoundError):  # A link of the site's own that leads nowhere by now.
            os.utime(change.path, (later, later))


def _time(path: str) -> int:
    with suppress(FileNotFoundError):
        return int(Path(path).stat().st_mtime)
    return 0


def tidy(change: Change) -> None:
    """Take away what an installation that was cut short may have left beside the place."""
    if isinstance(change, File | Edit):
        _discard_unfinished(change.path)
    if isinstance(change, File) and change.aside:
        # Kept aside, but not yet replaced: both names are the same file.
        with suppress(OSError):
            if Path(change.aside).samefile(change.path):
                Path(change.aside).unlink()


def write(path: str, content: bytes, mode: int) -> None:
    """In one go. A file that is there keeps its owner and its rights; a link stays one."""
    _replace(Path(os.path.realpath(path)), content, mode)


def _replace(target: Path, content: bytes, mode: int) -> None:
    new = target.with_name(target.name + UNFINISHED)
    owner: os.stat_result | None = None
    with suppress(FileNotFoundError):
        owner = target.stat()
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        if owner is not None:
            os.fchown(fd, owner.st_uid, owner.st_gid)
        os.fchmod(fd, stat.S_IMODE(owner.st_mode) if owner is not None else mode)
        os.fsync(fd)
    finally:
        os.close(fd)
    new.replace(target)


def _discard_unfinished(path: str) -> None:
    for target in {Path(path), Path(os.path.realpath(path))}:
        target.with_name(target.name + UNFINISHED).unlink(missing_ok=True)


def _state_of_file(change: File) -> State:
    content = look(change.path)
    if content is not None and digest(content) in change.ours:
        return State.AFTER
    if not change.aside:
        # A link that leads nowhere is somebody else's, too.
        is_free = content is None and not Path(change.path).is_symlink()
        return State.BEFORE if is_free else State.OTHER
    if content is None:  # Somebody has taken ours away; the site's own is still kept aside.
        return State.AFTER if Path(change.aside).exists() else State.OTHER
    try:
        return (
            State.BEFORE
            if Path(change.aside).samefile(change.path)
            else State.OTHER  # Both are there: somebody has replaced ours.
        )
    except FileNotFoundError:
        return State.BEFORE


def _state_of_edit(change: Edit) -> State:
    content = look(change.path)
    if content == change.before:
        return State.BEFORE
    if content is None:
        return State.OTHER
    if digest(content) in change.ours or replaced(content, change.added, "") is not None:
        return State.AFTER
    if change.removed:
        return State.BEFORE if replaced(content, change.removed, "") is not None else State.OTHER
    parameter = re.match(r"(\w+)=", change.added)
    is_said = parameter is not None and setting(change.path, parameter[1], look) is not None
    return State.OTHER if is_said else State.BEFORE


def _undo_edit(change: Edit) -> None:
    _discard_unfinished(change.path)
    content = look(change.path)
    if content is None:
        return
    if digest(content) in change.ours:
        former = change.before
    else:
        former = replaced(content, change.added, change.removed)
    if former is None:
        Path(os.path.realpath(change.path)).unlink()
    else:
        write(change.path, former, 0o644)


def _state_of_object(change: Object, answers: objects.Answers) -> State:
    present = objects.read(change, answers)
    if digest(present) in change.ours:
        return State.AFTER
    return State.BEFORE if present == change.before else State.OTHER
