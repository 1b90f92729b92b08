"""A client and a job on a host, as if they were one process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

import msgspec
import pytest

from encamp.door.questions import Ticket
from encamp.meeting.flow import Incoming, Outgoing
from encamp.meeting.frames import WINDOW, Signal
from encamp.meeting.host import Conversation
from encamp.meeting.line import UNREAD
from encamp.model.errors import Code, EncampError
from tests.meeting.meeting import (
    OUTCOME,
    Breaking,
    Files,
    Host,
    Streams,
    client,
    host,
    until,
)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Host]:
    async with host(tmp_path) as made:
        yield made


@pytest.fixture(params=["socket", "network"])
def network(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "network")


async def echo(conversation: Conversation) -> None:
    """What `tee /dev/stderr` does."""
    await conversation.arrived()
    conversation.began()
    while piece := await conversation.read():
        await conversation.write(piece)
        await conversation.write_error(piece)
    await conversation.ended(OUTCOME)


async def test_input_output_and_outcome_go_straight_between_the_two(
    here: Host, network: bool
) -> None:
    streams = Streams(b"one", b"two", os.urandom(3_000_000))
    whole = b"".join(streams.pieces)
    async with here.job("j.0.1") as conversation:
        job = asyncio.create_task(echo(conversation))
        outcome = await client(here.ticket("j.0.1", network=network), streams).run()
        await job
    assert outcome == OUTCOME
    assert streams.out == whole
    assert streams.error == whole


async def test_client_that_comes_before_the_command_is_kept_waiting(here: Host) -> None:
    coming = asyncio.create_task(client(here.ticket("j.0.1"), Streams(b"x")).run())
    await asyncio.sleep(0.05)
    async with here.job("j.0.1") as conversation:
        await echo(conversation)
        assert await coming == OUTCOME


async def test_error_of_the_host_is_raised_at_the_client(here: Host) -> None:
    async with here.job("j.0.1") as conversation:
        coming = asyncio.create_task(client(here.ticket("j.0.1")).run())
        await conversation.arrived()
        await conversation.write(b"before")
        await conversation.failed(
            EncampError(Code.NO_ROOM, "It is full.", "Wait.", transient=True, detail="cogs")
        )
        with pytest.raises(EncampError) as raised:
            await coming
    assert raised.value.code is Code.NO_ROOM
    assert (raised.value.sentence, raised.value.hint, raised.value.detail) == (
        *("It is full.", "Wait."),
        "cogs",
    )


async def test_signals_window_and_progress_arrive(here: Host) -> None:
    streams = Streams()
    streams.endless = True
    signals: list[int] = []
    windows: list[tuple[int, int]] = []
    said: list[str] = []
    async with here.job("j.0.1") as conversation:
        conversation.on_signal = signals.append
        conversation.on_resize = lambda rows, columns: windows.append((rows, columns))
        coming = client(here.ticket("j.0.1"), streams)
        coming.on_said = lambda what, fraction: said.append(what)
        began = asyncio.Event()
        coming.on_begin = began.set
        conversation.update("Fetching it.")
        await asyncio.sleep(0)
        running = asyncio.create_task(coming.run())
        await conversation.arrived()
        conversation.update("Building it.")
        conversation.began()
        await began.wait()
        coming.signal(signal.SIGINT)
        coming.resize(40, 100)
        coming.signal(signal.SIGTERM)
        await until(lambda: len(signals) == 2)
        await conversation.ended(OUTCOME)
        assert await running == OUTCOME
    assert signals == [signal.SIGINT, signal.SIGTERM]
    assert windows == [(40, 100)]
    assert said == ["Fetching it.", "Building it."]


async def test_files_are_asked_for_by_name_and_come_back(here: Host, network: bool) -> None:
    archive = [os.urandom(300_000) for _ in range(10)]
    files = Files([b"first"], archive)
    async with here.job("j.0.1") as conversation:
        ticket = here.ticket("j.0.1", network=network)
        coming = asyncio.create_task(client(ticket, files=files).run())
        brought = [
            b"".join([piece async for piece in conversation.bring(0, "a")]),
            b"".join([piece async for piece in conversation.bring(1, "b")]),
        ]
        conversation.began()
        for number in (0, 1):
            out = conversation.send(number)
            for piece in archive:
                await out.write(piece)
            out.finish()
        await conversation.ended(OUTCOME)
        assert await coming == OUTCOME
    assert brought == [b"first", b"".join(archive)]
    assert files.names == {0: "a", 1: "b"}
    assert files.came == {0: b"".join(archive), 1: b"".join(archive)}


async def test_file_that_cannot_be_packed_is_the_jobs_error(here: Host) -> None:
    class Unreadable(Files):
        async def pack(self, number: int, name: str) -> AsyncIterator[bytes]:
            yield b"so far"
            raise EncampError(Code.INPUT_MISSING, "It is gone.")

    async with here.job("j.0.1") as conversation:
        coming = asyncio.create_task(client(here.ticket("j.0.1"), files=Unreadable()).run())
        with pytest.raises(EncampError) as raised:
            async for _ in conversation.bring(0, "a"):
                pass
        await conversation.failed(raised.value)
        with pytest.raises(EncampError, match="It is gone"):
            await coming


async def test_file_that_cannot_be_unpacked_does_not_hold_up_the_end(here: Host) -> None:
    class Full(Files):
        async def unpack(self, number: int, pieces: AsyncIterable[bytes]) -> None:
            raise EncampError(Code.DISK_FULL, "The disk is full.")

    async with here.job("j.0.1") as conversation:
        coming = asyncio.create_task(client(here.ticket("j.0.1"), files=Full()).run())
        await conversation.arrived()
        out = conversation.send(0)
        try:
            for _ in range(100):
                await out.write(bytes(100_000))
        except BrokenPipeError:
            pass
        out.finish()
        await conversation.ended(OUTCOME)
        with pytest.raises(EncampError, match="The disk is full"):
            await coming


async def test_writer_learns_that_nobody_reads_any_more(here: Host) -> None:
    class Closed(Streams):
        async def write(self, data: bytes) -> None:
            raise BrokenPipeError

    async with here.job("j.0.1") as conversation:
        coming = asyncio.create_task(client(here.ticket("j.0.1"), Closed()).run())
        await conversation.arrived()

        async def print_for_ever() -> None:
            while True:
                await conversation.write(bytes(100_000))

        with pytest.raises(BrokenPipeError):
            await print_for_ever()
        await conversation.write_error(b"still heard")
        await conversation.ended(OUTCOME)
        assert await coming == OUTCOME


# ── a slow side ──────────────────────────────────────────────────────────────────────────────────

ON_THE_WAY = 2 * WINDOW + 8 * UNREAD
"""More than this is nowhere on its way: both sides' windows, and what lies in between."""


