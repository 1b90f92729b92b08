"""Commands of the host's that are called in a machine: what goes there, and what comes back."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from encamp.guest.call import CREDIT, Call
from encamp.guest.channel import Channel, Exec, Exit, Hello, Kind, User
from encamp.guest.frames import (
    CALL_BIT,
    PART,
    STDERR,
    STDIN,
    STDOUT,
    U32,
    Key,
    Type,
    encode,
    encode_fields,
)
from encamp.guest.relay import Relay
from encamp.machines import sockets
from tests.guest.support import Guest, read_all, run, welcome

PATIENCE = 60


class Host:
    """Offers commands, and keeps those who call."""

    def __init__(self, channel: Channel, directory: Path) -> None:
        self.channel = channel
        self.directory = directory
        self.calls: asyncio.Queue[Call] = asyncio.Queue()

    async def offer(self, *names: str, uid: int | None = None) -> None:
        who = os.getuid() if uid is None else uid
        await self.channel.calls(str(self.directory), names, who, self.calls.put_nowait)

    async def call(self, name: str, *words: str, **options: Any) -> Process:
        return await asyncio.create_subprocess_exec(
            self.directory / name, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, **options
        )

    async def called(self) -> Call:
        async with asyncio.timeout(PATIENCE):
            return await self.calls.get()


@pytest.fixture
async def host(guest: Guest, tmp_path: Path) -> Host:
    host = Host(await guest.open(), tmp_path / "bin")
    await host.offer("squeue", "srun")
    return host


async def finished(process: Process, input: bytes | None = None) -> tuple[int, bytes, bytes]:
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate(input)
    assert process.returncode is not None
    return process.returncode, out, err


async def test_what_was_asked_before_is_answered_before_they_are_made(
    guest: Guest, tmp_path: Path
) -> None:
    """Whoever has asked goes on meanwhile."""
    place = tmp_path / "bin"
    place.mkdir()
    blocked = place / ".program.new"
    os.mkfifo(blocked)
    channel = await guest.open()
    # In one piece, as it is sent to a machine that is about to wake up.
    channel._writing = True
    answered = channel.user(User(name="me", uid=1, gid=1, group="us", home="/"))
    offered = channel.calls(str(place), ["squeue"], os.getuid(), lambda call: None)
    channel._writing = False
    channel._flush()
    async with asyncio.timeout(PATIENCE):
        await channel.welcome()
        await answered
        with open(blocked, "rb", buffering=0) as freed:
            await asyncio.to_thread(freed.readall)
        await offered


async def test_a_call_brings_its_words_variables_and_directory(host: Host, tmp_path: Path) -> None:
    process = await host.call("squeue", "-j", "17", "", env={"A": "b c"}, cwd=tmp_path)
    call = await host.called()
    assert call.asked.args == (b"squeue", b"-j", b"17", b"")
    assert call.asked.env == (b"A=b c",)
    assert call.asked.cwd == os.fsencode(tmp_path)
    await call.write(STDOUT, b"out\n")
    await call.write(STDERR, b"err\n")
    call.finish(Exit(Kind.EXITED, 3))
    assert await finished(process) == (3, b"out\n", b"err\n")


async def test_one_that_is_killed_by_a_signal_kills_its_caller_too(host: Host) -> None:
    process = await host.call("srun")
    (await host.called()).finish(Exit(Kind.KILLED, 15))
    assert await finished(process) == (-15, b"", b"")


async def test_one_that_is_refused_says_why(host: Host) -> None:
    process = await host.call("srun")
    (await host.called()).refuse(2, "it is not there")
    assert await finished(process) == (127, b"", b"encamp: srun: it is not there.\n")


async def test_what_the_command_does_not_read_is_left_to_others(
    host: Host, guest: Guest, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("one\ntwo\n")
    loop = f"while read -r word; do {host.directory}/squeue $word; done < {tmp_path}/list"
    process = await asyncio.create_subprocess_exec("sh", "-c", loop, stdout=PIPE, stderr=PIPE)
    for word in (b"one", b"two"):
        call = await host.called()
        assert call.asked.args[1] == word
        call.stop_input()
        call.finish(Exit(Kind.EXITED, 0))
    assert await finished(process) == (0, b"", b"")


async def test_streams_may_be_closed(host: Host) -> None:
    words = f"{host.directory}/squeue <&- >&- 2>&-; echo $?"
    process = await asyncio.create_subprocess_exec("sh", "-c", words, stdout=PIPE, stderr=PIPE)
    call = await host.called()
    call.want_input()
    assert await call.read() == b""
    await call.write(STDOUT, b"out\n" * 10)
    await call.write(STDERR, b"err\n" * 10)
    call.finish(Exit(Kind.EXITED, 3))
    assert await finished(process) == (0, b"3\n", b"")


async def test_input_and_output_of_any_length_pass_and_stay_bounded(host: Host) -> None:
    process = await host.call("srun", "cat")
    call = await host.called()
    content = os.urandom(3_000_000)

    async def echo() -> None:
        call.want_input()
        while data := await call.read():
            await call.write(STDOUT, data)
        call.finish(Exit(Kind.EXITED, 0))

    async with asyncio.timeout(PATIENCE):
        _, (code, out, err) = await asyncio.gather(echo(), finished(process, content))
    assert (code, out == content, err) == (0, True, b"")


async def test_a_command_whose_output_nobody_reads_has_to_wait(host: Host, guest: Guest) -> None:
    process = await host.call("squeue")
    call = await host.called()
    writing = asyncio.create_task(call.write(STDOUT, bytes(40 * CREDIT)))
    # Others are not held up by that.
    assert (await run(host.channel, "echo", "hello"))[0] == b"hello\n"
    assert not writing.done()
    process.kill()
    async with asyncio.timeout(PATIENCE):
        await call.gone
        await writing
    await finished(process)


async def test_signals_of_the_caller_are_the_commands(host: Host) -> None:
    process = await host.call("srun")
    call = await host.called()
    signals: asyncio.Queue[int] = asyncio.Queue()
    call.on_signal = signals.put_nowait
    await call.write(STDOUT, b"there\n")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"there\n"  # So its signals are taken by now.
    for number in (15, 10, 2):
        process.send_signal(number)
        async with asyncio.timeout(PATIENCE):
            assert await signals.get() == number
    call.finish(Exit(Kind.EXITED, 0))
    assert (await finished(process))[0] == 0


async def test_more_calls_than_there_may_be_wait(host: Host) -> None:
    processes = [await host.call("squeue", str(number)) for number in range(40)]
    for _ in processes:
        (await host.called()).finish(Exit(Kind.EXITED, 7))
    assert [(await finished(process))[0] for process in processes] == [7] * 40


async def test_a_call_may_be_said_after_others_that_came_later(host: Host) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as slow:
        slow.setblocking(False)
        await loop.sock_connect(slow, str(host.directory / ".calls"))
        process = await host.call("squeue")
        (await host.called()).finish(Exit(Kind.EXITED, 0))
        assert (await finished(process))[0] == 0
        await loop.sock_sendall(slow, ASK)
        call = await host.called()
        assert call.asked.args == (b"srun",)
        call.finish(Exit(Kind.EXITED, 0))
        async with asyncio.timeout(PATIENCE):
            assert (await loop.sock_recv(slow, 4096))[1] == Type.EXIT


async def test_calls_end_with_the_session(host: Host, guest: Guest) -> None:
    process = await host.call("srun")
    call = await host.called()
    second = await guest.open(fresh=False)
    await second.welcome()
    assert call.gone.done()
    code, _, err = await finished(process)
    assert (code, err) == (75, b"encamp: srun: the connection with the host was lost.\n")
    code, _, err = await finished(await host.call("srun"))
    assert (code, err) == (75, b"encamp: srun: the job that could call it here has ended.\n")
    again = Host(second, host.directory)
    await again.offer("srun")
    process = await again.call("srun")
    (await again.called()).finish(Exit(Kind.EXITED, 0))
    assert (await finished(process))[0] == 0


async def test_nobody_but_the_jobs_user_may_call(host: Host) -> None:
    await host.offer("srun", uid=os.getuid() + 1)
    code, _, err = await finished(await host.call("srun"))
    assert code == 126
    assert b"only the job's own user" in err
    assert host.calls.empty()


async def test_many_variables_come_in_pieces(host: Host) -> None:
    variables = {f"V{number}": "x" * 100_000 for number in range(18)}
    process = await host.call("srun", env=variables)
    call = await host.called()
    assert call.asked.env == tuple(f"{name}={text}".encode() for name, text in variables.items())
    call.finish(Exit(Kind.EXITED, 0))
    assert (await finished(process))[0] == 0


def raw(type: int, payload: bytes = b"", channel: int = 0) -> bytes:
    return encode(type, 0, payload, channel=channel)


ASK = raw(Type.CALL, encode_fields([(Key.ARG, b"srun"), (Key.CWD, b"/")]))


@pytest.mark.parametrize(
    "said",
    [
        b"\0" * 100,
        b"\xec\x13\0\0\0\0\0\0\xff\xff\xff\xff",
        raw(Type.DATA, b"before"),
        raw(Type.EXEC, b"command"),
        raw(Type.WELCOME),
        raw(Type.DONE),
        ASK + ASK,
        ASK + raw(Type.DATA, b"other", channel=STDOUT),
        ASK + raw(Type.CREDIT, bytes(4), channel=STDIN),
        ASK + raw(Type.EXIT),
    ],
)
async def test_a_caller_that_says_what_it_may_not_is_hung_up_on(host: Host, said: bytes) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, str(host.directory / ".calls"))
        await loop.sock_sendall(sock, said)
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):
                while await loop.sock_recv(sock, 4096):
                    pass
    await host.channel.ping()
    while not host.calls.empty():
        call = host.calls.get_nowait()
        async with asyncio.timeout(PATIENCE):
            await call.gone


async def test_a_caller_that_sends_more_than_it_may_loses_its_call(host: Host) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, str(host.directory / ".calls"))
        await loop.sock_sendall(sock, ASK + raw(Type.DATA, b"not asked for"))
        call = await host.called()
        async with asyncio.timeout(PATIENCE):
            await call.gone
    await host.channel.ping()


async def test_one_that_grants_more_than_it_takes_loses_its_call(host: Host) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, str(host.directory / ".calls"))
        await loop.sock_sendall(sock, ASK + raw(Type.CREDIT, U32.pack(1 << 28), STDOUT))
        call = await host.called()
        async with asyncio.timeout(PATIENCE):
            await call.write(STDOUT, bytes(1 << 24))
            await call.gone
    await host.channel.ping()


async def test_names_that_lead_elsewhere_are_not_put_there(guest: Guest, tmp_path: Path) -> None:
    host = Host(await guest.open(), tmp_path / "bin")
    for name in ("../srun", "a/b", "", ".program", "x" * 65):
        with pytest.raises(Exception, match="refused commands of the host's"):
            await host.offer(name)
    assert (await run(host.channel, "echo", "hello"))[0] == b"hello\n"


async def test_who_shares_a_session_answers_the_calls_of_its_own_commands(
    host: Host, tmp_path: Path
) -> None:
    relay = Relay(host.channel, sockets.listen(tmp_path, "door"), bytes(16), most=8)
    hello = Hello(machine=bytes(16), hostname="relayed")
    async with await Channel.open(sockets.connect(tmp_path, "door"), hello, fresh=True) as channel:
        other = Host(channel, host.directory)
        await other.offer("squeue", "srun")
        command = Exec(
            args=[str(host.directory / "srun"), "x" * 100_000],
            env={},
            uid=os.getuid(),
            gid=os.getgid(),
        )
        mine, its = host.channel.execute(command), channel.execute(command)
        for stream, asked in ((mine, host), (its, other)):
            call = await asked.called()
            assert call.asked.args == (b"srun", b"x" * 100_000)
            call.want_input()
            await stream.write(b"read")
            await stream.end()
            async with asyncio.timeout(PATIENCE):
                assert await call.read() == b"read"
                await call.write(STDOUT, bytes(3 * CREDIT))
                call.finish(Exit(Kind.EXITED, 4))
                assert len(await read_all(stream.stdout)) == 3 * CREDIT
                stream.stderr.discard()
                assert (await stream.wait()).code == 4
        left = host.channel.execute(command)
        its = channel.execute(command)
        await other.called()
    # It has gone: its command is ended, and nobody waits for what it called.
    (await host.called()).finish(Exit(Kind.EXITED, 0))
    left.stdout.discard()
    left.stderr.discard()
    async with asyncio.timeout(PATIENCE):
        assert (await left.wait()).code == 0
    relay.close()


# ── a guest program that lies ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [CALL_BIT, CALL_BIT | 1, 0xFFFFFFFF])
async def test_the_host_survives_forged_calls(stream: int) -> None:
    ours, theirs = socket.socketpair()
    hello = Hello(machine=bytes(16), hostname="test", nonce=bytes(16))
    said = encode_fields([(Key.ARG, b"a"), (Key.ENV, b"\0")])
    frames = [
        encode(Type.DATA, stream, b"x"),
        encode(Type.END, stream),
        encode(Type.CREDIT, stream, U32.pack(1), channel=STDERR),
        encode(Type.SIGNAL, stream, U32.pack(9)),
        encode(Type.EXIT, stream, b"\1"),
        encode(Type.CALL, stream, b"\1\2\3"),
        encode(Type.CALL, stream, said),
        *[encode(Type.CALL, CALL_BIT | (2 + n), bytes(60000), channel=PART) for n in range(100)],
        *[encode(Type.CALL, CALL_BIT | 200, bytes(65536), channel=PART)] * 70,
    ]
    called: list[Call] = []
    with theirs:
        theirs.setblocking(False)
        async with await Channel.open(ours, hello, fresh=True) as channel:
            offered = channel.calls("/run", ["srun"], 0, called.append)
            loop = asyncio.get_running_loop()

            async def read() -> None:
                while await loop.sock_recv(theirs, 1 << 20):
                    pass

            reading = asyncio.create_task(read())
            await loop.sock_sendall(theirs, welcome(bytes(16)) + b"".join(frames))
            done = encode_fields([(Key.ERROR, U32.pack(0)), (Key.TEXT, b"")])
            await loop.sock_sendall(theirs, encode(Type.DONE, 1, done))
            async with asyncio.timeout(PATIENCE):
                await offered
            assert channel.error is None
            assert not called
            reading.cancel()
            await asyncio.wait({reading})


async def test_a_guest_that_hears_nothing_cannot_fill_the_hosts_memory() -> None:
    """Each call is answered, and none of the answers is taken."""
    ours, theirs = socket.socketpair()
    hello = Hello(machine=bytes(16), hostname="test", nonce=bytes(16))
    loop = asyncio.get_running_loop()
    with theirs:
        theirs.setblocking(False)
        async with await Channel.open(ours, hello, fresh=True) as channel:
            await loop.sock_sendall(theirs, welcome(bytes(16)))
            with suppress(ConnectionError):
                async with asyncio.timeout(PATIENCE):
                    for number in range(1, 1_000_000):
                        await loop.sock_sendall(theirs, encode(Type.CALL, CALL_BIT | number))
            assert channel.error is not None
            assert "hears nothing" in channel.error.sentence


async def test_calls_may_come_in_another_order_than_they_were_begun() -> None:
    """Whoever shares a session has them passed on when each is whole."""
    ours, theirs = socket.socketpair()
    hello = Hello(machine=bytes(16), hostname="test", nonce=bytes(16))
    called: asyncio.Queue[Call] = asyncio.Queue()
    said = encode_fields([(Key.ARG, b"srun"), (Key.CWD, b"/")])
    late, early, long = (CALL_BIT | number for number in (5, 6, 7))
    frames = [
        *[encode(Type.CALL, long, bytes(65536), channel=PART)] * 70,
        encode(Type.CALL, early, said),
        encode(Type.CALL, late, said[:8], channel=PART),
        encode(Type.CALL, late, said[8:]),
        # It was refused before it came to its end, which is no beginning.
        encode(Type.CALL, long, said),
        encode(Type.CALL, long, said),
    ]
    loop = asyncio.get_running_loop()
    with theirs:
        theirs.setblocking(False)
        async with await Channel.open(ours, hello, fresh=True) as channel:
            channel.calls("/run", ["srun"], 0, called.put_nowait)
            await loop.sock_sendall(theirs, welcome(bytes(16)) + b"".join(frames))
            async with asyncio.timeout(PATIENCE):
                for _ in range(3):
                    assert (await called.get()).asked.args == (b"srun",)
            await channel.close()
    assert called.empty()


def test_the_program_itself_is_no_caller(guest_program: Path) -> None:
    done = subprocess.run([guest_program], capture_output=True, check=False)
    assert done.returncode == 64
