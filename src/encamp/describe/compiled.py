"""What was read from descriptions before, so that it need not be read again.

Reading YAML takes longer than cloning a machine. So what came out of it is kept in the home, one
small file for each environment that was asked for, with a stamp of everything it was made from.
Such a file is believed only if it is the caller's own, private, and says what it should; it can be
removed at any time.
"""

from __future__ import annotations

import binascii
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from encamp import __version__

LARGEST = 4 * 1024 * 1024
MOST_FILES = 100

Value = TypeVar("Value")


class _Kept(msgspec.Struct, array_like=True):
    stamp: bytes
    value: msgspec.Raw


def stamp(kind: type[msgspec.Struct], *parts: object) -> bytes:
    """Differs whenever what a value is made from does, or what makes it."""
    # Seldom, but in a clone the code changes without the version.
    code = os.stat(os.path.dirname(__file__)).st_mtime_ns  # noqa: PTH116, PTH120
    made_by = (__version__, code, kind.__name__, kind.__struct_fields__)
    return msgspec.msgpack.encode((made_by, *parts))


def fetch(directory: Path, name: bytes, mark: bytes, kind: type[Value]) -> Value | None:
    """What was kept, if it is still right."""
    try:
        fd = os.open(_path(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        private = found.st_uid == os.geteuid() and not found.st_mode & 0o022
        if not private or not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            return None
        data = file.read(LARGEST)
    try:
        kept = msgspec.msgpack.decode(data, type=_Kept)
        return msgspec.msgpack.decode(kept.value, type=kind) if kept.stamp == mark else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def keep(directory: Path, name: bytes, mark: bytes, value: Any) -> None:
    """Keep a value for next time. Where that is not possible it is simply not kept."""
    try:
        data = msgspec.msgpack.encode(_Kept(mark, msgspec.Raw(msgspec.msgpack.encode(value))))
    except UnicodeEncodeError:
        return  # Paths need not be text.
    if len(data) > LARGEST:
        return
    path = _path(directory, name)
    draft = f"{path}.{os.getpid()}.new"
    try:
        if directory.parent.stat().st_uid != os.geteuid():
            return
        directory.mkdir(mode=0o700, exist_ok=True)
        _make_room(directory)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
        Path(draft).replace(path)
    except OSError:
        return


def _make_room(directory: Path) -> None:
    """Forget the oldest when there are many; drafts of processes that died are among them."""
    files = sorted(directory.iterdir(), key=lambda path: path.lstat().st_mtime_ns)
    for path in files[: max(0, len(files) - MOST_FILES + 1)]:
        path.unlink(missing_ok=True)


def _path(directory: Path, name: bytes) -> str:
    """Where something is kept. Should two names meet there, the stamp tells them apart."""
    return f"{directory}/{binascii.crc32(name):08x}"
