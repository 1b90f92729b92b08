"""Hosts that come and go on one port, and hosts that read slowly or not at all."""

from __future__ import annotations

import asyncio
import os
import resource

import pytest

from encamp.agent.copying import RAN_OUT, outcome, success
from encamp.guest.channel import Exec
from encamp.guest.frames import CREDIT_START, FLUSH, Type, encode, header
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine, State
from encamp.model.size import MIB, Size
from tests.guest.support import Guest, read_all, run

PATH = {"PATH": "/usr/bin:/bin"}
IN_MEMORY = "What it writes is kept in its memory: --memory gives one more, or --disk a disk."


def shell(script: str) -> Exec:
    return Exec(args=["sh", "-c", script], env=PATH, uid=os.getuid(), gid=os.getgid())


def halves() -> list[bytes]:
    """A predecessor's last words, cut at every interesting place."""
    long = header(Type.DATA, 0, 1, 65536) + bytes(range(256)) * 100
    return [b"\xec", b"\xec\x04\x00", long[:11], long[:12], long[:13], long, b"\x00" * 5, b"junk"]


@pytest.mark.parametrize("half", halves(), ids=len)
async def test_a_host_that_vanished_in_mid_frame_harms_no_successor(
    guest: Guest, half: bytes
) -> None:
    first = await guest.open()
    first.execute(shell("sleep 600"))
    await first.welcome()
    first.send(half)
    second = await guest.open(fresh=False)
    async with asyncio.timeout(60):
        await second.welcome()
        assert (await run(second, "echo", "hello"))[0] == b"hello\n"


async def test_output_meant_for_a_predecessor_is_skipped(guest: Guest) -> None:
    first = await guest.open()
    stream = first.execute(shell("yes first"))
    await stream.stdout.read()
    # Its reader stops here; what it was sent meanwhile waits in the socket for the next host.
    asyncio.get_running_loop().remove_reader(first._sock.fileno())
    await asyncio.sleep(0.1)
    second = await guest.open(fresh=False)
    async with asyncio.timeout(60):
        await second.welcome()
        assert (await run(second, "echo", "second"))[0] == b"second\n"


async def test_a_new_host_ends_the_commands_of_the_old_one(guest: Guest) -> None:
    first = await guest.open()
    stream = first.execute(shell("trap '' HUP; echo $$; while :; do sleep 0.1; done"))
    process = int(await stream.stdout.read())
    second = await guest.open(fresh=False)
    await second.welcome()
    os.kill(process, 0)
    async with asyncio.timeout(60):
        while (await run(second, "kill", "-0", str(process)))[2].code == 0:
            await asyncio.sleep(0.1)


async def test_a_stale_welcome_is_not_taken_for_an_answer(guest: Guest) -> None:
    first = await guest.open()
    asyncio.get_running_loop().remove_reader(first._sock.fileno())
    await asyncio.sleep(0.1)  # its WELCOME now waits in the socket
    second = await guest.open(fresh=False)
    async with asyncio.timeout(60):
        await second.welcome()
        await second.ping()


async def test_nonsense_drops_the_session_and_says_so(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(shell("sleep 600"))
    await channel.welcome()
    channel.send(b"nonsense")
    with pytest.raises(EncampError, match="dropped the session") as caught:
        await stream.wait()
    assert caught.value.code is Code.PROTOCOL
    second = await guest.open(fresh=False)
    await second.welcome()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(encode(Type.DATA, 1, bytes(65536)) * 7, id="more stdin than it may"),
        pytest.param(encode(Type.EXEC, 1, b""), id="an id that is in use"),
        pytest.param(encode(Type.EXEC, 0, b""), id="stream zero"),
        pytest.param(encode(Type.EXEC, 9, b"\x01"), id="damaged fields"),
        pytest.param(encode(Type.CREDIT, 1, b"\xff" * 4, channel=1), id="boundless credit"),
        pytest.param(encode(Type.SIGNAL, 1, b""), id="a signal without number"),
        pytest.param(encode(Type.SIGNAL, 1, b"\x09\0\0\0\1\0"), id="too long a signal"),
        pytest.param(encode(Type.GO, 1, b"\0"), id="a word to begin with something behind it"),
        pytest.param(encode(Type.WELCOME, 0), id="what only guests say"),
    ],
)
async def test_a_host_that_breaks_the_rules_loses_its_session(guest: Guest, frame: bytes) -> None:
    channel = await guest.open()
    stream = channel.execute(shell("sleep 600"))
    await channel.welcome()
    channel.send(frame)
    with pytest.raises(EncampError) as caught:
        await stream.wait()
    assert caught.value.code is Code.PROTOCOL


