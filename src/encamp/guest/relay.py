"""One session with a machine's guest program for several processes of the host. Whoever has it
serves the others: each speaks with him as it would with the guest, and has its commands run.

Nothing is kept here for long: of each command there is never more under way than its reader, here
or in the machine, has said to have room for.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections import deque
from collections.abc import Awaitable

from encamp.guest.channel import Channel
from encamp.guest.frames import (
    CALL_BIT,
    CREDIT_START,
    HEADER,
    MAGIC,
    PART,
    PAYLOAD_LIMIT,
    STDERR,
    STDOUT,
    U32,
    U64,
    VERSION,
    Bytes,
    Frame,
    Key,
    Type,
    decode_fields,
    encode,
    encode_fields,
)
from encamp.guest.messages import EXEC_LIMIT
from encamp.model.errors import EncampError

GRACE = 2.0
"""Seconds in which a command ends that nobody wants any more; then it is killed. As with the guest
program, when a session ends."""

OF_STREAMS = frozenset({Type.DATA, Type.END, Type.CREDIT, Type.SIGNAL, Type.RESIZE, Type.GO})
PIECE = 1 << 18
OUT_MOST = 1 << 25
"""Bytes that wait for a client at the most: more is said by no machine to one that listens."""


class Relay:
    """Serves whoever connects to `listener`, which is its own from now on; so many at a time, at
    the `most`."""

    def __init__(
        self, channel: Channel, listener: socket.socket, machine: bytes, most: int
    ) -> None:
        self.channel = channel
        self.machine = machine
        self.clients: set[Client] = set()
        """Those who are connected,"""
        self.came = 0
        """and how many have been so far."""
        self._listener = listener
        self._most = most
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._knocked)
        channel.called.other_for = self._who_answers

    def stop_listening(self) -> None:
        """Nobody else is let in."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def dismiss(self, sentence: str) -> None:
        """Tell those who are connected why they will not be much longer."""
        for client in list(self.clients):
            client.refuse(0, errno.ESHUTDOWN, sentence)

    def close(self) -> None:
        self.stop_listening()
        for client in list(self.clients):
            client.close()

    def _who_answers(self, stream: int) -> Client | None:
        """Calls of a client's commands are the client's; those of nobody's anybody's."""
        offering = [client for client in self.clients if client.offers]
        for client in offering:
            if stream in client.streams:
                return client
        return offering[0] if offering and self.channel.called.called is None else None

    def _knocked(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self.clients) >= self._most:
            connection.close()
            return
        self.came += 1
        self.clients.add(Client(self, connection))


