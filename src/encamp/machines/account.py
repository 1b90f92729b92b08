"""Whom a machine's process runs as: its owner, or for root an account of its own."""

from __future__ import annotations

import os
import pwd

from encamp import programs
from encamp.model.errors import Code, EncampError

ACCOUNT = "encamp"
"""Root's machines run as this system account, which owns nothing else."""


def process_user(owner: int) -> tuple[int, int] | None:
    """The user and group a machine of this owner runs as; None if that is who we are."""
    if owner != os.geteuid():
        # Also if root wants to: shares and templates would have to be the owner's, not root's.
        raise EncampError(Code.NOT_PERMITTED, "A machine is made by its owner.")
    if owner != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        entry = _make_account()
    if entry.pw_uid == 0 or entry.pw_gid == 0:
        raise EncampError(
            Code.CONFIGURATION,
            f"The account '{ACCOUNT}' has root's rights, so machines cannot run as it.",
            f"Give it a uid and gid of its own, or remove it: userdel {ACCOUNT}",
        )
    return entry.pw_uid, entry.pw_gid


def _make_account() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--user-group", "--no-create-home"]
    command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
    command += ["--comment", "machines of root", ACCOUNT]
    try:
        programs.run(
            command,
            purpose=f"making the account '{ACCOUNT}', which root's machines run as",
            code=Code.NOT_PERMITTED,
        )
    except EncampError as error:
        try:
            return pwd.getpwnam(ACCOUNT)  # Somebody else has made it in the meantime.
        except KeyError:
            raise error from None
    return pwd.getpwnam(ACCOUNT)
