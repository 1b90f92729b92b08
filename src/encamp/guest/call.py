"""Calls on the host's side: commands that processes of a machine want to have run here.

Whoever calls may have any program speak for him, and root in the machine may say anything at all.
What makes no sense ends the call, and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from encamp.guest.frames import (
    CREDIT_LIMIT,
    HEADER,
    PART,
    PAYLOAD_LIMIT,
    STDERR,
    STDIN,
    STDOUT,
    U32,
    WHOLE,
    Frame,
    Key,
    Type,
    decode_fields,
    encode,
    encode_fields,
)
from encamp.guest.messages import COMMAND_LIMIT, Exit, Kind
from encamp.guest.stream import Line
from encamp.model.errors import EncampError

CREDIT = 65536
"""Bytes that may be on their way in each direction. A frame costs its header, too."""
BATCH = CREDIT // 4
"""So many are granted anew at once."""
MOST_CALLS = 64
"""At a time. The guest program has its callers wait before that."""
MOST_WAITING = 4 * COMMAND_LIMIT
"""Bytes of calls that have not been said to their end."""


def parts_of(type: Type, number: int, payload: bytes) -> Iterator[Frame]:
    """What does not fit into one frame."""
    last = max(0, len(payload) - 1) // PAYLOAD_LIMIT
    for part in range(last + 1):
        piece = payload[part * PAYLOAD_LIMIT : (part + 1) * PAYLOAD_LIMIT]
        yield Frame(type, WHOLE if part == last else PART, number, piece)


class Asked(msgspec.Struct, frozen=True):
    """What is to be run, as the caller says."""

    args: tuple[bytes, ...]
    env: tuple[bytes, ...]
    cwd: bytes
    caller: int = 0
    """The stream of the command that calls, as the guest program says; 0: it is not known."""

    @classmethod
    def decode(cls, payload: bytes) -> Asked:
        fields = decode_fields(payload)
        args, env = fields.get(Key.ARG, []), fields.get(Key.ENV, [])
        cwd = fields.get(Key.CWD, [b"/"])[-1]
        if not args or any(b"\0" in value for value in (*args, *env, cwd)):
            raise ValueError
        caller = fields.get(Key.CALLER, [b""])[0]
        known = U32.unpack(caller)[0] if len(caller) == U32.size else 0
        return cls(tuple(args), tuple(env), cwd, known)


class Call:
    """One of them. `gone` is done when nobody wants it any more."""

    def __init__(self, line: Line, number: int, asked: Asked) -> None:
        self.asked = asked
        self.on_signal: Callable[[int], None] = lambda number: None
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._line = line
        self._number = number
        self._chunks: deque[bytes] = deque()
        self._input_credit = 0
        self._taken = 0
        self._input_ended = False
        self._credit = {STDOUT: CREDIT, STDERR: CREDIT}
        self._changed = asyncio.Event()

    # ── what it reads ────────────────────────────────────────────────────────────────────────────

    def want_input(self) -> None:
        """The command reads. Before that nothing is taken from the caller's input, which may be
        meant for others."""
        self._grant(CREDIT)

    def stop_input(self) -> None:
        """The command does not read, or not any more."""
        if not self.gone.done():
            self._line.send(encode(Type.END, self._number, channel=STDIN))

    async def read(self) -> bytes:
        """The next that the command is to read; empty at the end."""
        while not self._chunks and not self._input_ended and not self.gone.done():
            await self._change()
        if not self._chunks:
            return b""
        chunk = self._chunks.popleft()
        self._taken += len(chunk) + HEADER.size
        if self._taken >= BATCH:
            taken, self._taken = self._taken, 0
            self._grant(taken)
        return chunk

    def _grant(self, more: int) -> None:
        self._input_credit += more
        if not self.gone.done():
            self._line.send(encode(Type.CREDIT, self._number, U32.pack(more), channel=STDIN))

    # ── what it prints, and how it ends ──────────────────────────────────────────────────────────

    async def write(self, channel: int, data: bytes) -> None:
        """What the command has printed. Returns when all of it is on its way, or nobody cares."""
        view = memoryview(data)
        while view and not self.gone.done():
            count = min(len(view), PAYLOAD_LIMIT, self._credit[channel] - HEADER.size)
            if count <= 0:
                await self._change()
                continue
            self._credit[channel] -= count + HEADER.size
            self._line.send(encode(Type.DATA, self._number, view[:count], channel=channel))
            view = view[count:]
            await self._line.drained()

    def finish(self, ended: Exit) -> None:
        """The last word."""
        if self.gone.done():
            return
        fields = [
            (Key.KIND, U32.pack(ended.kind)),
            (Key.VALUE, U32.pack(ended.value)),
            (Key.TEXT, ended.text.encode(errors="replace")[:500]),
        ]
        self._line.send(encode(Type.EXIT, self._number, encode_fields(fields)))
        self.hang_up()

    def refuse(self, number: int, sentence: str) -> None:
        self.finish(Exit(Kind.NOT_STARTED, number, sentence or os.strerror(number)))

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # ── what the guest says ──────────────────────────────────────────────────────────────────────

    def hang_up(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._changed.set()

    def receive(self, frame: Frame) -> bool:
        """Is it still wanted?"""
        match frame.type:
            case Type.DATA:
                self._input_credit -= len(frame.payload) + HEADER.size
                if self._input_credit < 0 or self._input_ended:
                    return False
                self._chunks.append(frame.payload)
            case Type.END:
                self._input_ended = True
            case Type.CREDIT:
                self._credit[frame.channel] += U32.unpack(frame.payload)[0]
                if self._credit[frame.channel] > CREDIT_LIMIT:
                    return False
            case Type.SIGNAL:
                self.on_signal(U32.unpack(frame.payload)[0])
            case _:
                return False
        self._changed.set()
        return True


class Taker(Protocol):
    """Somebody else who answers calls, in frames."""

    def take_call(self, frame: Frame) -> None: ...


class Calls:
    """All calls of a session. `other_for` names who else answers those of a stream, if any."""

    def __init__(self, line: Line) -> None:
        self.called: Callable[[Call], None] | None = None
        self.other_for: Callable[[int], Taker | None] = lambda stream: None
        self._others: dict[int, Taker] = {}
        self._line = line
        self._begun: dict[int, bytearray] = {}
        """What was said so far of those that have not been said to their end."""
        self._calls: dict[int, Call] = {}
        self._unheard: dict[int, None] = {}
        """Those that were refused before they were said to their end. They may come in any order:
        whoever passes them on does so with each when it is whole."""

    def receive(self, frame: Frame) -> None:
        number = frame.stream
        if frame.type == Type.CALL:
            self._hear(number, frame)
            return
        if number in self._others:
            self._others[number].take_call(frame)
            if frame.type == Type.EXIT:
                del self._others[number]
            return
        if frame.type == Type.EXIT:
            self._begun.pop(number, None)
            self._unheard.pop(number, None)
        call = self._calls.get(number)
        if call is not None and (call.gone.done() or not call.receive(frame)):
            call.hang_up()
            del self._calls[number]

    def fail(self) -> None:
        """The session is over."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.hang_up()

    def answer(self, taker: Taker, frame: Frame) -> None:
        """What somebody else says to one of his."""
        if self._others.get(frame.stream) is taker:
            self._line.send(encode(frame.type, frame.stream, frame.payload, channel=frame.channel))
            if frame.type == Type.EXIT:
                del self._others[frame.stream]

    def forsake(self, taker: Taker) -> None:
        """He is gone."""
        for number in [number for number, one in self._others.items() if one is taker]:
            del self._others[number]
            self._refuse(number, errno.EAGAIN, "whoever could run it is gone")

    def _hear(self, number: int, frame: Frame) -> None:
        if number in self._unheard:
            if frame.channel != PART:
                del self._unheard[number]
            return
        said = self._begun.setdefault(number, bytearray())
        said += frame.payload
        whole = sum(map(len, self._begun.values()))
        for call in [number for number, call in self._calls.items() if call.gone.done()]:
            del self._calls[call]
        if len(said) > COMMAND_LIMIT:
            self._refuse(number, errno.E2BIG, "its arguments and variables are too long", frame)
        elif whole > MOST_WAITING or self._count() > MOST_CALLS:
            self._refuse(number, errno.EAGAIN, "too many commands of the host's run already", frame)
        elif frame.channel != PART:
            del self._begun[number]
            self._begin(number, bytes(said))

    def _begin(self, number: int, said: bytes) -> None:
        try:
            asked = Asked.decode(said)
        except (EncampError, ValueError):
            self._refuse(number, errno.EINVAL, "what was asked for makes no sense")
            return
        other = self.other_for(asked.caller)
        if other is not None:
            self._others[number] = other
            for part in parts_of(Type.CALL, number, said):
                other.take_call(part)
            return
        if self.called is None:
            self._refuse(number, errno.ENOSYS, "no command of the host's can be called")
            return
        call = self._calls[number] = Call(self._line, number, asked)
        self.called(call)

    def _count(self) -> int:
        return len(self._begun) + len(self._calls) + len(self._others)

    def _refuse(self, number: int, error: int, sentence: str, at: Frame | None = None) -> None:
        self._begun.pop(number, None)
        if at is not None and at.channel == PART:
            self._unheard[number] = None
            while len(self._unheard) > MOST_CALLS:
                del self._unheard[next(iter(self._unheard))]
        Call(self._line, number, Asked((), (), b"/")).refuse(error, sentence)
