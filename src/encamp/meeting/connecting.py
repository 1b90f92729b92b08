"""Reaching the agent that a ticket is for: on the same host through a socket, else over TLS."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

from encamp.door.peer import uid_of
from encamp.door.questions import Ticket
from encamp.door.socket_file import short
from encamp.meeting.here import boot_id
from encamp.meeting.line import UNREAD, Line, keep_alive
from encamp.model.errors import Code, EncampError
from encamp.model.meeting import Meeting

PATIENCE = 10.0
"""Seconds that connecting may take."""


async def connect(ticket: Ticket) -> Line:
    meeting = ticket.meeting
    if meeting is None:
        raise EncampError(
            Code.UNREACHABLE,
            f"Host {ticket.host} takes no clients: jobs there cannot be spoken with.",
            "Set 'meeting' in its site.yaml, and see its agent's log.",
        )
    try:
        async with asyncio.timeout(PATIENCE):
            line = await _on_this_host(meeting)
            return line if line is not None else await _over_network(ticket.host, meeting)
    except TimeoutError:
        raise _unreachable(ticket.host, meeting, "no answer") from None


async def _on_this_host(meeting: Meeting) -> Line | None:
    """Through the agent's socket, if it is one of this host's; it may be deaf, though. Before
    anything is said to it, it must be certain that no other user could have put it there."""
    if not meeting.socket or not meeting.boot or meeting.boot != boot_id():
        return None
    agent = (0, meeting.user)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with short(Path(meeting.socket)) as address:
            found = Path(address).parent.stat()
            if found.st_uid not in agent or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError
            await asyncio.get_running_loop().sock_connect(connection, address)
        if uid_of(connection) not in agent:
            raise PermissionError
        return Line(*await asyncio.open_unix_connection(sock=connection, limit=UNREAD))
    except OSError:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise


async def _over_network(host: str, meeting: Meeting) -> Line:
    from encamp.meeting.certificates import check_fingerprint, client_context

    if not meeting.port:
        raise _unreachable(host, meeting, "it listens on no address of a network")
    try:
        reader, writer = await asyncio.open_connection(
            meeting.address, meeting.port, ssl=client_context(), server_hostname="", limit=UNREAD
        )
    except OSError as error:
        raise _unreachable(host, meeting, error.strerror or str(error)) from error
    line = Line(reader, writer)
    try:
        where = f"{meeting.address}:{meeting.port}"
        check_fingerprint(writer.get_extra_info("ssl_object"), meeting.fingerprint, where)
        keep_alive(writer.get_extra_info("socket"))
    except BaseException:
        line.abort()
        raise
    return line


def _unreachable(host: str, meeting: Meeting, why: str) -> EncampError:
    where = f" at {meeting.address}:{meeting.port}" if meeting.port else ""
    return EncampError(
        Code.UNREACHABLE,
        f"Host {host} cannot be reached{where}: {why}.",
        "Clients on other hosts need 'meeting' in its site.yaml.",
        transient=True,
    )