class Client:
    """One of the others."""

    def __init__(self, relay: Relay, connection: socket.socket) -> None:
        self._relay = relay
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._came = bytearray()
        self._out: deque[memoryview] = deque()
        self._out_size = 0
        self._commands: dict[int, Command] = {}
        """By the numbers that the client gives them."""
        self._parts: list[Frame] = []
        """Of a command that is not said to its end."""
        self._offering: set[asyncio.Future[None]] = set()
        self.offers = False
        """Does it answer calls?"""
        self._closed = False
        connection.setblocking(False)
        self._loop.add_reader(connection.fileno(), self._readable)

    def close(self) -> None:
        """Its commands are ended."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
        self._connection.close()
        self._relay.clients.discard(self)
        self._relay.channel.called.forsake(self)
        # One may find the machine gone, and with it all the others.
        for command in list(self._commands.values()):
            command.abandon()

    # ── what it says ─────────────────────────────────────────────────────────────────────────────

    def _readable(self) -> None:
        try:
            data = self._connection.recv(PIECE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._came += data
        try:
            if not data:
                raise ConnectionResetError
            for frame in self._frames():
                self._hear(frame)
        except (OSError, EncampError):
            self.close()

    def _frames(self) -> list[Frame]:
        frames, at = [], 0
        while len(self._came) - at >= HEADER.size:
            magic, type, channel, zero, stream, length = HEADER.unpack_from(self._came, at)
            if magic != MAGIC or zero or length > PAYLOAD_LIMIT:
                raise ConnectionResetError
            after = at + HEADER.size + length
            if after > len(self._came):
                break
            frames.append(Frame(type, channel, stream, bytes(self._came[at + HEADER.size : after])))
            at = after
        del self._came[:at]
        return frames

    def _hear(self, frame: Frame) -> None:
        if frame.type == Type.HELLO:
            self._welcome(frame)
        elif frame.type == Type.EXEC:
            self._execute(frame)
        elif frame.type == Type.CALLS:
            self._offer(frame)
        elif frame.stream & CALL_BIT:
            self._relay.channel.called.answer(self, frame)
        elif frame.type in OF_STREAMS:
            # One that has just ended is not there any more, and needs nothing.
            if frame.stream in self._commands:
                self._commands[frame.stream].say(frame)
        else:
            self.refuse(frame.stream, errno.EPERM, "it is another's machine")

    def _welcome(self, frame: Frame) -> None:
        (nonce,) = decode_fields(frame.payload).get(Key.NONCE, [b""])[:1]
        fields = [
            (Key.NONCE, nonce),
            (Key.VERSION, U32.pack(VERSION)),
            (Key.MACHINE, self._relay.machine),
            (Key.PROGRAM, b"relay"),
            (Key.UPTIME, U64.pack(0)),
        ]
        self.send(encode(Type.WELCOME, 0, encode_fields(fields)))

    def _execute(self, frame: Frame) -> None:
        """All parts of one are said at once: those of others must not come in between."""
        self._parts.append(frame)
        if sum(len(part.payload) for part in self._parts) > EXEC_LIMIT:
            raise ConnectionResetError
        if frame.channel == PART:
            return
        parts, self._parts = self._parts, []
        command = self._commands[frame.stream] = Command(self, self._relay.channel, frame.stream)
        for part in parts:
            command.say(part)

    def _offer(self, frame: Frame) -> None:
        """Calls of its own commands it answers itself."""
        fields = decode_fields(frame.payload)
        wanted = self._relay.channel.offer_calls(
            [(key, value) for key, values in fields.items() for value in values]
        )
        self.offers = True
        offering = asyncio.ensure_future(self._tell_offered(frame.stream, wanted))
        self._offering.add(offering)
        offering.add_done_callback(self._offering.discard)

    async def _tell_offered(self, number: int, offered: Awaitable[None]) -> None:
        try:
            await offered
        except EncampError as error:
            self.refuse(number, errno.EIO, error.sentence)
        else:
            self.refuse(number, 0, "")

    # ── what it is told ──────────────────────────────────────────────────────────────────────────

    def refuse(self, number: int, error: int, sentence: str) -> None:
        fields = [(Key.ERROR, U32.pack(error)), (Key.TEXT, sentence.encode())]
        self.send(encode(Type.DONE, number, encode_fields(fields)))

    @property
    def streams(self) -> set[int]:
        """Of the session, those that are its commands'."""
        return {command.ours for command in self._commands.values()}

    def take_call(self, frame: Frame) -> None:
        self.send(encode(frame.type, frame.stream, frame.payload, channel=frame.channel))

    def ended(self, number: int) -> None:
        self._commands.pop(number, None)

    def send(self, piece: Bytes) -> None:
        if not self._closed:
            self._out.append(memoryview(piece))
            self._out_size += len(piece)
            if len(self._out) == 1:
                self._flush()
            if self._out_size > OUT_MOST:
                self.close()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._connection.send(self._out[0], socket.MSG_NOSIGNAL)
                self._out_size -= sent
                self._out[0] = self._out[0][sent:]
                if not self._out[0]:
                    self._out.popleft()
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._connection.fileno(), self._flush)
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._connection.fileno())


class Command:
    """One that a client has asked for: a stream of the session."""

    def __init__(self, client: Client, channel: Channel, number: int) -> None:
        self._client = client
        self._channel = channel
        self._its = number
        self._abandoned = False
        self.ours = channel.adopt(self)
        self._killing: asyncio.TimerHandle | None = None

    def say(self, frame: Frame) -> None:
        self._channel.send(encode(frame.type, self.ours, frame.payload, channel=frame.channel))

    def receive(self, frame: Frame) -> None:
        """Something of it has come from the machine."""
        if frame.type == Type.EXIT:
            self._client.ended(self._its)
            if self._killing is not None:
                self._killing.cancel()
        if not self._abandoned:
            self._client.send(encode(frame.type, self._its, frame.payload, channel=frame.channel))
        elif frame.type == Type.DATA:
            self._grant(frame.channel, len(frame.payload))

    def fail(self, error: EncampError) -> None:
        """The machine is lost."""
        if self._killing is not None:
            self._killing.cancel()
        self._client.ended(self._its)
        self._client.close()

    def abandon(self) -> None:
        """Nobody wants it any more: it ends, and what it still prints goes nowhere."""
        self._abandoned = True
        for channel in (STDOUT, STDERR):
            self._grant(channel, CREDIT_START)
        self._signal(signal.SIGHUP)
        loop = asyncio.get_running_loop()
        self._killing = loop.call_later(GRACE, self._signal, signal.SIGKILL)

    def _grant(self, channel: int, count: int) -> None:
        self._channel.send(encode(Type.CREDIT, self.ours, U32.pack(count), channel=channel))

    def _signal(self, number: int) -> None:
        self._channel.send(encode(Type.SIGNAL, self.ours, U32.pack(number)))
