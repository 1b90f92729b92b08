"""What a job prints, fetched from the host where it runs or has run."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing

from encamp.door import questions
from encamp.door.questions import Output, Ticket
from encamp.manager.api.asking import Asking
from encamp.manager.ticketing import part_ticket
from encamp.meeting.client import Client
from encamp.meeting.frames import Role
from encamp.model.errors import Code, EncampError
from encamp.model.request import REQUEST_OVER, RequestRecord, RequestState

WAITING = 16
"""Pieces that wait here for somebody to read them."""
BEGUN = frozenset({RequestState.STARTING, RequestState.RUNNING}) | REQUEST_OVER


class Printed(enum.Enum):
    STDOUT = "stdout"
    STDERR = "stderr"


async def job_output(
    asking: Asking, record: RequestRecord, number: int, which: Printed, *, follow: bool
) -> AsyncGenerator[Output, None]:
    """With `follow`, from its beginning to its end, however long both are waited for."""
    if record.request.job is None or not record.request.detached:
        raise EncampError(
            Code.WRONG_STATE,
            f"Nothing is kept of what {record.request.id[:8]} prints.",
            "Output is kept of jobs that nobody was attached to.",
        )
    if follow and record.state not in BEGUN:
        record = await _begun(asking, record.request.id)
    ticket = part_ticket(asking.manager, record, number)
    role = Role.FOLLOW if follow and record.state not in REQUEST_OVER else Role.WATCH
    async with aclosing(_read(ticket, role, which)) as pieces:
        async for piece in pieces:
            yield piece


async def _begun(asking: Asking, request: str) -> RequestRecord:
    items = asking.items(questions.FollowRequest(id=request))
    assert isinstance(items, AsyncGenerator)
    async with aclosing(items) as records:
        async for record in records:
            if isinstance(record, RequestRecord) and record.state in BEGUN:
                return record
    raise EncampError(Code.MACHINE_LOST, f"What became of {request[:8]} is not known.")


async def _read(ticket: Ticket, role: Role, which: Printed) -> AsyncGenerator[Output, None]:
    streams = _Pipe(which)
    client = Client(ticket, role, streams=streams, files=_NoFiles())

    async def run() -> None:
        try:
            await client.run()
        finally:
            streams.end()

    running = asyncio.create_task(run())
    offset = 0
    try:
        while piece := await streams.next():
            yield Output(ticket.id, offset, piece)
            offset += len(piece)
        await running
    finally:
        running.cancel()
        await asyncio.wait({running})


class _Pipe:
    """Where one of the two streams goes; the other is not wanted."""

    def __init__(self, which: Printed) -> None:
        self._which = which
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(WAITING)
        self._ended = asyncio.Event()

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        await self._take(Printed.STDOUT, data)

    async def write_error(self, data: bytes) -> None:
        await self._take(Printed.STDERR, data)

    async def _take(self, which: Printed, data: bytes) -> None:
        if which is self._which:
            await self._pieces.put(data)

    def end(self) -> None:
        self._ended.set()

    async def next(self) -> bytes:
        """The next piece; empty at the end."""
        if self._pieces.empty() and not self._ended.is_set():
            getting = asyncio.create_task(self._pieces.get())
            ending = asyncio.create_task(self._ended.wait())
            try:
                await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    return getting.result()
            finally:
                getting.cancel()
                ending.cancel()
        return b"" if self._pieces.empty() else self._pieces.get_nowait()


class _NoFiles:
    """Files go between a host and those who have a ticket."""

    def pack(self, number: int, name: str) -> AsyncIterator[bytes]:
        raise EncampError(Code.PROTOCOL, "The host wants files that nobody has.")

    async def unpack(self, number: int, pieces: AsyncIterable[bytes]) -> None:
        raise EncampError(Code.PROTOCOL, "The host sends files that nobody wants.")
