"""The host's side of one session with a machine's guest program, over one port."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from encamp.guest.call import Call, Calls
from encamp.guest.frames import (
    CALL_BIT,
    FLUSH,
    U32,
    VERSION,
    Bytes,
    Frame,
    Key,
    Parser,
    Type,
    decode_fields,
    encode,
    encode_fields,
    number,
    senseless,
    text,
)
from encamp.guest.messages import (
    EXEC_LIMIT,
    Exec,
    Exit,
    File,
    Hello,
    Kind,
    Network,
    User,
    Welcome,
)
from encamp.guest.stream import Output, Stream
from encamp.model.errors import Code, EncampError

__all__ = [
    "Call",
    "Channel",
    "Exec",
    "Exit",
    "File",
    "Hello",
    "Kind",
    "Network",
    "Output",
    "Stream",
    "User",
    "Welcome",
]

OUT_HIGH = 262144
"""More than this waiting to be sent makes writers wait."""
OUT_MOST, PIECES_MOST = 2 * EXEC_LIMIT, 1 << 15
"""Bytes and pieces that wait at the most when the guest says something. One that has us answer all
the time and takes nothing of it is not to fill the host's memory."""
PIECES_AT_ONCE = 64
READS_AT_ONCE = 8
"""Other tasks get their turn after this many reads."""


class Taker(Protocol):
    """Takes what the guest says on one stream. An EXIT is the last of it."""

    def receive(self, frame: Frame) -> None: ...

    def fail(self, error: EncampError) -> None: ...


