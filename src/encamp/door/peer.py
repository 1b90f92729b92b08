"""Who is asking: what the kernel says of the process at the other end of a socket."""

from __future__ import annotations

import grp
import socket
import struct
from typing import Protocol

import msgspec

from encamp.home import user_name

CREDENTIALS = struct.Struct("iII")
SO_PEERGROUPS = 59
"""Linux's number for it; Python's socket module has no name for it."""
MOST_GROUPS = 256
"""As many as Python lets one ask for."""


class HasOptions(Protocol):
    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


class Peer(msgspec.Struct, frozen=True):
    uid: int
    gid: int
    pid: int
    user: str
    """The user's name; the number, if it has none."""
    groups: tuple[str, ...]
    """Names of all groups that the process is in."""


def peer_of(connection: HasOptions) -> Peer:
    """Looks names up, which may take a while: not for the thread of an event loop."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(found)
    groups = {group_name(number) for number in (gid, *_other_groups(connection))}
    return Peer(uid, gid, pid, user_name(uid), tuple(sorted(groups)))


def _other_groups(connection: HasOptions) -> tuple[int, ...]:
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * MOST_GROUPS)
    except OSError:
        return ()  # More than fit: what is not known gives no rights.
    return tuple(number for (number,) in struct.iter_unpack("I", found))


def uid_of(connection: HasOptions) -> int:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(found)[1])


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
