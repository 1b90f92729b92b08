"""Who is asking, as the kernel sees it."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable
from contextlib import suppress

from encamp.model.job import User

MOST_NAMED = 64
"""Groups of one user whose names are looked up."""


def caller() -> User:
    return as_user(os.geteuid(), os.getegid(), os.getgroups())


def as_user(uid: int, gid: int, groups: Iterable[int]) -> User:
    """Somebody as this host knows them."""
    try:
        entry = pwd.getpwuid(uid)
        name, home = entry.pw_name, entry.pw_dir
    except KeyError:
        name, home = f"user{uid}", f"/home/user{uid}"
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = f"group{gid}"
    if not home.startswith("/") or home == "/":
        home = f"/home/{name}"
    every = tuple(sorted({*groups, gid}))
    return User(name=name, uid=uid, gid=gid, group=group, groups=every, home=home)


def group_names(user: User) -> dict[int, str]:
    """Those of a user's groups that have a name on this host, besides the user's own."""
    names: dict[int, str] = {}
    for number in user.groups[:MOST_NAMED]:
        if number != user.gid:
            with suppress(KeyError):
                names[number] = grp.getgrgid(number).gr_name
    return names