async def test_slow_client_holds_the_job_up_and_fills_no_memory(here: Host, network: bool) -> None:
    streams = Streams()
    streams.may_take.clear()
    written = 0

    async def print_a_lot(conversation: Conversation) -> None:
        nonlocal written
        await conversation.arrived()
        for _ in range(200):
            await conversation.write(bytes(100_000))
            written += 100_000
        await conversation.ended(OUTCOME)

    async with here.job("j.0.1") as conversation:
        coming = asyncio.create_task(client(here.ticket("j.0.1", network=network), streams).run())
        printing = asyncio.create_task(print_a_lot(conversation))
        await stands_still(lambda: written)
        assert written <= ON_THE_WAY
        streams.may_take.set()
        await printing
        assert await coming == OUTCOME
    assert len(streams.out) == 20_000_000


async def test_slow_job_holds_the_client_up(here: Host) -> None:
    streams = Streams(*[bytes(100_000)] * 200)
    async with here.job("j.0.1") as conversation:
        coming = asyncio.create_task(client(here.ticket("j.0.1"), streams).run())
        await conversation.arrived()
        await stands_still(lambda: streams.given)
        assert streams.given <= ON_THE_WAY
        await echo(conversation)
        assert await coming == OUTCOME
    assert len(streams.out) == 20_000_000


async def stands_still(measure: object) -> None:
    assert callable(measure)
    before = -1
    while before != (before := measure()) or not before:
        await asyncio.sleep(0.2)


# ── connections that break ───────────────────────────────────────────────────────────────────────


