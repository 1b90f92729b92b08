"""A session with the real guest program: commands, their streams, and how they end."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from encamp.guest.channel import Channel, Exec, Exit, File, Hello, Kind, Network, User
from encamp.guest.frames import STDOUT, Type, encode, header
from encamp.model.errors import Code, EncampError
from tests.guest.support import MACHINE, Guest, read_all, run, welcome

PATH = {"PATH": "/usr/bin:/bin"}

T = TypeVar("T")


def command(*args: str, terminal: tuple[int, int] | None = None) -> Exec:
    return Exec(args=list(args), env=PATH, uid=os.getuid(), gid=os.getgid(), terminal=terminal)


async def test_guest_answers_the_hello(guest: Guest) -> None:
    channel = await guest.open()
    welcome = await channel.welcome()
    assert (welcome.version, welcome.machine) == (1, MACHINE)
    assert welcome.uptime_ns > 0


async def test_outputs_are_separate_and_exact(guest: Guest) -> None:
    channel = await guest.open()
    out, err, ended = await run(
        channel, "sh", "-c", r"printf 'out\0\377'; printf 'err\r\n' >&2; exit 3"
    )
    assert (out, err, ended.code) == (b"out\0\xff", b"err\r\n", 3)


async def test_stdin_arrives_exactly_and_ends(guest: Guest) -> None:
    channel = await guest.open()
    data = os.urandom(3_000_000)
    out, _, ended = await run(channel, "cat", stdin=data)
    assert out == data
    assert ended.code == 0


async def test_a_buffer_can_be_used_again_at_once(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(command("cat"))
    reading = asyncio.ensure_future(read_all(stream.stdout))
    buffer = bytearray(100_000)
    for value in range(20):
        buffer[:] = bytes([value]) * len(buffer)
        await stream.write(buffer)
    await stream.end()
    assert await reading == b"".join(bytes([value]) * len(buffer) for value in range(20))


async def test_environment_directory_and_arguments_are_as_given(guest: Guest) -> None:
    channel = await guest.open()
    env = {**PATH, "ONE": "1 = one", "TWO": "zwö"}
    stream = channel.execute(
        Exec(
            args=["sh", "-c", 'pwd; echo "$#" "$2"; env | sort', "sh", "a b", ""],
            env=env,
            cwd="/usr",
            uid=os.getuid(),
            gid=os.getgid(),
        )
    )
    lines = (await read_all(stream.stdout)).decode().splitlines()
    assert lines[:2] == ["/usr", "2 "]
    assert {"ONE=1 = one", "TWO=zwö"} <= set(lines)
    assert not [line for line in lines if line.startswith("HOME=")]


@pytest.mark.parametrize(
    ("program", "code"), [("no-such-program", 127), ("/no/such", 127), ("/etc/passwd", 126)]
)
async def test_what_cannot_be_started_says_so(guest: Guest, program: str, code: int) -> None:
    channel = await guest.open()
    _, _, ended = await run(channel, program)
    assert ended.kind is Kind.NOT_STARTED
    assert ended.code == code
    assert "could not be run" in ended.text


async def test_a_missing_working_directory_is_named_as_the_reason(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(
        Exec(args=["true"], env=PATH, cwd="/no/such", uid=os.getuid(), gid=os.getgid())
    )
    ended = await stream.wait()
    assert ended.kind is Kind.NOT_STARTED
    assert "working directory" in ended.text


async def test_a_script_without_a_first_line_is_run_by_the_shell(
    guest: Guest, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("echo from $1\n")
    script.chmod(0o755)
    channel = await guest.open()
    out, _, _ = await run(channel, str(script), "here")
    assert out == b"from here\n"


async def test_a_command_longer_than_a_frame_runs(guest: Guest) -> None:
    channel = await guest.open()
    words = [f"{number:0100d}" for number in range(5000)]
    out, _, ended = await run(channel, "sh", "-c", 'echo "$# ${5000}"', "sh", *words)
    assert ended.code == 0
    assert out == f"5000 {words[-1]}\n".encode()


async def test_signals_reach_the_whole_group(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(command("sh", "-c", "sleep 60 & echo ready; wait"))
    assert await stream.stdout.read() == b"ready\n"
    stream.signal(signal.SIGTERM)
    ended = await stream.wait()
    assert (ended.kind, ended.value, ended.code) == (Kind.KILLED, signal.SIGTERM, 143)


async def test_a_signal_for_the_first_process_alone_reaches_no_other(guest: Guest) -> None:
    channel = await guest.open()
    child = "(trap 'echo child; exit' USR1; echo ready; while :; do sleep 0.02; done) &"
    first = "trap 'echo first' USR1; " + child + " while :; do wait; done"
    stream = channel.execute(command("sh", "-c", first))
    assert await stream.stdout.read() == b"ready\n"
    stream.signal(signal.SIGUSR1, alone=True)
    assert await stream.stdout.read() == b"first\n"
    stream.signal(signal.SIGUSR1)
    said = b""
    while len(said) < len(b"first\nchild\n"):
        said += await stream.stdout.read()
    assert sorted(said.split()) == [b"child", b"first"]
    stream.abandon()


async def test_signals_start_out_as_a_program_expects_them(guest: Guest) -> None:
    channel = await guest.open()
    out, _, _ = await run(channel, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    assert {line.split()[1] for line in out.decode().splitlines()} == {"0000000000000000"}


async def test_merged_outputs_come_in_the_order_in_which_they_were_written(guest: Guest) -> None:
    channel = await guest.open()
    write = "for n in $(seq 300); do echo $n; echo $n >&2; done; exit 3"
    stream = channel.execute(
        Exec(args=["sh", "-c", write], env=PATH, uid=os.getuid(), gid=os.getgid(), merged=True)
    )
    out, err = await asyncio.gather(read_all(stream.stdout), read_all(stream.stderr))
    assert out.split() == [b"%d" % (n // 2 + 1) for n in range(600)]
    assert err == b""
    assert (await stream.wait()).code == 3


async def test_umask_and_limits_are_as_given(guest: Guest) -> None:
    channel = await guest.open()
    show = "umask; ulimit -S -c; ulimit -H -c; ulimit -S -n; ulimit -S -t; ulimit -H -t"
    stream = channel.execute(
        Exec(
            args=["sh", "-c", show],
            env=PATH,
            uid=os.getuid(),
            gid=os.getgid(),
            umask=0o027,
            limits={
                resource.RLIMIT_CORE: (0, 512 * 7),
                resource.RLIMIT_NOFILE: (77, 100),
                resource.RLIMIT_CPU: (1234, resource.RLIM_INFINITY),
                99: (1, 1),  # no kernel has it
            },
        )
    )
    assert (await read_all(stream.stdout)).split() == b"0027 0 7 77 1234 unlimited".split()
    assert (await stream.wait()).code == 0


async def test_a_command_that_says_nothing_of_it_has_the_usual_umask(guest: Guest) -> None:
    channel = await guest.open()
    out, _, _ = await run(channel, "sh", "-c", "umask")
    assert out == b"0022\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may have more")
async def test_more_open_files_than_the_kernel_allows_are_as_many_as_it_does(
    guest: Guest,
) -> None:
    most = int(Path("/proc/sys/fs/nr_open").read_text())
    if most > 1 << 20:
        pytest.skip("this kernel allows more than others")
    channel = await guest.open()
    limits = {resource.RLIMIT_NOFILE: (512, most + 1)}
    stream = channel.execute(Exec(args=["sh", "-c", "ulimit -S -n"], env=PATH, limits=limits))
    assert await read_all(stream.stdout) == b"512\n"


async def test_commands_inherit_no_descriptors(guest: Guest) -> None:
    channel = await guest.open()
    out, _, _ = await run(channel, "ls", "/proc/self/fd")
    assert out.split() == [b"0", b"1", b"2", b"3"], "three, and the one that ls reads them with"


async def test_exit_does_not_wait_for_what_the_command_left_behind(guest: Guest) -> None:
    channel = await guest.open()
    async with asyncio.timeout(60):
        out, _, ended = await run(channel, "sh", "-c", "sleep 600 & echo $!; echo done")
    left, done = out.decode().split()
    os.kill(int(left), signal.SIGKILL)
    assert (done, ended.code) == ("done", 0)


async def test_all_output_comes_before_the_exit(guest: Guest) -> None:
    channel = await guest.open()
    for _ in range(20):
        out, err, _ = await run(channel, "sh", "-c", "seq 20000; seq 20000 >&2")
        assert out == err
        assert out.endswith(b"\n20000\n")


async def test_terminal_has_the_size_it_was_given_and_follows(guest: Guest) -> None:
    channel = await guest.open()
    script = "stty size; test -t 0 -a -t 1 -a -t 2 && echo all; read x; stty size"
    stream = channel.execute(command("sh", "-c", script, terminal=(33, 99)))
    out = b""
    while b"all" not in out:
        out += await stream.stdout.read()
    stream.resize(50, 120)
    await stream.write(b"go\n")
    out += await read_all(stream.stdout)
    assert out.split() == [b"33", b"99", b"all", b"go", b"50", b"120"]
    assert (await stream.wait()).code == 0


async def test_end_of_input_ends_a_reader_at_a_terminal(guest: Guest) -> None:
    channel = await guest.open()
    for last in (b"whole line\n", b"half a line"):
        stream = channel.execute(command("cat", terminal=(24, 80)))
        await stream.write(last)
        await stream.end()
        async with asyncio.timeout(60):
            await read_all(stream.stdout)
            assert (await stream.wait()).code == 0


async def test_interrupt_typed_at_a_terminal_interrupts(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(command("cat", terminal=(24, 80)))
    await stream.write(b"ready\n")
    out = b""
    while out.count(b"ready") < 2:  # once echoed by the terminal, once said by cat
        out += await stream.stdout.read()
    await stream.write(b"\x03")
    stream.stdout.discard()
    assert (await stream.wait()).value == signal.SIGINT


async def test_requests_are_answered_in_order_without_waiting(guest: Guest) -> None:
    channel = await guest.open()
    user = channel.user(
        User(name="me", uid=1000, gid=1000, group="us", groups={100: "users"}, home="/home/me")
    )
    network = channel.network(Network(address="10.0.2.15", prefix=24, gateway="10.0.2.2"))
    out, _, _ = await run(channel, "echo", "hello")
    await asyncio.gather(user, network, channel.ping())
    assert out == b"hello\n"


async def test_a_failed_request_keeps_later_commands_from_running(guest: Guest) -> None:
    channel = await guest.open()
    mount = channel.mount("work", "/work")
    _, _, ended = await run(channel, "true")
    assert ended.kind is Kind.NOT_STARTED
    assert "outside a machine" in ended.text
    with pytest.raises(EncampError, match="outside a machine") as caught:
        await mount
    assert caught.value.code is Code.CONFIGURATION
    await (await guest.open(fresh=False)).welcome()


async def test_malformed_requests_are_refused_by_the_guest(guest: Guest) -> None:
    channel = await guest.open()
    with pytest.raises(EncampError, match="absolute path"):
        await channel.mount("work", "../etc")
    with pytest.raises(EncampError, match="a user needs"):
        await channel.user(User(name="a:b", uid=1, gid=1, group="g", home="/h"))
    with pytest.raises(EncampError, match="a network needs"):
        await channel.network(Network(address="nonsense", prefix=24))


async def test_many_commands_at_once(guest: Guest) -> None:
    channel = await guest.open()
    results = await asyncio.gather(
        *(run(channel, "sh", "-c", f"cat; exit {n}", stdin=b"%d" % n * 5000) for n in range(100))
    )
    for number, (out, _, ended) in enumerate(results):
        assert (out, ended.code) == (b"%d" % number * 5000, number)


async def test_too_many_commands_are_refused_one_by_one(guest: Guest) -> None:
    channel = await guest.open()
    streams = [channel.execute(command("cat")) for _ in range(140)]
    refused = [await stream.wait() for stream in streams[128:]]
    assert {ended.kind for ended in refused} == {Kind.NOT_STARTED}
    assert "too many" in refused[0].text
    for stream in streams[:128]:
        await stream.end()
    assert {(await stream.wait()).code for stream in streams[:128]} == {0}


async def test_closing_ends_what_still_runs(guest: Guest) -> None:
    channel = await guest.open()
    stream = channel.execute(command("sh", "-c", "echo $$; exec sleep 600"))
    process = int(await stream.stdout.read())
    await channel.close()
    with pytest.raises(EncampError) as caught:
        await stream.wait()
    assert caught.value.code is Code.MACHINE_LOST
    guest.sock.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(60):
        while Path(f"/proc/{process}").exists():
            await asyncio.sleep(0.02)


# ── held commands ────────────────────────────────────────────────────────────────────────────────


def held(script: str, *, files: dict[str, File] | None = None) -> Exec:
    wanted = command("sh", "-c", script)
    return msgspec.structs.replace(wanted, held=True, files=files or {})


@pytest.fixture(params=["prepared", "forked"])
async def ready(guest: Guest, request: pytest.FixtureRequest) -> Channel:
    """Its next held command gets the process that was there before any host was; or that is gone,
    and it gets one that is made for it."""
    (prepared,) = await eventually(lambda: children_of(guest))
    channel = await guest.open()
    if request.param == "forked":
        assert (await told_to_go(channel, held("echo $$")))[0] == f"{prepared}\n".encode()
    return channel


async def told_to_go(channel: Channel, wanted: Exec) -> tuple[bytes, Exit]:
    stream = channel.execute(wanted)
    stream.go()
    return await read_all(stream.stdout), await stream.wait()


async def eventually(look: Callable[[], T]) -> T:
    async with asyncio.timeout(30):
        while not (found := look()):
            await asyncio.sleep(0.01)
    return found


async def test_a_held_command_begins_when_it_is_told_to(
    guest: Guest, ready: Channel, tmp_path: Path
) -> None:
    began, brought = tmp_path / "began", tmp_path / "brought" / "file"
    stream = ready.execute(
        held(f"touch {began}; cat {brought} -; exit 3", files={str(brought): File(0o600, b"1 ")})
    )
    await stream.write(b"2")
    await stream.end()
    await eventually(brought.exists)
    assert (await run(ready, "sleep", "0.3"))[2].code == 0
    assert not began.exists()
    stream.go()
    assert await read_all(stream.stdout) == b"1 2"
    assert (await stream.wait()).code == 3
    assert began.exists()
    stream.go()
    await ready.ping()


async def test_a_held_command_that_cannot_begin_says_so(ready: Channel, tmp_path: Path) -> None:
    wanted = msgspec.structs.replace(held("true"), cwd=str(tmp_path / "missing"))
    ended = await ready.execute(wanted).wait()
    assert ended.kind is Kind.NOT_STARTED
    missing = msgspec.structs.replace(command("no-such-program"), held=True)
    assert (await told_to_go(ready, missing))[1].code == 127


async def test_a_held_command_without_its_program_says_so(ready: Channel) -> None:
    missing = msgspec.structs.replace(command("no-such-program"), held=True)
    ended = (await told_to_go(ready, missing))[1]
    assert (ended.kind, ended.value) == (Kind.NOT_STARTED, errno.ENOENT)


async def test_a_held_command_can_be_killed(ready: Channel) -> None:
    stream = ready.execute(held("echo never"))
    stream.signal(signal.SIGKILL)
    assert await read_all(stream.stdout) == b""
    assert await stream.wait() == Exit(Kind.KILLED, signal.SIGKILL)
    stream.go()
    await ready.ping()


async def test_a_held_command_never_begins_if_its_host_goes(
    guest: Guest, ready: Channel, tmp_path: Path
) -> None:
    began, brought = tmp_path / "began", tmp_path / "brought" / "file"
    ready.execute(held(f"trap '' HUP; touch {began}", files={str(brought): File(0o600, b"")}))
    await eventually(brought.exists)
    (process,) = children_of(guest)
    second = await guest.open(fresh=False)
    await second.welcome()
    await eventually(lambda: children_of(guest) != [process])
    assert not began.exists()


SURROUNDINGS = """
grep -E '^(SigBlk|SigIgn|Umask|NoNewPrivs)' /proc/self/status
ulimit -n; ulimit -c; ls /proc/self/fd
ps -o pgid=,sid= -p $$ | tr -s ' ' '\n' | grep -vc $$; chrt -p $$ | cut -d: -f2
"""


async def test_what_is_around_a_held_command_is_what_is_around_any(guest: Guest) -> None:
    """However its process has come about."""
    await eventually(lambda: children_of(guest))
    channel = await guest.open()
    limits = {resource.RLIMIT_CORE: (0, 0)}
    wanted = msgspec.structs.replace(held(SURROUNDINGS), umask=0o027, limits=limits)
    first = await told_to_go(channel, wanted)
    others = [
        await told_to_go(channel, msgspec.structs.replace(wanted, held=is_held))
        for is_held in (True, False)
    ]
    assert [other[0].decode() for other in others] == [first[0].decode()] * 2
    assert b"Umask:\t0027" in first[0]


async def test_a_held_command_may_have_both_outputs_in_one(ready: Channel) -> None:
    wanted = msgspec.structs.replace(held("echo 1; echo 2 >&2; echo 3"), merged=True)
    assert (await told_to_go(ready, wanted))[0] == b"1\n2\n3\n"


@pytest.mark.parametrize("size", [60_000, 70_000])
async def test_a_held_command_may_be_large(ready: Channel, size: int) -> None:
    wanted = msgspec.structs.replace(held("echo ${#LARGE}"), env={"LARGE": "x" * size, **PATH})
    assert (await told_to_go(ready, wanted))[0] == f"{size}\n".encode()


async def test_commands_go_on_without_a_prepared_process(guest: Guest) -> None:
    (prepared,) = await eventually(lambda: children_of(guest))
    os.kill(guest.process.pid, signal.SIGSTOP)
    channel = await guest.open()
    stream = channel.execute(held("echo well"))
    os.kill(int(prepared), signal.SIGKILL)
    await eventually(lambda: " Z " in Path(f"/proc/{prepared}/stat").read_text())
    os.kill(guest.process.pid, signal.SIGCONT)
    stream.go()
    assert await read_all(stream.stdout) == b"well\n"


def children_of(guest: Guest) -> list[str]:
    pid = guest.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# ── the end ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_lost_machine_fails_everything_that_waits() -> None:
    ours, theirs = socket.socketpair()
    hello = Hello(machine=MACHINE, hostname="test")
    channel = await Channel.open(ours, hello, fresh=True)
    stream = channel.execute(command("true"))
    blocked = asyncio.ensure_future(stream.write(bytes(10_000_000)))
    waiting = [
        asyncio.ensure_future(waiter)
        for waiter in (channel.welcome(), channel.ping(), stream.wait(), stream.stdout.read())
    ]
    await asyncio.sleep(0)
    theirs.close()
    for failed in await asyncio.gather(blocked, *waiting, return_exceptions=True):
        assert isinstance(failed, EncampError)
        assert failed.code is Code.MACHINE_LOST
    with pytest.raises(EncampError):
        channel.execute(command("true"))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(header(99, 0, 0, 0), id="an unknown frame"),
        pytest.param(encode(Type.DONE, 77, b""), id="an answer without fields"),
        pytest.param(
            encode(Type.DATA, 1, bytes(65536), channel=STDOUT) * 5, id="beyond its credit"
        ),
        pytest.param(encode(Type.EXIT, 1, b"\1"), id="a damaged exit"),
        pytest.param(encode(Type.CREDIT, 1, b"\xff" * 4), id="boundless credit"),
    ],
)
async def test_a_guest_that_breaks_the_rules_is_cut_off(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        hello = Hello(machine=MACHINE, hostname="test")
        channel = await Channel.open(ours, hello, fresh=True)
        stream = channel.execute(command("true"))
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(theirs, welcome(hello.nonce) + sent)
        with pytest.raises(EncampError) as caught:
            await stream.wait()
        assert caught.value.code is Code.PROTOCOL
