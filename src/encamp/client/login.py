"""A login that was saved: where a site's manager is, and the token to show to it.

Whoever reads the file can do what its owner can. So it is the user's alone, and one that is not is
not used.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from encamp.home import login_path, user_name
from encamp.model.errors import Code, EncampError

LARGEST = 1 << 20
"""Bytes; no certificate is as large as that."""


class Login(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    url: str
    """Of several managers, all of theirs, with commas."""
    token: str
    authority: str = ""
    """The certificate that the manager's is checked against, as text; empty: as the system says."""
    insecure: bool = False
    """May the token be sent in clear?"""


def saved_login() -> Login | None:
    path = Path(login_path())
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = "is a link" if path.is_symlink() else f"cannot be read: {error.strerror}"
        raise _refused(f"{path} {why}.") from error
    try:
        _check(path, os.fstat(fd))
        data = os.read(fd, LARGEST)
    finally:
        os.close(fd)
    try:
        return msgspec.json.decode(data, type=Login)
    except msgspec.DecodeError as error:
        raise EncampError(
            Code.CONFIGURATION,
            f"{path} is not what 'encamp login' has written: {error}.",
            "Log in anew: 'encamp login URL'.",
        ) from error


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _refused(f"{path} is not a file.")
    if found.st_uid != os.geteuid():
        raise _refused(f"{path} belongs to {user_name(found.st_uid)}, not to you.")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _refused(
            f"{path} has a token in it, and can be read or written by others.",
            f"Whoever has read it can do what you can. 'chmod 600 {path}' makes it yours alone; if"
            " others could come by, have the token revoked and log in with another.",
        )


def _refused(sentence: str, hint: str = "") -> EncampError:
    usual = "Remove it and log in anew, or say with ENCAMP_DOOR or ENCAMP_URL whom to ask."
    return EncampError(Code.NOT_PERMITTED, sentence, hint or usual)