class Channel:
    """One session. Requests are sent at once and answered later: nothing needs to be awaited
    before the next is made, and the machine handles them in order."""

    def __init__(self, sock: socket.socket, nonce: bytes) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._parser = Parser(nonce)
        self._out: deque[memoryview] = deque()
        self._out_size = 0
        self._writing = False
        self._drained: deque[asyncio.Future[None]] = deque()
        self._next = 1
        self._streams: dict[int, Stream | Taker] = {}
        self.called = Calls(self)
        """What is called in the machine."""
        self._requests: dict[int, tuple[str, asyncio.Future[None]]] = {}
        self._welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._welcome.add_done_callback(_heed)
        self._error: EncampError | None = None
        self._closed = False

    @classmethod
    async def open(cls, sock: socket.socket, hello: Hello, *, fresh: bool) -> Channel:
        """Begin a session on a connected socket, which is the channel's from now on.

        `fresh`: nobody has used this port of this machine before.
        """
        sock.setblocking(False)
        channel = cls(sock, hello.nonce)
        channel._loop.add_reader(sock.fileno(), channel._readable)
        if not fresh:
            channel.send(FLUSH)
        channel.send(hello.encode())
        return channel

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def welcome(self) -> Welcome:
        """The guest's answer to the HELLO. There is no time limit here; set one around it."""
        return await asyncio.shield(self._welcome)

    @property
    def error(self) -> EncampError | None:
        """Why the session is over, if it is."""
        return self._error

    def user(self, user: User) -> Awaitable[None]:
        return self._request(Type.USER, f"user '{user.name}'", user.fields())

    def mount(self, tag: str, path: str, *, readonly: bool = False) -> Awaitable[None]:
        fields: list[tuple[int, bytes]] = [
            (Key.TAG, tag.encode()),
            (Key.PATH, os.fsencode(path)),
        ]
        if readonly:
            fields.append((Key.READONLY, b""))
        return self._request(Type.MOUNT, f"share '{path}'", fields)

    def network(self, network: Network) -> Awaitable[None]:
        return self._request(Type.NETWORK, "the network", network.fields())

    def calls(
        self, directory: str, names: Iterable[str], uid: int, called: Callable[[Call], None]
    ) -> Awaitable[None]:
        """Have commands of these names in a directory of the machine: `called` is told of each
        time that a process of the user's runs one."""
        self.called.called = called
        fields: list[tuple[int, bytes]] = [
            (Key.PATH, os.fsencode(directory)),
            (Key.UID, U32.pack(uid)),
        ]
        fields += [(Key.NAME, os.fsencode(name)) for name in names]
        return self.offer_calls(fields)

    def offer_calls(self, fields: list[tuple[int, bytes]]) -> Awaitable[None]:
        return self._request(Type.CALLS, "commands of the host's", fields)

    async def unmount(self) -> None:
        """Unmount all shares; fails while something in the machine uses one."""
        await self._request(Type.UNMOUNT, "unmounting", [])

    async def ping(self) -> None:
        await self._request(Type.PING, "a sign of life", [])

    def poweroff(self) -> None:
        """Ask the machine to end; the session is lost when it has."""
        self.send(encode(Type.POWEROFF, 0))

    def execute(self, command: Exec) -> Stream:
        if self._error is not None:
            raise self._error
        number = self._new_number()
        request = command.encode(number)
        stream = self._streams[number] = Stream(self, number)
        self.send(request)  # Finding the machine gone, this ends all streams.
        return stream

    def adopt(self, taker: Taker) -> int:
        """Have somebody else speak on a new stream, in frames; its number."""
        if self._error is not None:
            raise self._error
        number = self._new_number()
        self._streams[number] = taker
        return number

    async def close(self) -> None:
        """End the session; the guest ends the commands that are still running in it."""
        if not self._closed:
            self._end(EncampError(Code.MACHINE_LOST, "The session with the machine was closed."))

    def _new_number(self) -> int:
        while self._next == 0 or self._next in self._streams or self._next in self._requests:
            self._next = (self._next + 1) % CALL_BIT
        number = self._next
        self._next = (self._next + 1) % CALL_BIT
        return number

    def _request(
        self, type: Type, what: str, fields: list[tuple[int, bytes]]
    ) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(_heed)
        if self._error is not None:
            done.set_exception(self._error)
            return done
        stream = self._new_number()
        frame = encode(type, stream, encode_fields(fields))
        self._requests[stream] = (what, done)
        self.send(frame)
        return done

    # Sending

    def send(self, *pieces: Bytes) -> None:
        """Send, or keep for later what the socket does not take now."""
        if self._closed:
            return
        for piece in pieces:
            self._out.append(memoryview(piece))
            self._out_size += len(piece)
        if not self._writing:
            self._flush()

    def _check_out(self) -> None:
        if self._out_size > OUT_MOST or len(self._out) > PIECES_MOST:
            raise senseless("so much to be answered, while it hears nothing")

    async def drained(self) -> None:
        """Wait until what is to be sent is little enough to add to it."""
        while self._out_size > OUT_HIGH and not self._closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(waiter)
            await waiter

    def _flush(self) -> None:
        try:
            while self._out:
                batch = [self._out[i] for i in range(min(len(self._out), PIECES_AT_ONCE))]
                sent = self._sock.sendmsg(batch)
                self._out_size -= sent
                while sent:
                    piece = self._out[0]
                    if sent < len(piece):
                        self._out[0] = piece[sent:]
                        break
                    sent -= len(piece)
                    self._out.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(_lost(error))
            return
        if bool(self._out) != self._writing:
            self._writing = bool(self._out)
            if self._writing:
                self._loop.add_writer(self._sock.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._sock.fileno())
        if self._out_size <= OUT_HIGH:
            self._wake_writers()

    def _wake_writers(self) -> None:
        while self._drained:
            waiter = self._drained.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # Receiving

    def _readable(self) -> None:
        try:
            for _ in range(READS_AT_ONCE):
                room = self._parser.room()
                count = self._sock.recv_into(room)
                if count == 0:
                    self._end(_lost(None))
                    return
                for frame in self._parser.advance(count):
                    self._receive(frame)
                    self._check_out()
                if count < len(room):
                    return
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(_lost(error))
        except EncampError as error:
            self._end(error)

    def _receive(self, frame: Frame) -> None:
        if frame.type == Type.WELCOME:
            welcome = Welcome.decode(frame.payload)
            if welcome.version != VERSION:
                raise EncampError(
                    Code.PROTOCOL,
                    f"The machine's guest program speaks version {welcome.version} of the "
                    f"protocol, and this host version {VERSION}.",
                    "Build the image again.",
                )
            if not self._welcome.done():
                self._welcome.set_result(welcome)
        elif frame.type in (Type.DONE, Type.PONG):
            self._answer(frame)
        elif frame.stream & CALL_BIT:
            self.called.receive(frame)
        else:
            # Unknown ones were abandoned here while the guest was still sending.
            stream = self._streams.get(frame.stream)
            if stream is not None:
                stream.receive(frame)
                if frame.type == Type.EXIT:
                    del self._streams[frame.stream]

    def _answer(self, frame: Frame) -> None:
        error, sentence = 0, ""
        if frame.type == Type.DONE:
            fields = decode_fields(frame.payload)
            error, sentence = number(fields, Key.ERROR), text(fields, Key.TEXT)
        if frame.stream == 0:
            raise EncampError(
                Code.PROTOCOL, f"The machine's guest program dropped the session: {sentence}."
            )
        if frame.stream not in self._requests:
            raise senseless("an answer to what was not asked")
        what, done = self._requests.pop(frame.stream)
        if done.done():
            return
        if error:
            done.set_exception(_refused(what, error, sentence))
        else:
            done.set_result(None)

    # The end

    def _end(self, error: EncampError) -> None:
        if self._closed:
            return
        self._closed = True
        self._error = error
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._out.clear()
        self._out_size = 0
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        self.called.fail()
        requests, self._requests = self._requests, {}
        for _, done in requests.values():
            if not done.done():
                done.set_exception(error)
        if not self._welcome.done():
            self._welcome.set_exception(error)
        self._wake_writers()


def _heed(future: asyncio.Future[None] | asyncio.Future[Welcome]) -> None:
    """A pipelined request need not be awaited: its failure also shows in the command after it."""
    if not future.cancelled():
        future.exception()


def _lost(error: OSError | None) -> EncampError:
    return EncampError(
        Code.MACHINE_LOST,
        "The machine ended while it was being talked to.",
        "",
        transient=True,
        detail="" if error is None else str(error),
    )


def _refused(what: str, error: int, sentence: str) -> EncampError:
    said = sentence or os.strerror(error)
    code = Code.WRONG_STATE if error == errno.EBUSY else Code.CONFIGURATION
    return EncampError(code, f"The machine refused {what}: {said}.")
