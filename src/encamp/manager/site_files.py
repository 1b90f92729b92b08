"""The files that a site's directory consists of, and how they are written."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from encamp.model.errors import Code, EncampError

SITE, KEYS, MEMBERS, CREDENTIALS = "site.yaml", "keys.json", "members.json", "credentials"
PRIVATE, PUBLIC = 0o600, 0o644


def yaml_text(text: str) -> str:
    """A text in YAML, which reads JSON's quotes."""
    return msgspec.json.encode(text).decode()


def make_directory(directory: Path, mode: int) -> None:
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise EncampError(
            Code.NOT_PERMITTED,
            f"{directory} cannot be made: {error.strerror}.",
            "Name a directory you may write to, or do it as root.",
        ) from error


def write_whole(path: Path, data: bytes, mode: int) -> None:
    """The whole file or none of it, never readable by others in between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(fd, mode)
                os.fsync(fd)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EncampError(
            Code.NOT_PERMITTED,
            f"{path} cannot be written: {error.strerror}.",
            "Is it a directory you may write to?",
        ) from error
