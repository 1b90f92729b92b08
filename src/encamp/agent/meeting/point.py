"""Where clients meet what runs on this host.

Whoever comes shows a ticket. With the right one they are joined with the process that carries out
the command it is for, and the agent only passes on what the two say to each other. Of a detached
job that is over, the agent shows what it has left.

There is a socket for clients on this host. On a network the agent listens only with TLS, and where
its site is not all on this host.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import msgspec

from encamp.agent.commands.directory import ID, CommandDirectory
from encamp.agent.commands.records import Records
from encamp.agent.meeting.addresses import Network, address_towards, listening_address
from encamp.agent.meeting.joining import Ends, join, reach
from encamp.agent.meeting.limits import Places
from encamp.door.frames import Failure
from encamp.door.peer import network, uid_of
from encamp.door.socket_file import BACKLOG, listening
from encamp.home import Home
from encamp.meeting.frames import Failed, Refused, Show
from encamp.meeting.here import boot_id
from encamp.meeting.kept import kept
from encamp.meeting.line import UNREAD, Line, keep_alive
from encamp.meeting.reception import Remains, shown, wrong_ticket
from encamp.meeting.tickets import matches
from encamp.model.errors import Code, EncampError
from encamp.model.meeting import Meeting
from encamp.model.site import Site

log = logging.getLogger(__name__)

SOCKET = "meet"
"""In a command's directory: where the process listens that carries it out."""

SHOWING = 10.0
"""Seconds that somebody has to show a ticket, TLS included."""
UNKNOWN = 10.0
"""Seconds for which one is kept waiting whose ticket is for what this host has not heard of: it may
be told of it in a moment."""
STARTING = 120.0
"""Seconds that a command which was taken has to begin."""
SHORTEST_LOOK, LONGEST_LOOK = 0.002, 0.05
"""Seconds between two looks at whether something is there,"""
GROWTH = 1.5
"""and by how much they become rarer each time."""


class Met(msgspec.Struct, frozen=True):
    """Somebody whose ticket is good."""

    show: Show
    digest: str
    directory: CommandDirectory


