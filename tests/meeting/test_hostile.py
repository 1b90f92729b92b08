"""Whatever is said at a meeting point, and whoever answers there, others go on undisturbed."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from encamp.agent.commands.records import Records
from encamp.agent.meeting import limits, point
from encamp.door.frames import LENGTH, frame
from encamp.meeting.connecting import connect
from encamp.meeting.frames import (
    LARGEST,
    PIECE,
    STDIN,
    STDOUT,
    WINDOW,
    Ended,
    EndOf,
    Enough,
    Got,
    Piece,
    Refused,
    Show,
    Signal,
    Welcome,
    decode_from_host,
    files_in,
    files_out,
)
from encamp.meeting.here import boot_id
from encamp.meeting.line import Line
from encamp.meeting.tickets import digest, matches, new_key, secret_for
from encamp.model.errors import Code, EncampError
from tests.meeting.meeting import OUTCOME, SECRET, Host, Streams, client, host

NOBODY = 65534
SHOW = Show(id="j.0.1", secret=SECRET, session="s")


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Host]:
    async with host(tmp_path) as made:
        yield made


async def others_are_served(here: Host) -> None:
    async with here.job("other.0.1") as conversation:
        streams = Streams(b"hello")
        coming = asyncio.create_task(client(here.ticket("other.0.1"), streams).run())
        await conversation.write(await conversation.read())
        await conversation.ended(OUTCOME)
        assert await coming == OUTCOME
        assert streams.out == b"hello"


async def raw(here: Host) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(here.meeting.socket)


async def refusal(line: Line) -> EncampError:
    """What is said before the connection is closed."""
    while True:
        said = decode_from_host(await line.receive())
        if isinstance(said, Refused):
            with suppress(EOFError, OSError):
                await line.receive()
                raise AssertionError("It goes on.")
            return said.failure.error()


# ── at the meeting point ─────────────────────────────────────────────────────────────────────────


async def test_wrong_secret_opens_nothing(here: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with here.job("j.0.1") as conversation:
        for wrong in ("", "x", SECRET[:-1], SECRET + "x", digest(SECRET)):
            with pytest.raises(EncampError) as raised:
                await client(here.ticket("j.0.1", secret=wrong)).run()
            assert raised.value.code is Code.NOT_PERMITTED
        assert not conversation.visitors
    assert SECRET not in caplog.text
    await others_are_served(here)


async def test_ticket_for_what_is_not_there_is_refused(
    here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "UNKNOWN", 0.05)
    for id in ("nothing.0.1", "../under-way/j.0.1", "", "a/b", "x" * 199, "\0"):
        with pytest.raises(EncampError) as raised:
            await client(here.ticket(id)).run()
        assert raised.value.code is Code.NOT_PERMITTED


async def test_what_else_there_is_on_the_host_is_not_found_out_with_tickets(here: Host) -> None:
    """A ticket for what is not known is kept waiting, and one for what is over is not."""
    for id in ("../under-way", str(Path(__file__)), f"{__file__}-not-there"):
        async with asyncio.timeout(point.UNKNOWN / 2):
            with pytest.raises(EncampError) as raised:
                await client(here.ticket(id)).run()
        assert raised.value.code is Code.NOT_PERMITTED
    records = Records(here.home)
    assert not records.is_over(str(Path(__file__)))
    assert not records.is_over("../under-way")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(0),
        LENGTH.pack(1) + b"\xc1",
        LENGTH.pack((1 << 32) - 1),
        LENGTH.pack(LARGEST),
        LENGTH.pack(5) + b"\x81\xa1a",
        frame(Signal(1, 2)),
        frame(SHOW)[:-1],
        frame(msgspec.structs.replace(SHOW, secret="x" * 10_000)),
        LENGTH.pack(4000) + b"\x91" * 4000,
    ],
    ids=range(10),
)
async def test_nonsense_is_refused_and_harms_nobody(
    here: Host, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "SHOWING", 0.5)
    reader, writer = await raw(here)
    writer.write(data)
    async with asyncio.timeout(60):
        said = await reader.read()
    writer.close()
    if said:
        assert isinstance(decode_from_host(said[LENGTH.size :]), Refused)
    await others_are_served(here)


async def test_random_bytes_and_random_frames_harm_nobody(here: Host) -> None:
    chance = random.Random(7)
    async with here.job("j.0.1"):
        for _ in range(60):
            reader, writer = await raw(here)
            said = bytearray(frame(SHOW) if chance.random() < 0.7 else b"")
            for _ in range(chance.randrange(6)):
                body = chance.randbytes(chance.randrange(200))
                if chance.random() < 0.5:
                    whole = bytearray(frame(Piece(STDIN, chance.randrange(9), body)))
                    whole[chance.randrange(4, len(whole))] = chance.randrange(256)
                    said += whole
                else:
                    said += LENGTH.pack(len(body)) + body
            writer.write(said)
            writer.write_eof()
            async with asyncio.timeout(60):
                with suppress(OSError):
                    await reader.read()
            writer.close()
    await others_are_served(here)


async def test_one_who_shows_nothing_is_sent_away(
    here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "SHOWING", 0.1)
    for address in ("socket", "network"):
        if address == "socket":
            reader, writer = await raw(here)
        else:
            # Not even TLS.
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
    await others_are_served(here)


async def test_those_who_show_nothing_leave_places_for_others(
    here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_WAITING_OF_ONE", 8)
    silent = [await raw(here) for _ in range(8)]
    await asyncio.sleep(0.05)
    reader, writer = await raw(here)
    async with asyncio.timeout(60):
        said = decode_from_host((await reader.read())[LENGTH.size :])
    writer.close()
    assert isinstance(said, Refused)
    assert said.failure.code is Code.NO_ROOM
    assert said.failure.transient
    # From an address there are places still.
    async with here.job("j.0.1") as conversation:
        coming = asyncio.create_task(client(here.ticket("j.0.1", network=True)).run())
        await conversation.ended(OUTCOME)
        assert await coming == OUTCOME
    for _, one in silent:
        one.close()
    await others_are_served(here)


# ── clients with a good ticket ───────────────────────────────────────────────────────────────────


async def welcomed(here: Host, show: Show = SHOW) -> Line:
    line = await connect(here.ticket(show.id))
    line.send(show)
    said = decode_from_host(await line.receive())
    assert isinstance(said, Welcome), said
    return line


@pytest.mark.parametrize(
    "said",
    [
        [Piece(STDIN, 1, b"gap")],
        [Piece(STDIN, 0, bytes(PIECE))] * 2 + [Piece(STDIN, 5 * PIECE, b"x")],
        [Piece(STDIN, n * PIECE, bytes(PIECE)) for n in range(WINDOW // PIECE + 1)],
        [EndOf(STDIN, 7)],
        [EndOf(STDIN, 0), Piece(STDIN, 0, b"after the end")],
        [Got(STDOUT, 1)],
        [Got(STDIN, 0)],
        [Enough(STDIN)],
        [Piece(STDOUT, 0, b"x")],
        [Piece(files_in(0), 0, b"nobody asked for it")],
        [EndOf(files_out(3), 0)],
        [SHOW],
    ],
    ids=range(12),
)
async def test_client_that_breaks_the_rules_is_sent_away(
    here: Host, said: list[msgspec.Struct]
) -> None:
    async with here.job("j.0.1"):
        line = await welcomed(here)
        for one in said:
            line.send(one)
        async with asyncio.timeout(60):
            assert (await refusal(line)).code is Code.PROTOCOL
        line.abort()
    await others_are_served(here)


async def test_second_client_does_not_take_the_place_of_the_first(here: Host) -> None:
    async with here.job("j.0.1") as conversation:
        streams = Streams(b"mine")
        first = asyncio.create_task(client(here.ticket("j.0.1"), streams).run())
        await conversation.arrived()
        with pytest.raises(EncampError, match="Somebody else runs this job"):
            await client(here.ticket("j.0.1"), Streams(b"not mine")).run()
        await conversation.write(await conversation.read())
        await conversation.ended(OUTCOME)
        assert await first == OUTCOME
        assert streams.out == b"mine"


async def test_client_that_does_not_read_is_not_written_to(here: Host) -> None:
    """Not even progress, of which there may be much."""
    async with here.job("j.0.1") as conversation:
        line = await welcomed(here)
        for number in range(20_000):
            conversation.update(f"{number} " * 20, 0.5)
        await asyncio.sleep(0)
        sizes = [
            one._line._writer.transport.get_write_buffer_size() for one in conversation.visitors
        ]
        assert max(sizes) < 1_000_000
        line.abort()


# ── hosts that are not what they say ─────────────────────────────────────────────────────────────


async def test_nothing_is_told_to_one_with_another_certificate(here: Host) -> None:
    ticket = here.ticket("j.0.1", network=True)
    assert ticket.meeting is not None
    for fingerprint in ("", "0" * 64, ticket.meeting.fingerprint[:-1] + "x"):
        wrong = msgspec.structs.replace(ticket.meeting, fingerprint=fingerprint)
        with pytest.raises(EncampError) as raised:
            await connect(msgspec.structs.replace(ticket, meeting=wrong))
        assert raised.value.code is Code.UNTRUSTED


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff",
        LENGTH.pack(3) + b"abc",
        frame(Welcome()) + frame(Piece(STDOUT, 1, b"gap")),
        frame(Welcome())
        + b"".join(frame(Piece(STDOUT, n * PIECE, bytes(PIECE))) for n in range(40)),
        frame(Welcome()) + frame(Piece(STDIN, 0, b"x")),
        frame(Welcome()) + frame(Got(STDIN, 99)),
        frame(Welcome()) + frame(Got(files_in(0), 0)),
        frame(Welcome(has={STDIN: 5})),
        frame(Welcome()) + frame(Welcome()),
        frame(Welcome()) + frame(EndOf(STDOUT, 9)),
        frame(Ended(OUTCOME)),
    ],
    ids=range(11),
)
async def test_client_believes_no_nonsense(tmp_path: Path, said: bytes) -> None:
    from encamp.door.questions import Ticket
    from encamp.model.meeting import Meeting

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(said)
            await writer.drain()
            await reader.read()
            writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "s")
    meeting = Meeting(
        address="",
        port=0,
        fingerprint="",
        socket=str(tmp_path / "s"),
        boot=boot_id(),
        user=os.geteuid(),
    )
    streams = Streams()
    streams.may_take.clear()
    try:
        ticket = Ticket(host="h", id="j.0.1", secret="x", meeting=meeting)
        async with asyncio.timeout(60):
            with pytest.raises(EncampError) as raised:
                await client(ticket, streams).run()
        assert raised.value.code is Code.PROTOCOL
    finally:
        server.close()


# ── sockets of others ────────────────────────────────────────────────────────────────────────────

IMPOSTOR = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen()
print(flush=True)
sys.stdin.read()
listener.setblocking(False)
heard = b""
while True:
    try:
        connection = listener.accept()[0]
    except BlockingIOError:
        break
    heard += connection.recv(4096)
sys.stdout.buffer.write(heard)
"""


