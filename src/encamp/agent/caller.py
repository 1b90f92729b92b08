"""Who is asking, as the kernel sees it."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable

from encamp.model.job import User


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
