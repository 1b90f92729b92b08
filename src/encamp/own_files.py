"""Where Encamp itself lies. What it does for others is done by processes that have become theirs,
and go on reading it: a place that root keeps to itself will not do for that."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from encamp import programs
from encamp.model.errors import Code, EncampError

PLACE = Path(__file__).parent
PROBE = PLACE / "py.typed"


def check_readable(account: str) -> None:
    """For a process that has become this account's."""
    if not os.access(PROBE, os.R_OK):
        raise _not_readable(account)


def check_readable_by(entry: pwd.struct_passwd) -> None:
    """For root, before anything is begun for this account."""
    words = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
    try:
        programs.run([*words, "test", "-r", PROBE], purpose="looking at its own files")
    except EncampError as error:
        if error.code is Code.PROGRAM_MISSING:
            raise
        raise _not_readable(entry.pw_name) from None


def _not_readable(account: str) -> EncampError:
    return EncampError(
        Code.CONFIGURATION,
        f"Encamp is in {PLACE}, where {account} cannot read it.",
        "Install it where every account can read it, for example in /opt.",
    )
