"""Talking to a qemu-guest-agent that may be anything: what is in a machine is not ours."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from encamp.machines import qemu_agent
from encamp.machines.qemu_agent import LONGEST, Agent, agent
from encamp.model.errors import Code, EncampError

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def talking_to(peer: Peer) -> AsyncIterator[Agent]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    task = asyncio.create_task(_behave(peer, reader, writer))
    try:
        async with agent(ours) as speaking, asyncio.timeout(60):
            yield speaking
    finally:
        task.cancel()
        await asyncio.wait({task})
        writer.close()


async def _behave(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await peer(reader, writer)
    except OSError:
        pass
    finally:
        writer.close()


async def request(reader: asyncio.StreamReader) -> dict[str, object]:
    line = await reader.readuntil(b"\n")
    asked: dict[str, object] = json.loads(line.lstrip(b"\xff"))
    return asked


def answer(writer: asyncio.StreamWriter, value: object, before: bytes = b"") -> None:
    writer.write(before + json.dumps({"return": value}).encode() + b"\n")


async def synchronize(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    asked = await request(reader)
    assert asked["execute"] == "guest-sync-delimited"
    arguments = asked["arguments"]
    assert isinstance(arguments, dict)
    answer(writer, arguments["id"], before=b"\xff")
    assert (await request(reader))["execute"] == "guest-ping"
    answer(writer, {})


async def test_answers_to_somebody_elses_questions_are_skipped() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"return": {"left": "over"}}\n\xff{"return": 12345678901}\n')
        writer.write(b"\xffno json\n\xff[]\n")
        await synchronize(reader, writer)

    async with talking_to(peer) as speaking:
        await speaking.answered()


async def test_one_that_starts_over_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu_agent, "ASK_AGAIN", 0.05)

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await synchronize(reader, writer)

    async with talking_to(peer) as speaking:
        await speaking.answered()


async def test_script_is_run_to_its_end() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await request(reader)
        assert asked["arguments"] == {"path": "/bin/sh", "arg": ["-c", "exit 7"]}
        answer(writer, {"pid": 42})
        for status in ({"exited": False}, {"exited": True, "exitcode": 7}):
            assert (await request(reader))["arguments"] == {"pid": 42}
            answer(writer, status)

    async with talking_to(peer) as speaking:
        assert await speaking.run("exit 7", interval=0.01) == 7


async def test_refusal_is_told_as_one() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(
            b'{"error": {"class": "CommandNotFound", "desc": "guest-exec is \\u001b[2J"}}\n'
        )
        await reader.read()

    async with talking_to(peer) as speaking:
        with pytest.raises(EncampError) as raised:
            await speaking.run("true")
    assert raised.value.code is Code.NOT_PERMITTED
    assert raised.value.sentence.isprintable()


@pytest.mark.parametrize(
    "said",
    [
        b"x" * (LONGEST + 2),
        b'{"return": "' + b"x" * LONGEST + b'"}\n',
        b'{"return": ' + b"[" * 50000 + b"]" * 50000 + b"}\n",
        b'{"return": {"pid": "many"}}\n',
        b'{"return": []}\n',
        b"\xff\xff\xff\n",
        b"[1, 2, 3]\n",
        b"\n",
        b'{"return": {"pid": 1}\n',
    ],
)
async def test_nonsense_is_refused_and_not_kept(said: bytes) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        await reader.read()

    async with talking_to(peer) as speaking:
        with pytest.raises(EncampError) as raised:
            await speaking.run("true")
    assert raised.value.code is Code.PROTOCOL
    assert len(raised.value.sentence) < 400


async def test_one_that_never_stops_talking_is_not_listened_to_for_ever() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x" * 4096)
            await writer.drain()

    async with talking_to(peer) as speaking:
        with pytest.raises(EncampError) as raised:
            await speaking.answered()
    assert raised.value.code is Code.PROTOCOL


async def test_machine_that_ends_meanwhile_is_noticed() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)

    async with talking_to(peer) as speaking:
        with pytest.raises(EncampError) as raised:
            await speaking.answered()
    assert raised.value.code is Code.MACHINE_LOST


async def test_machine_that_ends_early_is_lost() -> None:
    """What it was asked lies unread in its socket then, so the kernel resets the connection."""
    ours, theirs = socket.socketpair()
    async with agent(ours) as speaking, asyncio.timeout(60):
        asking = asyncio.create_task(speaking.answered())
        await agent_gone(theirs)
        with pytest.raises(EncampError) as raised:
            await asking
    assert raised.value.code is Code.MACHINE_LOST


async def test_machine_that_ends_over_an_answer_is_lost() -> None:
    ours, theirs = socket.socketpair()
    async with agent(ours) as speaking, asyncio.timeout(60):
        asking = asyncio.create_task(speaking.run("true"))
        await agent_gone(theirs)
        with pytest.raises(EncampError) as raised:
            await asking
    assert raised.value.code is Code.MACHINE_LOST


async def agent_gone(connection: socket.socket) -> None:
    """Hang up as soon as something was said."""
    while not select.select([connection], [], [], 0)[0]:
        await asyncio.sleep(0.01)
    connection.close()


async def test_one_that_says_no_text_is_told_as_such() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'\xff{"error": {"class": "x", "desc": "\xfe"}}\n')
        await synchronize(reader, writer)
        await request(reader)
        writer.write(b'{"error": {"class": "x", "desc": "\xfe"}}\n')

    async with talking_to(peer) as speaking:
        await speaking.answered()
        with pytest.raises(EncampError, match="senseless") as caught:
            await speaking.run("true")
    assert caught.value.code is Code.PROTOCOL