@contextmanager
def impostor(path: Path, user: int) -> Iterator[Callable[[], bytes]]:
    """Another user who listens in an agent's stead, and what is told him."""
    words = [sys.executable, "-I", "-c", IMPOSTOR, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, user=user, group=user, cwd="/") as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield lambda: other.communicate()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(
    ("owner", "mode", "listener"), [(NOBODY, 0o755, 0), (0, 0o777, 0), (0, 0o755, NOBODY)]
)
async def test_a_ticket_is_not_shown_where_another_user_could_listen(
    here: Host, owner: int, mode: int, listener: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="encamp-impostor-") as name:
        place = Path(name)
        place.chmod(0o777)
        path = place / "meeting-0123456789abcdef.sock"
        async with here.job("j.0.1") as conversation:
            there = msgspec.structs.replace(here.meeting, socket=str(path))
            ticket = msgspec.structs.replace(here.ticket("j.0.1"), meeting=there)
            with impostor(path, listener) as heard:
                place.chmod(mode)
                os.chown(place, owner, owner)
                working = asyncio.create_task(conversation.ended(OUTCOME))
                assert await client(ticket).run() == OUTCOME
                await working
                assert heard() == b""


async def test_a_socket_of_another_host_is_not_tried(here: Host, tmp_path: Path) -> None:
    """Its path may be somebody else's here."""
    came: list[object] = []
    server = await asyncio.start_unix_server(lambda *ends: came.append(ends), tmp_path / "s")
    async with here.job("j.0.1") as conversation:
        socket, boot = str(tmp_path / "s"), "another one"
        there = msgspec.structs.replace(here.meeting, socket=socket, boot=boot)
        ticket = msgspec.structs.replace(here.ticket("j.0.1"), meeting=there)
        working = asyncio.create_task(conversation.ended(OUTCOME))
        assert await client(ticket).run() == OUTCOME
        await working
    server.close()
    assert came == []


# ── tickets ──────────────────────────────────────────────────────────────────────────────────────


def test_tickets_are_good_for_one_thing() -> None:
    key = new_key()
    assert secret_for(key, "a") == secret_for(key, "a") != secret_for(key, "b")
    assert secret_for(new_key(), "a") != secret_for(key, "a")
    known = digest(secret_for(key, "a"))
    assert matches(known, secret_for(key, "a"))
    assert not matches(known, secret_for(key, "b"))
    assert not matches(known, known)
    assert not matches("", "")
