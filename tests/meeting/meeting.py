"""A host's meeting point with jobs behind it, and clients that come to it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from encamp.agent.commands.directory import Request
from encamp.agent.commands.records import Records
from encamp.agent.meeting.point import SOCKET, MeetingPoint
from encamp.door.questions import Ticket
from encamp.door.socket_file import short
from encamp.home import Home
from encamp.meeting.client import Client
from encamp.meeting.frames import Role
from encamp.meeting.host import Conversation
from encamp.meeting.kept import Kept
from encamp.meeting.tickets import digest
from encamp.model.job import Outcome
from encamp.model.meeting import Meeting
from encamp.model.site import MeetingPlace, Site

SECRET = "s3cret" * 8
OUTCOME = Outcome(machine="m", exit_code=3, reason="exit code 3", started=True)


class Host:
    """An agent's meeting point in a home of its own, and the jobs of which it knows."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root / "home").prepare()
        self.records = Records(self.home)
        self.records.prepare()
        self.port = 0
        self._point: MeetingPoint | None = None

    async def open(self) -> None:
        listen = f"127.0.0.1:{self.port}"
        site = Site(meeting=MeetingPlace(listen=listen, address="127.0.0.1"))
        self._point = MeetingPoint(self.home, "here", "0123456789abcdef", site)
        await self._point.__aenter__()
        self.port = self.meeting.port

    async def close(self) -> None:
        assert self._point is not None
        await self._point.__aexit__(None, None, None)

    @property
    def meeting(self) -> Meeting:
        assert self._point is not None
        assert self._point.meeting is not None
        assert not self._point.trouble
        return self._point.meeting

    def ticket(self, id: str, *, network: bool = False, secret: str = SECRET) -> Ticket:
        found = self.meeting
        if network:
            found = Meeting(address=found.address, port=found.port, fingerprint=found.fingerprint)
        return Ticket(host="here", id=id, secret=secret, meeting=found)

    def know(self, id: str) -> Path:
        """The agent was told of a command; its process has not begun."""
        directory = self.records.directory(id)
        directory.journal(
            Request(
                id=id,
                name="request.run",
                arguments={"ticket": digest(SECRET)},
                issuer="somebody",
                timeout=60,
                received=time.time(),
            )
        )
        return directory.path

    @asynccontextmanager
    async def job(self, id: str, *, detached: bool = False) -> AsyncIterator[Conversation]:
        """What carries a command out, at its socket."""
        path = self.know(id)
        kept: Kept | None = None
        async with AsyncExitStack() as held:
            if detached:
                (path / "kept").mkdir(exist_ok=True)
                kept = Kept(path / "kept")
                held.callback(kept.close)
            listener = socket.socket(socket.AF_UNIX)
            with short(path / SOCKET) as address:
                listener.bind(address)
            listener.listen()
            conversation = Conversation(digest(SECRET), kept)
            async with conversation.serve(listener):
                yield conversation


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[Host]:
    made = Host(root)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


class Streams:
    """Gives what it is told to, and takes what comes, if it may."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.out = bytearray()
        self.error = bytearray()
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.given = 0
        self.endless = False

    async def read(self) -> bytes:
        if self.pieces:
            piece = self.pieces.pop(0)
            self.given += len(piece)
            return piece
        if self.endless:
            await asyncio.get_running_loop().create_future()
        return b""

    async def write(self, data: bytes) -> None:
        await self.may_take.wait()
        self.out += data

    async def write_error(self, data: bytes) -> None:
        self.error += data


class Files:
    """Archives as they are: what is in them is not the business of a conversation."""

    def __init__(self, *archives: list[bytes]) -> None:
        self.archives = archives
        self.names: dict[int, str] = {}
        self.came: dict[int, bytes] = {}

    async def pack(self, number: int, name: str) -> AsyncIterator[bytes]:
        self.names[number] = name
        for piece in self.archives[number]:
            yield piece

    async def unpack(self, number: int, pieces: AsyncIterable[bytes]) -> None:
        assert number not in self.came
        self.came[number] = b"".join([piece async for piece in pieces])


def client(
    ticket: Ticket,
    streams: Streams | None = None,
    role: Role = Role.RUN,
    files: Files | None = None,
) -> Client:
    return Client(ticket, role, streams=streams or Streams(), files=files or Files())


async def until(condition: object, *, within: float = 20.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


class Breaking:
    """Stands between client and host, and breaks their connection whenever it is told to."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.connections = 0
        self.every = 0
        """Bytes after which a connection breaks by itself; 0: never."""
        self._to = port
        self._pairs: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[Breaking]:
        server = await asyncio.start_server(self._opened, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await asyncio.sleep(0)

    def cut(self) -> None:
        for writer in list(self._pairs):
            # With a reset, as from a router that has forgotten the connection.
            connection = writer.get_extra_info("socket")
            if connection is not None and connection.fileno() >= 0:
                linger = b"\1\0\0\0\0\0\0\0"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        self._pairs.clear()

    def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._pairs |= {writer, onward}
        passed = 0

        async def one_way(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            nonlocal passed
            try:
                while data := await source.read(65536):
                    passed += len(data)
                    target.write(data)
                    await target.drain()
                    if self.every and passed > self.every:
                        self.cut()
            except OSError:
                pass

        tasks = [
            asyncio.create_task(one_way(reader, onward)),
            asyncio.create_task(one_way(there, writer)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for end in (writer, onward):
            end.transport.abort()
            self._pairs.discard(end)