async def test_frames_to_commands_that_ended_are_ignored(guest: Guest) -> None:
    channel = await guest.open()
    await run(channel, "true")
    for late in (
        encode(Type.DATA, 1, b"late"),
        encode(Type.END, 1),
        encode(Type.SIGNAL, 1, b"\x09\0\0\0"),
        encode(Type.RESIZE, 1, b"\1\0\1\0"),
        encode(Type.CREDIT, 1, b"\1\0\0\0", channel=1),
        encode(Type.GO, 1),
        FLUSH,
    ):
        channel.send(late)
    await channel.ping()


async def test_a_slow_reader_slows_the_command_and_nothing_else(guest: Guest) -> None:
    channel = await guest.open()
    slow = [channel.execute(shell("yes")) for _ in range(20)]
    before = guest.memory()
    out, _, _ = await run(channel, "seq", "300000")
    assert out.endswith(b"\n300000\n")
    for stream in slow:
        got = 0
        while got < CREDIT_START:
            got += len(await stream.stdout.read())
    assert guest.memory() < before + (2 << 20)
    for stream in slow:
        stream.abandon()
    assert {(await stream.wait()).value for stream in slow} == {9}


async def test_a_command_that_does_not_read_stops_its_writer(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(shell("sleep 600"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await stream.write(bytes(10_000_000))
    assert guest.memory() < 8 << 20
    stream.abandon()
    await stream.wait()


async def test_writing_to_a_command_that_closed_its_stdin_ends_soon(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(shell("exec <&-; sleep 600"))
    async with asyncio.timeout(60):
        while not stream.unread:
            await stream.write(bytes(1_000_000))
    stream.abandon()
    await stream.wait()


async def test_large_streams_pass_in_constant_memory(guest: Guest) -> None:
    channel = await guest.open()
    size = 300 << 20
    chunk = os.urandom(1 << 20)
    stream = channel.execute(shell("cat"))
    await channel.welcome()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def write() -> None:
        for _ in range(size >> 20):
            await stream.write(chunk)
        await stream.end()

    writing = asyncio.ensure_future(write())
    received = 0
    async for piece in stream.stdout:
        received += len(piece)
    await writing
    assert received == size
    assert guest.memory() < 8 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


async def test_discarded_output_does_not_hold_the_command_up(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(shell("head -c 5000000 /dev/zero; echo done >&2"))
    stream.stdout.discard()
    assert await read_all(stream.stderr) == b"done\n"
    assert (await stream.wait()).code == 0


async def test_what_a_failing_command_said_controls_no_terminal(guest: Guest) -> None:
    channel = await guest.open()
    await channel.welcome()
    stream = channel.execute(shell(r"printf 'first\n\033]0;title\007\033[2Jsecond\n' >&2; exit 3"))
    await stream.end()
    ended, said = await outcome(stream)
    assert ended.code == 3
    first, second = said.split("\n")
    assert (first, second.isprintable(), second.endswith("second")) == ("first", True, True)


@pytest.mark.parametrize(
    ("said", "disk", "cure"),
    [
        ("big: No space left on device", 0, IN_MEMORY),
        ("big: No space left on device", MIB, "--disk gives one more."),
        (f"{RAN_OUT}, and its kernel ended processes for that.", 0, IN_MEMORY),
        (f"{RAN_OUT}, and its kernel ended processes for that.", MIB, "--memory gives one more."),
        ("big: Permission denied", 0, ""),
    ],
)
async def test_what_did_not_fit_into_a_machine_says_what_gives_it_more(
    guest: Guest, said: str, disk: int, cure: str
) -> None:
    size = Size(1, 128 * MIB, disk)
    into = Machine("0" * 32, "work", 0, "here", "mini", "", size, State.RUNNING, "", 1.0, 1.0)
    channel = await guest.open()
    await channel.welcome()
    stream = channel.execute(shell(f"echo '{said}' >&2; exit 1"))
    with pytest.raises(EncampError) as raised:
        await success(stream, "big could not be copied in", into)
    assert (raised.value.code, raised.value.hint) == (Code.COPY_FAILED, cure)
