"""Whom a machine's process runs as: its owner, or for root an account of its own."""

from __future__ import annotations

import fcntl
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from encamp import programs
from encamp.home import MACHINES_ACCOUNT
from encamp.model.errors import Code, EncampError

ACCOUNT = MACHINES_ACCOUNT
LOCK = Path("/run/encamp-account.lock")
"""Held while it is made; nobody but root can."""


def process_user(owner: int) -> tuple[int, int] | None:
    """The user and group a machine of this owner runs as; None if that is who we are."""
    if owner != os.geteuid():
        # Also if root wants to: shares and templates would have to be the owner's, not root's.
        raise EncampError(Code.NOT_PERMITTED, "A machine is made by its owner.")
    if owner != 0:
        return None
    entry = _find_account()
    if entry is None:
        with _making():
            entry = _find_account() or _make_account()
    if entry.pw_uid == 0 or entry.pw_gid == 0:
        raise EncampError(
            Code.CONFIGURATION,
            f"The account '{ACCOUNT}' has root's rights, so machines cannot run as it.",
            f"Give it a uid and gid of its own, or remove it: userdel {ACCOUNT}",
        )
    return entry.pw_uid, entry.pw_gid


def _find_account() -> pwd.struct_passwd | None:
    with suppress(KeyError):
        return pwd.getpwnam(ACCOUNT)
    return None


@contextmanager
def _making() -> Iterator[None]:
    """One at a time: of two `useradd` for one name, the second can give the account other numbers
    when the first has been relied upon."""
    fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
        # Who waits for this very file finds the account; who makes a new one, too.
        LOCK.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _make_account() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--user-group", "--no-create-home"]
    command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
    command += ["--comment", "machines of root", ACCOUNT]
    programs.run(
        command,
        purpose=f"making the account '{ACCOUNT}', which root's machines run as",
        code=Code.NOT_PERMITTED,
    )
    return pwd.getpwnam(ACCOUNT)
