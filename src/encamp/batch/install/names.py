"""Numbers of users and groups, for whoever decides without being able to look names up."""

from __future__ import annotations

import grp
import pwd


def uid_of(name: str) -> int | None:
    """None: there is no such user on this host."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def gid_of(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
