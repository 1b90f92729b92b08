"""The accounts of this host that jobs run as: a node must know them, and where there is no
directory of them that it could ask, it is told."""

from __future__ import annotations

import grp
import pwd
import shlex
from collections.abc import Mapping
from pathlib import Path

from encamp.model.recipe import AddedFile

FIRST, LAST = 1000, 59999
"""Numbers of people, as distributions give them."""
PLACE = "/run/encamp"
HERE = Path(__file__).parent


def joining(script: str, words: Mapping[str, str]) -> str:
    """A command for a machine that is to join: the script of its batch system, told these words,
    once the accounts are known there."""
    lines = [f"{name}={shlex.quote(value)}" for name, value in words.items()]
    texts = [(HERE / name).read_text() for name in ("join-accounts.sh", script)]
    return "\n".join((*lines, *texts))


def accounts() -> tuple[AddedFile, ...]:
    """As lines for passwd and group, without any secret; `join-*.sh` adds those that are new."""
    people = [entry for entry in pwd.getpwall() if FIRST <= entry.pw_uid <= LAST]
    users = "".join(
        f"{one.pw_name}:*:{one.pw_uid}:{one.pw_gid}:{one.pw_gecos}:{one.pw_dir}:{one.pw_shell}\n"
        for one in people
    )
    primary = {one.pw_gid for one in people}
    groups = "".join(
        f"{one.gr_name}:*:{one.gr_gid}:{','.join(one.gr_mem)}\n"
        for one in grp.getgrall()
        if FIRST <= one.gr_gid <= LAST or one.gr_gid in primary
    )
    return (
        AddedFile(path=f"{PLACE}/passwd", content=users),
        AddedFile(path=f"{PLACE}/group", content=groups),
    )