async def test_conversation_outlasts_its_connections(here: Host) -> None:
    data = [os.urandom(50_000) for _ in range(60)]
    streams = Streams(*data)
    files = Files(data)
    signals: list[int] = []
    async with Breaking(here.port).standing() as between, here.job("j.0.1") as conversation:
        conversation.on_signal = signals.append
        between.every = 700_000
        ticket = at_port(here, between.port)
        coming = client(ticket, streams, files=files)
        running = asyncio.create_task(coming.run())
        brought = b"".join([piece async for piece in conversation.bring(0, "a")])
        for number in range(1, 6):
            coming.signal(number)
        while piece := await conversation.read():
            await conversation.write(piece)
        out = conversation.send(0)
        for piece in data:
            await out.write(piece)
        out.finish()
        await conversation.ended(OUTCOME)
        assert await running == OUTCOME
        assert between.connections > 5
    assert brought == streams.out == files.came[0] == b"".join(data)
    assert signals == [1, 2, 3, 4, 5]


async def test_conversation_outlasts_the_agent(here: Host, network: bool) -> None:
    """It was restarted meanwhile."""
    data = [os.urandom(50_000) for _ in range(40)]
    streams = Streams(*data)
    async with here.job("j.0.1") as conversation:
        ticket = here.ticket("j.0.1", network=network)
        broke: list[EncampError] = []
        coming = client(ticket, streams)
        coming.on_break = broke.append
        running = asyncio.create_task(coming.run())
        for number in range(20):
            await conversation.write(await conversation.read())
            if number == 10:
                await here.close()
                await here.open()
        while piece := await conversation.read():
            await conversation.write(piece)
        await conversation.ended(OUTCOME)
        assert await running == OUTCOME
        assert broke
    assert streams.out == b"".join(data)


def at_port(here: Host, port: int) -> Ticket:
    ticket = here.ticket("j.0.1", network=True)
    assert ticket.meeting is not None
    return msgspec.structs.replace(
        ticket, meeting=msgspec.structs.replace(ticket.meeting, port=port)
    )


# ── clients that vanish ──────────────────────────────────────────────────────────────────────────


async def forever(done: asyncio.Event) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        done.set()


async def test_job_ends_when_its_client_is_gone(here: Host) -> None:
    streams = Streams()
    streams.endless = True
    async with here.job("j.0.1") as conversation:
        running = asyncio.create_task(client(here.ticket("j.0.1"), streams).run())
        await conversation.arrived()
        ended = asyncio.Event()
        working = asyncio.create_task(conversation.attend(forever(ended)))
        running.cancel()
        with pytest.raises(EncampError, match="whoever ran it went away"):
            await working
        assert ended.is_set()


async def test_client_that_was_killed_is_gone_at_once(here: Host) -> None:
    """Nothing was said: the kernel has closed its connection."""
    async with here.job("j.0.1") as conversation:
        from encamp.meeting.connecting import connect
        from encamp.meeting.frames import Show

        ticket = here.ticket("j.0.1")
        line = await connect(ticket)
        line.send(Show(id=ticket.id, secret=ticket.secret, session="s"))
        await conversation.arrived()
        working = asyncio.create_task(conversation.attend(forever(asyncio.Event())))
        line.abort()
        async with asyncio.timeout(30):
            with pytest.raises(EncampError, match="whoever ran it went away"):
                await working


async def test_job_whose_client_never_comes_is_not_begun(tmp_path: Path) -> None:
    conversation = Conversation("", arrival=0.05)
    with pytest.raises(EncampError, match="did not come"):
        await conversation.attend(conversation.arrived())


async def test_all_that_was_taken_is_let_go() -> None:
    """What the other side has is not kept for it."""
    outgoing = Outgoing(window=100)
    await outgoing.write(bytes(60))
    await outgoing.write(bytes(40))
    late = asyncio.create_task(outgoing.write(b"late"))
    await asyncio.sleep(0)
    assert (outgoing.start, outgoing.end) == (0, 100)
    outgoing.got(70)
    await late
    assert (outgoing.start, outgoing.end) == (70, 104)
    assert outgoing.read(98, 50) == bytes(2) + b"late"


async def test_what_comes_twice_is_taken_once() -> None:
    incoming = Incoming(window=100)
    incoming.receive(0, b"abc")
    incoming.receive(1, b"bcd")
    incoming.receive(0, b"ab")
    incoming.finish(4)
    assert [await incoming.read(), await incoming.read(), await incoming.read()] == [
        *(b"abc", b"d"),
        b"",
    ]
    signals: list[int] = []
    conversation = Conversation("", arrival=1000)
    conversation.on_signal = signals.append
    for serial, number in ((1, 15), (1, 15), (2, 2), (1, 15)):
        conversation.signal(Signal(serial, number))
    assert signals == [15, 2]
