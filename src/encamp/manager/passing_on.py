"""Questions that are asked at the door of a manager which stands by: passed on to the one that
leads, over the bus, and the answer back.

Both show the manager's credential, so the leader takes the other's word for who asks. What an
answer is made of travels as it would be written at a door, in pieces that are asked for one after
the other: whoever does not read holds up nobody else.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from encamp.bus.bus import Message
from encamp.bus.reaching import Reach
from encamp.door.frames import LENGTH, End, Failure, Item, decode_part, frame, item
from encamp.door.peer import Peer
from encamp.door.questions import Question
from encamp.door.server import Answerer
from encamp.model.errors import Code, EncampError

PIECE = 512 << 10
"""Bytes of an answer that travel at once, and that wait for being asked for."""
MOST = 256
"""Questions that are being answered."""
FORGOTTEN = 15.0
"""Seconds after which nobody is taken to wait for an answer any more."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds after which more is asked for, of an answer that takes its time."""
AGAIN = 0.25
"""Seconds after which a leader that is not there is tried again."""


class UnreachedError(EncampError):
    """There is no manager that a question could be passed on to."""


class Asked(msgspec.Struct, frozen=True, tag=True):
    id: str
    peer: Peer
    question: Question


class More(msgspec.Struct, frozen=True, tag=True):
    id: str


class Enough(msgspec.Struct, frozen=True, tag=True):
    id: str


class Piece(msgspec.Struct, frozen=True):
    data: bytes
    over: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Asked | More | Enough).decode
_decode_piece = msgspec.msgpack.Decoder(Piece).decode


class _Answer:
    """One that is being given."""

    def __init__(self, items: AsyncIterator[msgspec.Struct]) -> None:
        self.asked = time.monotonic()
        self._waiting = bytearray()
        self._over = False
        self._room = asyncio.Event()
        self.task = asyncio.create_task(self._collect(items))

    async def _collect(self, items: AsyncIterator[msgspec.Struct]) -> None:
        try:
            async for one in items:
                self._waiting += item(one)
                while len(self._waiting) > PIECE:
                    self._room.clear()
                    await self._room.wait()
            self._waiting += frame(End())
        except EncampError as error:
            self._waiting += frame(Failure.of(error))
        finally:
            self._over = True
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def piece(self) -> Piece:
        self.asked = time.monotonic()
        data = bytes(self._waiting[:PIECE])
        del self._waiting[:PIECE]
        self._room.set()
        return Piece(data, self._over and not self._waiting)


class Answering:
    """The leader's side, while `async with` lasts."""

    def __init__(self, answer: Answerer) -> None:
        self._answer = answer
        self._answers: dict[str, _Answer] = {}

    async def take(self, message: Message) -> bytes:
        said = _decode(message.body)
        match said:
            case Asked():
                await self._forget()
                if len(self._answers) >= MOST:
                    raise EncampError(
                        Code.NO_ROOM, "Too many questions are being answered.", transient=True
                    )
                if said.id not in self._answers:
                    self._answers[said.id] = _Answer(self._answer(said.peer, said.question))
            case More():
                return self._more(said.id)
            case Enough():
                await self._end(said.id)
        return b""

    def _more(self, id: str) -> bytes:
        answer = self._answers.get(id)
        if answer is None:
            raise EncampError(Code.WRONG_STATE, "Nobody asked that here.", transient=True)
        return _encode(answer.piece())

    async def _forget(self) -> None:
        limit = time.monotonic() - FORGOTTEN
        for id, answer in list(self._answers.items()):
            if answer.asked < limit:
                await self._end(id)

    async def _end(self, id: str) -> None:
        answer = self._answers.pop(id, None)
        if answer is not None:
            answer.task.cancel()
            await asyncio.gather(answer.task, return_exceptions=True)

    async def close(self) -> None:
        for id in list(self._answers):
            await self._end(id)


async def pass_on(
    reach: Reach, peer: Peer, question: Question, patience: float
) -> AsyncGenerator[Item, None]:
    """The answer of the manager that leads. Raises its errors; `UnreachedError`, if there is none
    within `patience`, and `ConnectionError`, if it goes away in the middle of its answer."""
    id = uuid.uuid4().hex
    await _ask(reach, Asked(id, peer, question), patience)
    try:
        waiting = bytearray()
        pause = FIRST_PAUSE
        while True:
            try:
                piece = _decode_piece(await reach.request(_encode(More(id))))
            except EncampError as error:
                raise ConnectionError(error.sentence) from error
            waiting += piece.data
            for part in _parts(waiting):
                if isinstance(part, Failure):
                    raise part.error()
                if isinstance(part, End):
                    return
                if isinstance(part, Item):
                    yield part
            if piece.over:
                raise ConnectionError("the answer broke off")
            pause = FIRST_PAUSE if piece.data else min(2 * pause, LONGEST_PAUSE)
            if not piece.data:
                await asyncio.sleep(pause)
    finally:
        reach.tell(_encode(Enough(id)))


async def _ask(reach: Reach, asked: Asked, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            await reach.request(_encode(asked))
            return
        except EncampError as error:
            if not error.transient or time.monotonic() > deadline:
                raise UnreachedError(
                    Code.UNREACHABLE, error.sentence, error.hint, transient=True
                ) from error
        await asyncio.sleep(AGAIN)


def _parts(waiting: bytearray) -> list[msgspec.Struct]:
    """Those that have arrived whole."""
    found: list[msgspec.Struct] = []
    start = 0
    while len(waiting) - start >= LENGTH.size:
        (length,) = LENGTH.unpack_from(waiting, start)
        end = start + LENGTH.size + length
        if end > len(waiting):
            break
        found.append(decode_part(bytes(waiting[start + LENGTH.size : end])))
        start = end
    del waiting[:start]
    return found
