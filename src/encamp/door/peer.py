"""Who is asking: what the kernel says of the process at the other end of a socket."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from typing import Protocol

import msgspec

from encamp.home import MACHINES_ACCOUNT, user_name
from encamp.model.errors import Code, EncampError
from encamp.model.token import Scope

CREDENTIALS = struct.Struct("iII")
SO_PEERGROUPS = 59
"""Linux's number for it; Python's socket module has no name for it."""
MOST_GROUPS = 256
"""As many as Python lets one ask for."""

NOBODY = -1
"""The number of no user: whoever shows a token is none of this host's."""


class HasOptions(Protocol):
    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


class Peer(msgspec.Struct, frozen=True):
    """Whoever asks: a process on this host, or the holder of a token at another door."""

    uid: int
    gid: int
    pid: int
    user: str
    """The user's name; the number, if it has none."""
    groups: tuple[str, ...]
    """Names of all groups that the process is in."""
    scope: Scope | None = None
    """How far the token goes that was shown; None: the kernel's word is enough."""
    token: str = ""
    """Its id."""
    address: str = ""
    """Where the holder of the token is."""


def peer_of(connection: HasOptions) -> Peer:
    """Looks names up, which may take a while: not for the thread of an event loop. Raises if it is
    the process of a machine of root's: one that asks has been taken over."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(found)
    groups = {group_name(number) for number in (gid, *_other_groups(connection))}
    user = user_name(uid)
    check_asker(user)
    return Peer(uid, gid, pid, user, tuple(sorted(groups)))


def check_asker(user: str) -> None:
    """Nothing is done for the account of root's machines, unless it is this process's own."""
    if user == MACHINES_ACCOUNT and user != user_name(os.geteuid()):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"The account '{user}' is for the processes of root's machines, and may ask for"
            " nothing.",
            "Ask as another account.",
        )


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


def uid_named(user: str) -> int:
    """A user's number, by name or in digits. Looks names up, like `peer_of`."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return int(user) if user.isdecimal() else NOBODY


def groups_named(user: str) -> tuple[str, ...]:
    """Names of all groups that a user is in; none, if there is no such user here."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return ()
    return tuple(sorted({group_name(gid) for gid in os.getgrouplist(user, entry.pw_gid)}))


def network(address: str) -> str:
    """Whoever has one address of IPv6 has 2**64 of them."""
    import ipaddress

    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4 or parsed.ipv4_mapped:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
