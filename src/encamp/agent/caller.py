"""Who is asking, as the kernel sees it."""

from __future__ import annotations

import grp
import os
import pwd

from encamp.model.job import User


def caller() -> User:
    uid, gid = os.geteuid(), os.getegid()
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
    groups = tuple(sorted({*os.getgroups(), gid}))
    return User(name=name, uid=uid, gid=gid, group=group, groups=groups, home=home)
