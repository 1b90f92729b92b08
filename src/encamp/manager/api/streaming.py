"""Answers that take their time: as lines of JSON, server-sent events, bare bytes, or frames.

Whoever goes away in the middle frees everything; that it has gone is noticed by its connection's
end, or by what it does not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress

import msgspec
from litestar.types import Receive, Scope, Send

from encamp.door.frames import ANSWER, End, Failure, Heard, frame
from encamp.door.frames import item as framed
from encamp.door.server import fitting
from encamp.manager.api.failures import failure

HEARTBEAT = 15.0
"""Seconds of silence after which something is said that means nothing."""
PIECE = 64 << 10
"""Bytes of items that are gathered."""
FIRST = 0.5
"""Seconds in which an answer may still turn out to be a refusal, with a status of its own."""

log = logging.getLogger(__name__)
encode = msgspec.json.Encoder().encode

Items = AsyncIterator[msgspec.Struct]


class Format:
    """How items are written."""

    media_type = "application/x-ndjson"
    heartbeat = b"\n"
    end = b""
    """Said after the last item, if all went well."""

    def item(self, item: msgspec.Struct) -> bytes:
        return encode(item) + b"\n"

    def problem(self, error: Exception) -> bytes:
        return encode({"problem": failure(error)[1]}) + b"\n"


class EventSource(Format):
    """As browsers read it: with the number from which to go on."""

    media_type = "text/event-stream"
    heartbeat = b":\n\n"

    def item(self, item: msgspec.Struct) -> bytes:
        number = getattr(item, "number", 0)
        mark = b"id: %d\n" % number if number else b""
        return mark + b"data: " + encode(item) + b"\n\n"

    def problem(self, error: Exception) -> bytes:
        return b"event: problem\ndata: " + encode(failure(error)[1]) + b"\n\n"


class Bytes(Format):
    """What items have in them, and nothing else; what goes wrong breaks it off."""

    media_type = "application/octet-stream"
    heartbeat = b""

    def item(self, item: msgspec.Struct) -> bytes:
        return getattr(item, "piece", b"")

    def problem(self, error: Exception) -> bytes:
        raise error


class Frames(Format):
    """As at the other door."""

    media_type = ANSWER
    heartbeat = frame(Heard())
    end = frame(End())

    def item(self, item: msgspec.Struct) -> bytes:
        """Of `gathered`."""
        return item.piece if isinstance(item, Gathered) else fitting(framed(item))

    def problem(self, error: Exception) -> bytes:
        if isinstance(error, ConnectionError):
            raise error  # It is to look as if the manager went away.
        return frame(Failure.of(failure(error)[1].error()))


class Gathered(msgspec.Struct, gc=False):
    """Items that are written already."""

    piece: bytes


async def gathered(
    begin: Callable[[], Items], written: Callable[[msgspec.Struct], bytes]
) -> AsyncGenerator[Gathered, None]:
    """An answer in as few pieces as it takes: what is there at once is told at once, and nothing
    waits for what is not."""
    waiting = bytearray()
    news, room = asyncio.Event(), asyncio.Event()

    async def gather() -> None:
        items = begin()
        try:
            async for item in items:
                waiting.extend(written(item))
                news.set()
                while len(waiting) > PIECE:
                    room.clear()
                    await room.wait()
        finally:
            if isinstance(items, AsyncGenerator):
                await items.aclose()

    gathering = asyncio.create_task(gather())
    gathering.add_done_callback(lambda _: news.set())
    try:
        while True:
            await news.wait()
            news.clear()
            if waiting:
                piece = bytes(waiting)
                waiting.clear()
                room.set()
                yield Gathered(piece)
            elif gathering.done():
                gathering.result()
                return
            if gathering.done():
                # That was said already.
                news.set()
    finally:
        gathering.cancel()
        await asyncio.wait({gathering})


def chosen_format(accept: str) -> Format:
    return EventSource() if "text/event-stream" in accept else Format()


class Streamed:
    """An answer on its way; an application of ASGI."""

    def __init__(
        self, items: Items, form: Format, closed: Callable[[], None], check: Callable[[], None]
    ) -> None:
        """`check` raises an error as soon as whoever asked may not hear any more."""
        self._items = items
        self._format = form
        self._closed = closed
        self._check = check
        self._next: asyncio.Future[msgspec.Struct] | None = None

    async def prepared(self) -> Streamed:
        """An answer that is refused at once is refused with a status."""
        first = self._next = asyncio.ensure_future(anext(self._items))
        try:
            await asyncio.wait({first}, timeout=FIRST)
            if first.done() and not first.cancelled():
                error = first.exception()
                if error is not None and not isinstance(error, StopAsyncIteration):
                    raise error
        except BaseException:
            await self._close()
            raise
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        telling = asyncio.create_task(self._tell(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (telling, leaving):
                task.cancel()
            await asyncio.wait({telling, leaving})
            await self._close()
        if not telling.cancelled():
            telling.result()

    async def _tell(self, send: Send) -> None:
        headers = [
            (b"content-type", self._format.media_type.encode()),
            (b"cache-control", b"no-store"),
            # Servers in between are not to collect it.
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        following = self._next or asyncio.ensure_future(anext(self._items))
        self._next = following
        if not following.done() and self._format.heartbeat:
            # So that whoever asked knows that it has begun.
            await _write(send, self._format.heartbeat)
        try:
            while True:
                await asyncio.wait({following}, timeout=HEARTBEAT)
                self._check()
                if not following.done():
                    await _write(send, self._format.heartbeat)
                    continue
                data = self._format.item(following.result())
                following = self._next = asyncio.ensure_future(anext(self._items))
                if data:
                    await _write(send, data)
        except StopAsyncIteration:
            if self._format.end:
                await _write(send, self._format.end)
        except Exception as error:
            await _write(send, self._format.problem(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _close(self) -> None:
        try:
            if self._next is not None:
                self._next.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                    await self._next
            if isinstance(self._items, AsyncGenerator):
                await self._items.aclose()
        finally:
            self._closed()


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
