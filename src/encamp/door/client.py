"""Asking at a door: a question goes in, the items of its answer come out, wherever the door is."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from io import BufferedReader
from pathlib import Path
from typing import Protocol, TypeVar, overload

import msgspec

from encamp.door.frames import (
    LARGEST_ANSWER,
    LENGTH,
    End,
    Failure,
    Item,
    decode_part,
    frame,
)
from encamp.door.questions import Question
from encamp.door.socket_file import short
from encamp.model.errors import Code, EncampError

A = TypeVar("A", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)


class UnansweredError(EncampError):
    """There is no manager, or it went away: what went wrong is not an answer of its."""


class WentAwayError(UnansweredError):
    """There was a manager, and it may or may not have done what it was asked for."""


PATIENCE = 10
"""Seconds within which a manager that is alive has heard the question."""


class Reading(Protocol):
    """An answer as it arrives."""

    def exactly(self, size: int) -> bytes:
        """Its next bytes. EOFError: there are not so many; OSError: it broke off."""

    def was_heard(self) -> None:
        """From now on, silence means that the manager has nothing to say yet."""


class ReadingAsync(Protocol):
    async def exactly(self, size: int) -> bytes: ...

    def was_heard(self) -> None: ...


class FarDoor(Protocol):
    """A manager's door that is no socket on this host. As text, it says where it is."""

    def opened(self, question: Question) -> AbstractContextManager[Reading]: ...

    def opened_async(self, question: Question) -> AbstractAsyncContextManager[ReadingAsync]: ...


AnyDoor = Path | FarDoor


@overload
def ask(door: AnyDoor, question: Question, expected: type[A], /) -> Generator[A, None, None]: ...
@overload
def ask(
    door: AnyDoor, question: Question, expected: type[A], other: type[B], /
) -> Generator[A | B, None, None]: ...
def ask(
    door: AnyDoor, question: Question, /, *expected: type[msgspec.Struct]
) -> Generator[msgspec.Struct, None, None]:
    """The answer's items, which are of the expected types, as they come. An error that the manager
    answers with is raised. Closing the generator tells the manager that no more is wanted."""
    answer = _Answer(door, expected)
    opened = _opened(door, question) if isinstance(door, Path) else door.opened(question)
    with opened as reading:
        while not answer.ended:
            with answer.going_on():
                length = answer.length(reading.exactly(LENGTH.size))
                body = reading.exactly(length)
            item = answer.understand(body)
            if item is not None:
                yield item
            elif answer.heard:
                reading.was_heard()


@overload
def ask_async(
    door: AnyDoor, question: Question, expected: type[A], /
) -> AsyncGenerator[A, None]: ...
@overload
def ask_async(
    door: AnyDoor, question: Question, expected: type[A], other: type[B], /
) -> AsyncGenerator[A | B, None]: ...
async def ask_async(
    door: AnyDoor, question: Question, /, *expected: type[msgspec.Struct]
) -> AsyncGenerator[msgspec.Struct, None]:
    """Like `ask`, in an event loop. Use it with `contextlib.aclosing`."""
    answer = _Answer(door, expected)
    async with (
        _opened_async(door, question) if isinstance(door, Path) else door.opened_async(question)
    ) as reading:
        while not answer.ended:
            with answer.going_on():
                length = answer.length(await reading.exactly(LENGTH.size))
                body = await reading.exactly(length)
            item = answer.understand(body)
            if item is not None:
                yield item
            elif answer.heard:
                reading.was_heard()


@contextmanager
def _opened(path: Path, question: Question) -> Iterator[Reading]:
    asked = frame(question)
    with _connect(path) as connection:
        connection.settimeout(PATIENCE)
        # If it is not taken, the reason stands in the answer.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(asked)
        with connection.makefile("rb") as stream:
            yield _Here(connection, stream)


class _Here:
    def __init__(self, connection: socket.socket, stream: BufferedReader) -> None:
        self._connection = connection
        self._stream = stream

    def exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def was_heard(self) -> None:
        self._connection.settimeout(None)


