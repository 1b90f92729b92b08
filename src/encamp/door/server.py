"""The daemon's side of a door.

Nobody who knocks can hold up another: questions are small and have to come soon, nobody has more
than a share of the places, and whoever does not read is not written to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from encamp import __version__
from encamp.door.frames import (
    LARGEST_ANSWER,
    LARGEST_QUESTION,
    LENGTH,
    End,
    Failure,
    Heard,
    frame,
    item,
)
from encamp.door.peer import Peer, peer_of, uid_of
from encamp.door.questions import Question
from encamp.door.socket_file import BACKLOG, listening
from encamp.model.errors import Code, EncampError

Answerer = Callable[[Peer, Question], AsyncIterator[msgspec.Struct]]
"""Answers by items. It is closed early if whoever asked goes away."""

MOST_CONNECTIONS = 256
"""In all, the manager's own user and root excepted: they can look whatever others do."""
MOST_OF_ONE = 64
"""Connections of one user."""
PATIENCE = 10.0
"""Seconds that a question may take to arrive."""
UNREAD = 64 * 1024
"""Bytes of an answer that wait in the daemon for somebody to read them."""

log = logging.getLogger(__name__)
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)


class Door:
    """Stands open while `async with` does."""

    def __init__(self, path: Path, answer: Answerer, listener: socket.socket | None = None) -> None:
        """`listener`: the socket of this name, if it is to stay when the door is closed: whoever
        knocks meanwhile waits for the next door there."""
        self.path = path
        self._listener = listener
        self._answer = answer
        self._held = ExitStack()
        self._server: asyncio.Server | None = None
        self._inside: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        # Closing a server closes its socket.
        listener = (
            self._held.enter_context(listening(self.path))
            if self._listener is None
            else self._listener.dup()
        )
        try:
            self._server = await asyncio.start_unix_server(
                self._opened, sock=listener, limit=UNREAD, backlog=BACKLOG
            )
        except BaseException:
            self._held.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._server is not None:
                self._server.close()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            # The connections that were just broken off are closed in the loop's next round.
            await asyncio.sleep(0)
        finally:
            self._held.close()

    def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=UNREAD)
        try:
            with self._place(uid_of(writer.get_extra_info("socket"))):
                try:
                    await self._converse(reader, writer)
                except EncampError as error:
                    writer.write(frame(Failure.of(error)))
                # Until all is read, or the other has gone, the place is taken.
                writer.close()
                await writer.wait_closed()
        except EncampError as refused:
            writer.write(frame(Failure.of(refused)))
            writer.close()
        except (OSError, asyncio.IncompleteReadError):
            # It has gone; there is nobody to tell.
            writer.transport.abort()
        except BaseException:
            writer.transport.abort()
            raise

    @contextmanager
    def _place(self, uid: int) -> Iterator[None]:
        """One of the places inside, if there is one left for this user."""
        known = uid in {0, os.geteuid()}
        if self._inside[uid] >= MOST_OF_ONE:
            raise _full(f"You have {MOST_OF_ONE} questions open here already.")
        if not known and self._inside.total() >= MOST_CONNECTIONS:
            raise _full("Too many people are asking at this moment.")
        self._inside[uid] += 1
        try:
            yield
        finally:
            self._inside[uid] -= 1
            if not self._inside[uid]:
                del self._inside[uid]

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await _question(reader)
        writer.write(frame(Heard()))
        peer = await asyncio.to_thread(peer_of, writer.get_extra_info("socket"))
        answering = asyncio.create_task(self._tell(peer, question, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            # Nothing more is to be said by the one who asked: anything, or the end, is a goodbye.
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait({answering, leaving})
        if not answering.cancelled():
            answering.result()
        if not leaving.cancelled():
            leaving.exception()

    async def _tell(self, peer: Peer, question: Question, writer: asyncio.StreamWriter) -> None:
        try:
            async with _closing(self._answer(peer, question)) as items:
                async for one in items:
                    writer.write(fitting(item(one)))
                    await writer.drain()
        except (EncampError, OSError):
            raise
        except Exception as error:
            log.exception("A question could not be answered: %s", type(question).__name__)
            raise EncampError(
                Code.INTERNAL,
                f"The manager made a mistake: {type(error).__name__}: {error}",
                "Its log says more. Please report it.",
            ) from error
        writer.write(frame(End()))
        await writer.drain()


@asynccontextmanager
async def _closing(
    items: AsyncIterator[msgspec.Struct],
) -> AsyncIterator[AsyncIterator[msgspec.Struct]]:
    """Whatever happens to its reader, a generator is told that it is over."""
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def _question(reader: asyncio.StreamReader) -> Question:
    try:
        async with asyncio.timeout(PATIENCE):
            (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            if length > LARGEST_QUESTION:
                raise EncampError(
                    Code.USAGE,
                    f"A question of {length} bytes is too long: {LARGEST_QUESTION} are allowed.",
                )
            return understood(await reader.readexactly(length))
    except TimeoutError as error:
        raise EncampError(
            Code.PROTOCOL, f"No question was heard for {PATIENCE:.0f} seconds."
        ) from error


def understood(data: bytes) -> Question:
    """The question, by whichever door it came."""
    try:
        return _questions.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EncampError(
            Code.PROTOCOL,
            f"The manager does not understand the question: {error}.",
            f"Use the command line of its version, {__version__}.",
        ) from error


def fitting(whole: bytes) -> bytes:
    if len(whole) > LARGEST_ANSWER:
        raise EncampError(Code.NO_ROOM, "The answer is too long to be told in one piece.")
    return whole


def _full(sentence: str) -> EncampError:
    return EncampError(
        Code.NO_ROOM,
        f"The manager does not take the question: {sentence}",
        "Try again in a moment.",
        transient=True,
    )
