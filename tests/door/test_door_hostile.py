"""Whatever is done at a door, others are answered as before."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path

import msgspec
import pytest

from encamp.door import server
from encamp.door.client import ask_async
from encamp.door.frames import LARGEST_QUESTION, LENGTH, Failure, decode_part, frame
from encamp.door.questions import AskEvents, AskHosts
from encamp.door.server import MOST_OF_ONE, UNREAD, Door
from encamp.machines.account import process_user
from encamp.model.errors import Code
from encamp.model.host import Host
from tests.door.answering import LONG, Answering


@pytest.fixture
async def answering() -> Answering:
    return Answering()


@pytest.fixture
async def door(tmp_path: Path, answering: Answering) -> AsyncIterator[Path]:
    path = tmp_path / "manager.sock"
    async with Door(path, answering):
        yield path


async def others_are_answered(door: Path) -> bool:
    async with aclosing(ask_async(door, AskHosts(hosts=("a", "b")), Host)) as answer:
        return [host.name async for host in answer] == ["a", "b"]


@contextmanager
def knocking(door: Path, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(door))
        connection.setblocking(False)
        if data:
            connection.send(data)
        yield connection


async def everything(connection: socket.socket) -> bytes:
    """All that is said to the connection until it is closed."""
    loop = asyncio.get_running_loop()
    pieces = []
    try:
        while piece := await loop.sock_recv(connection, 65536):
            pieces.append(piece)
    except ConnectionResetError:
        pass  # What it had sent was not all read.
    return b"".join(pieces)


async def answer_to(door: Path, data: bytes) -> Failure:
    with knocking(door, data) as connection:
        said = await everything(connection)
    (length,) = LENGTH.unpack(said[: LENGTH.size])
    part = decode_part(said[LENGTH.size :])
    assert len(said) == LENGTH.size + length
    assert isinstance(part, Failure)
    return part


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_account_of_roots_machines_may_ask_for_nothing(
    door: Path, answering: Answering
) -> None:
    made = process_user(0)
    assert made is not None
    door.parent.chmod(0o711)
    with ExitStack() as held:
        # The directories above it are closed to others.
        directory = os.open(door.parent, os.O_PATH)
        held.callback(os.close, directory)
        os.seteuid(made[0])
        try:
            path = Path(f"/proc/self/fd/{directory}") / door.name
            connection = held.enter_context(knocking(path))
        finally:
            os.seteuid(0)
        connection.send(frame(AskHosts(hosts=("a", "b"))))
        said = await everything(connection)
    assert b"may ask for nothing" in said
    assert answering.peers == []
    assert await others_are_answered(door)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"GET / HTTP/1.1",
        b"\x81\xa4type\xa4Nope",
        b"\x81\xa4type\xa9AskEvents" + b"\xff" * 100,
        b"\x91" * 100_000,
        b"\xdf\xff\xff\xff\xff",
        msgspec.msgpack.encode({"type": "AskEvents", "last": "many"}),
        msgspec.msgpack.encode({"type": "AskHosts", "hosts": [["deep"]]}),
        msgspec.msgpack.encode({"type": "IssueCommand", "hosts": ["a"]}),
    ],
    ids=range(10),
)
async def test_question_that_makes_no_sense_is_refused_in_words(door: Path, body: bytes) -> None:
    failure = await answer_to(door, LENGTH.pack(len(body)) + body)
    assert failure.code is Code.PROTOCOL
    assert "does not understand" in failure.sentence
    assert await others_are_answered(door)


async def test_random_bytes_do_no_harm(door: Path) -> None:
    source = random.Random(4)
    for _ in range(300):
        body = source.randbytes(source.randrange(60))
        failure = await answer_to(door, LENGTH.pack(len(body)) + body)
        assert failure.code is Code.PROTOCOL
    assert await others_are_answered(door)


async def test_question_that_is_too_long_is_refused_before_it_is_read(door: Path) -> None:
    failure = await answer_to(door, LENGTH.pack(LARGEST_QUESTION + 1))
    assert failure.code is Code.USAGE
    assert str(LARGEST_QUESTION) in failure.sentence


async def test_question_as_long_as_allowed_is_answered(door: Path) -> None:
    fill = LARGEST_QUESTION - len(frame(AskHosts(hosts=("a", "b", "x")))) - 10
    asked = AskHosts(hosts=("a", "b", "x" * fill))
    assert LARGEST_QUESTION - 20 < len(frame(asked)) <= LARGEST_QUESTION + LENGTH.size
    async with aclosing(ask_async(door, asked, Host)) as answer:
        assert [len(host.name) async for host in answer] == [1, 1, fill]


async def test_one_who_says_nothing_is_shown_out(
    door: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.05)
    assert "No question was heard" in (await answer_to(door, b"")).sentence
    half = frame(AskHosts(hosts=("a",)))[:-3]
    assert "No question was heard" in (await answer_to(door, half)).sentence


async def test_one_who_leaves_in_the_middle_of_a_question_is_forgotten(
    door: Path, answering: Answering
) -> None:
    whole = frame(AskHosts(hosts=("a",)))
    for length in range(len(whole)):
        with knocking(door, whole[:length]):
            pass
    assert await others_are_answered(door)
    assert len(answering.peers) == 1


async def test_one_who_does_not_read_is_not_told_more(door: Path, answering: Answering) -> None:
    with knocking(door, frame(AskEvents(follow=True))) as slow:
        before = -1
        while before != answering.told or not answering.told:
            before = answering.told
            for _ in range(20):
                assert await others_are_answered(door)
        # What the kernel keeps, and what the daemon does.
        kernel = slow.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) * 2
        assert answering.told * len(LONG) < kernel + UNREAD + 2 * len(LONG)
        assert not answering.ended.is_set()
    await answering.ended.wait()


async def test_one_user_cannot_take_all_places(door: Path) -> None:
    with ExitStack() as held:
        for _ in range(MOST_OF_ONE):
            held.enter_context(knocking(door))
        failure = await answer_to(door, frame(AskHosts()))
        assert (failure.code, failure.transient) == (Code.NO_ROOM, True)
        assert str(MOST_OF_ONE) in failure.sentence
    while (await answer_or_refusal(door)) is Code.NO_ROOM:
        pass
    assert await others_are_answered(door)


async def test_places_are_taken_until_the_answer_is_read(door: Path) -> None:
    """An answer that is complete, but lies in the daemon's memory, counts."""
    long = frame(AskHosts(hosts=tuple("x" * 900 for _ in range(1000))))
    with ExitStack() as held:
        slow = [held.enter_context(knocking(door)) for _ in range(MOST_OF_ONE)]
        for connection in slow:
            await asyncio.get_running_loop().sock_sendall(connection, long)
        assert await answer_or_refusal(door) is Code.NO_ROOM
        for connection in slow:
            assert len(await everything(connection)) > 900_000
    while (await answer_or_refusal(door)) is Code.NO_ROOM:
        pass


async def answer_or_refusal(door: Path) -> Code | None:
    with knocking(door, frame(AskHosts(hosts=("a",)))) as connection:
        said = await everything(connection)
    (length,) = LENGTH.unpack(said[: LENGTH.size])
    part = decode_part(said[LENGTH.size :][:length])
    return part.code if isinstance(part, Failure) else None


async def test_thousands_of_connections_leave_the_manager_its_files(door: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= 2 * MOST_OF_ONE + 100
    before = len(os.listdir("/proc/self/fd"))
    loop = asyncio.get_running_loop()
    for _ in range(30):
        with ExitStack() as held:
            for _ in range(100):
                connection = held.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)
                await loop.sock_connect(connection, str(door))
        while (await answer_or_refusal(door)) is Code.NO_ROOM:
            pass
    assert await others_are_answered(door)
    while len(os.listdir("/proc/self/fd")) > before:
        await asyncio.sleep(0.001)