class MeetingPoint:
    """Stands open while `async with` does."""

    def __init__(self, home: Home, name: str, home_id: str, site: Site) -> None:
        self.meeting: Meeting | None = None
        """Where it is, as the manager is told."""
        self.trouble = ""
        """Why it is not to be found on a network, where it should be."""
        self._home = home
        self._name = name
        self._site = site
        # One of its kind: wherever there is a socket of this name, it is ours.
        self._path = home.root / f"meeting-{home_id[:16]}.sock"
        self._records = Records(home)
        self._on_host, self._on_network = Places(), Places()
        self._held = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as held:
            held.push_async_callback(self._end)
            listener = held.enter_context(listening(self._path))
            server = await asyncio.start_unix_server(
                self._opened, sock=listener, limit=UNREAD, backlog=BACKLOG
            )
            held.callback(server.close)
            network = await self._listen(held)
            self.meeting = Meeting(
                address=network.address,
                port=network.port,
                fingerprint=network.fingerprint,
                socket=str(self._path),
                boot=boot_id(),
                user=os.geteuid(),
            )
            self._held = held.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._held.aclose()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # The connections that were just broken off are closed in the loop's next round.
        await asyncio.sleep(0)

    async def _listen(self, held: AsyncExitStack) -> Network:
        """On a network, if that is wanted. That it fails is told, and no reason not to work."""
        try:
            place = await asyncio.to_thread(listening_address, self._site)
            if place is None:
                return Network()
            from encamp.meeting.certificates import Certificate

            certificate = Certificate(self._home.root)
            await asyncio.to_thread(certificate.make, self._name)
            self._tls = certificate.server()
            server = await asyncio.start_server(self._opened, *place, limit=UNREAD, backlog=BACKLOG)
            held.callback(server.close)
            reached = self._site.meeting.address or address_towards(self._site)
            port = server.sockets[0].getsockname()[1]
            return Network(reached or socket.gethostname(), port, certificate.fingerprint())
        except (EncampError, OSError) as error:
            why = error.sentence if isinstance(error, EncampError) else f"{error.strerror}."
            self.trouble = f"Clients on other hosts cannot come here: {why}"
            log.warning("%s", self.trouble)
            return Network()

    # ── somebody comes ───────────────────────────────────────────────────────────────────────────

    def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: Ends) -> None:
        writer = client[1]
        connection: socket.socket = writer.get_extra_info("socket")
        local = connection.family == socket.AF_UNIX
        # Whose places are counted, not who may do what.
        if local:
            who = str(uid_of(connection))
        else:
            who = network(str(writer.get_extra_info("peername")[0]))
        try:
            if not local:
                with self._on_network.waiting(who):
                    await self._encrypt(writer, connection)
            await self._receive(client, who, local=local)
        except (OSError, EOFError, TimeoutError, EncampError):
            # It did not even come as far as to be told.
            writer.transport.abort()
        except BaseException:
            writer.transport.abort()
            raise

    async def _encrypt(self, writer: asyncio.StreamWriter, connection: socket.socket) -> None:
        assert self._tls is not None
        keep_alive(connection)
        await writer.start_tls(self._tls, ssl_handshake_timeout=SHOWING)

    async def _receive(self, client: Ends, who: str, *, local: bool) -> None:
        line = Line(*client)
        places = self._on_host if local else self._on_network
        try:
            with places.waiting(who):
                met = await self._recognise(line)
            with places.talking(who):
                process = await self._process(met)
                if process is not None:
                    await join(client, process, met.show, local=local)
                else:
                    await self._show_remains(met, line)
        except EncampError as error:
            line.send(Refused(Failure.of(error)))
            await line.close()

    async def _recognise(self, line: Line) -> Met:
        async with asyncio.timeout(SHOWING):
            show = await shown(line)
        directory = await self._known(show.id)
        request = await asyncio.to_thread(directory.read_request)
        if request is None:
            # It may have been put away since it was found.
            directory = await self._known(show.id)
            request = await asyncio.to_thread(directory.read_request)
        digest = "" if request is None else request.arguments.get("ticket")
        if not isinstance(digest, str) or not matches(digest, show.secret):
            raise wrong_ticket()
        return Met(show, digest, directory)

    async def _known(self, id: str) -> CommandDirectory:
        if ID.fullmatch(id) is None:
            raise wrong_ticket()
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + UNKNOWN, SHORTEST_LOOK
        while True:
            found = self._records.find(id)
            if found is not None and (found.request.exists() or found.begun.exists()):
                return found
            if loop.time() >= until or self._records.is_over(id):
                raise wrong_ticket()
            await asyncio.sleep(pause)
            pause = min(LONGEST_LOOK, pause * GROWTH)

    async def _process(self, met: Met) -> Ends | None:
        """The process that carries the command out, as soon as it listens; None: it is over."""
        loop = asyncio.get_running_loop()
        until, pause, over = loop.time() + STARTING, SHORTEST_LOOK, False
        while loop.time() < until:
            directory = self._records.find(met.show.id)
            process = None if directory is None else await reach(directory.path / SOCKET)
            if process is not None or over:
                return process
            # One more look: it may have begun and ended since the last one.
            over = self._is_over(met.show.id, directory)
            if not over:
                await asyncio.sleep(pause)
                pause = min(LONGEST_LOOK, pause * GROWTH)
        raise EncampError(
            Code.NO_ANSWER, f"The command was not begun within {STARTING:.0f} seconds."
        )

    def _is_over(self, id: str, directory: CommandDirectory | None) -> bool:
        return directory is None or directory.result.exists() or self._records.is_over(id)

    def _reason(self, id: str) -> str:
        return self._records.end_of(id).reason if self._records.is_over(id) else ""

    async def _show_remains(self, met: Met, line: Line) -> None:
        directory = self._records.find(met.show.id)
        if directory is None or not directory.kept.is_dir():
            raise EncampError(
                Code.WRONG_STATE,
                self._reason(met.show.id)
                or "It is over, and nothing of it is kept on its host any more.",
            )
        with kept(directory.kept) as left:
            final = left.outcome() or Failed(Failure.of(_no_outcome(directory)))
            await Remains(met.digest, left, final).take(line, met.show)


def _no_outcome(directory: CommandDirectory) -> EncampError:
    result = directory.read_result()
    why = f": {result.reason}" if result is not None and result.reason else "."
    return EncampError(Code.MACHINE_LOST, f"It was ended before it could say how{why}")