@asynccontextmanager
async def _opened_async(path: Path, question: Question) -> AsyncIterator[ReadingAsync]:
    asked = frame(question)
    reader, writer = await _open(path)
    try:
        writer.write(asked)
        yield _HereAsync(reader)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class _HereAsync:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._patience: float | None = PATIENCE

    async def exactly(self, size: int) -> bytes:
        async with asyncio.timeout(self._patience):
            return await self._reader.readexactly(size)

    def was_heard(self) -> None:
        self._patience = None


async def _open(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that nobody waits for any more is closed as soon as it is there."""
    connecting = asyncio.ensure_future(asyncio.to_thread(_connect, path))
    try:
        connection = await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_close)
        raise
    try:
        return await asyncio.open_unix_connection(sock=connection)
    except BaseException:
        connection.close()
        raise


def _close(connecting: asyncio.Future[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class _Answer:
    """What is understood of an answer so far."""

    def __init__(self, door: AnyDoor, expected: tuple[type[msgspec.Struct], ...]) -> None:
        self.heard = False
        self.ended = False
        self._door = door
        self._decoders = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in expected}

    def length(self, prefix: bytes) -> int:
        (length,) = LENGTH.unpack(prefix)
        if length > LARGEST_ANSWER:
            raise self._strange(f"{length} bytes at once")
        return int(length)

    def understand(self, body: bytes) -> msgspec.Struct | None:
        """An item of the answer; None, if this part of it is something else."""
        try:
            part = decode_part(body)
            if isinstance(part, Item) and part.kind in self._decoders:
                return self._decoders[part.kind].decode(part.value)
        except msgspec.DecodeError as error:
            raise self._strange(f"something that makes no sense ({error})") from error
        if isinstance(part, Failure):
            raise part.error()
        if isinstance(part, Item):
            raise self._strange(f"an unexpected {part.kind}")
        self.heard = True
        self.ended = isinstance(part, End)
        return None

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Says in words how the next part of the answer failed to come."""
        try:
            yield
        except TimeoutError as error:
            raise UnansweredError(
                Code.UNREACHABLE,
                f"The manager at {self._door} takes no questions: it is stopped or overwhelmed.",
                "See its log, and whether its process still runs.",
                transient=True,
            ) from error
        except (EOFError, OSError) as error:
            when = "in the middle of its answer" if self.heard else "before it answered"
            raise WentAwayError(
                Code.UNREACHABLE,
                f"The manager at {self._door} went away {when}.",
                "Once it is back, ask again.",
                transient=True,
            ) from error

    def _strange(self, what: str) -> EncampError:
        return EncampError(
            Code.PROTOCOL,
            f"The manager at {self._door} answered with {what}.",
            "Use the command line of the same version as the manager.",
        )


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # While many others do the same, one that is connecting waits in the kernel.
        limit = struct.pack("ll", PATIENCE, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with short(path) as address:
            connection.connect(address)
    except OSError as error:
        connection.close()
        raise _nobody(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _nobody(path: Path, error: OSError) -> UnansweredError:
    if isinstance(error, PermissionError):
        return UnansweredError(
            Code.NOT_PERMITTED,
            f"You may not enter {path.parent}, where the manager's door is.",
            "It has to let others pass through: 'chmod o+x' by its owner.",
        )
    if isinstance(error, BlockingIOError):
        why = "too many are waiting to be heard"
    elif isinstance(error, ConnectionRefusedError):
        why = "the one that was there has ended"
    elif isinstance(error, FileNotFoundError):
        why = "there is no such socket"
    else:
        why = os.strerror(error.errno) if error.errno else str(error)
    return UnansweredError(
        Code.UNREACHABLE,
        f"No manager answers at {path}: {why}.",
        "Start one with 'encamp serve', or say where one is: with ENCAMP_DOOR on this host, with"
        " 'encamp login' elsewhere.",
        transient=True,
    )
