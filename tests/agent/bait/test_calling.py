"""Commands of the batch system's that a job calls: what is run, and what becomes of it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from encamp.agent.bait.calling import MOST, Calling, does_read, variables
from encamp.agent.bait.frames import Asked
from encamp.agent.bait.line import Line
from encamp.guest import call as calls
from encamp.guest.frames import HEADER, STDIN, STDOUT, U32, Bytes, Frame, Type
from encamp.guest.messages import Exit, Kind
from encamp.model.batch import Offered, Reads
from encamp.model.errors import Code, EncampError
from tests.agent.bait.hosting import Host, Person
from tests.batch.starter.double import Door, build

PATIENCE = 60


class Machine:
    """Where calls come from; what is said to it is kept."""

    def __init__(self) -> None:
        self.said: dict[int, list[Frame]] = {}
        self.changed = asyncio.Event()
        self.called: Callable[[calls.Call], None] = lambda call: None
        self.queued: Callable[[], bool] = lambda: False
        """Was it found out that the job is back in the queue?"""
        self._last = 0

    def send(self, *pieces: Bytes) -> None:
        for piece in pieces:
            _, type, channel, _, number, length = HEADER.unpack_from(piece)
            payload = bytes(piece[HEADER.size : HEADER.size + length])
            self.said.setdefault(number, []).append(Frame(type, channel, number, payload))
        self.changed.set()

    async def drained(self) -> None:
        return

    def calls(
        self, directory: str, names: object, uid: int, called: Callable[[calls.Call], None]
    ) -> None:
        self.called = called

    def call(self, *words: str, env: tuple[bytes, ...] = (), cwd: bytes = b"/usr") -> Ringing:
        self._last += 1
        asked = calls.Asked(tuple(map(os.fsencode, words)), env, cwd)
        ringing = Ringing(self, calls.Call(self, self._last, asked), self._last)
        self.called(ringing.call)
        return ringing


class Ringing:
    """One call, as the machine sees it."""

    def __init__(self, machine: Machine, call: calls.Call, number: int) -> None:
        self.machine = machine
        self.call = call
        self.number = number

    @property
    def frames(self) -> list[Frame]:
        return self.machine.said.get(self.number, [])

    def output(self, channel: int = STDOUT) -> bytes:
        data = (one for one in self.frames if (one.type, one.channel) == (Type.DATA, channel))
        return b"".join(one.payload for one in data)

    async def until(self, type: Type, text: bytes = b"") -> Frame:
        async with asyncio.timeout(PATIENCE):
            while True:
                for frame in self.frames:
                    if frame.type == type and text in frame.payload:
                        return frame
                self.machine.changed.clear()
                await self.machine.changed.wait()

    async def ended(self) -> tuple[Kind, int, str]:
        end = Exit.decode((await self.until(Type.EXIT)).payload)
        return end.kind, end.value, end.text

    def say(self, type: Type, payload: bytes = b"", channel: int = 0) -> None:
        assert self.call.receive(Frame(type, channel, self.number, payload))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    door = Door(build(tmp_path_factory.mktemp("starter")))
    door.open()
    try:
        yield door
    finally:
        door.end()


def offered(*words: str, **more: object) -> Offered:
    return Offered(words=words, **more)  # type: ignore[arg-type]


OFFERED = {
    "shell": offered("/bin/sh", "-c"),
    "reader": offered("/bin/sh", "-c", reads=Reads.ALWAYS),
    "good": offered("/bin/echo", "added", check=("/bin/sh", "-c", "yes | head -c 200000")),
    "slow": offered("/bin/echo", check=("/bin/sleep", "1"), lacking="it is not set up"),
    "task": offered("/bin/sh", "-c", tasks=True),
    "bad": offered("/bin/echo", check=("/bin/false",), lacking="it is not set up"),
}


@asynccontextmanager
async def answering(
    door: Door, is_queued: Callable[[], bool] = lambda: False
) -> AsyncIterator[Machine]:
    """A machine whose job's starter is a real one."""
    door.start("slurm:mini", "--", "true", cwd="/")
    visit = door.accept()
    visit.answer(b"B")
    line = Line(visit._connection)
    asked = Asked(system="slurm", variables={"PATH": "/usr/bin:/bin", "TMPDIR": "/outside"})
    machine = Machine()
    machine.queued = lambda: calling.queued.done()
    calling = Calling(line, asked, OFFERED, "mini", is_queued)
    calling.shared = ("/usr",)
    try:
        async with calling.ended():
            calling.offer(machine, 0)  # type: ignore[arg-type]
            yield machine
    finally:
        line.close()
        door.forget()


async def test_a_command_is_run_by_the_starter(door: Door) -> None:
    async with answering(door) as machine:
        script = 'echo "$V $TMPDIR $PATH $(pwd)"; exit 3'
        variables = (b"V=v w", b"TMPDIR=/inside", b"PATH=/inside", b"nonsense", b"=x")
        ringing = machine.call("shell", script, env=variables)
        assert await ringing.ended() == (Kind.EXITED, 3, "")
        assert ringing.output() == b"v w /outside /usr/bin:/bin /usr\n"
        # It does not read: nothing is taken from the caller's input.
        assert not [frame for frame in ringing.frames if frame.type == Type.CREDIT]


async def test_what_is_read_reaches_it_and_its_end_as_well(door: Door) -> None:
    async with answering(door) as machine:
        ringing = machine.call("reader", "cat; kill -9 $$")
        granted = await ringing.until(Type.CREDIT)
        assert U32.unpack(granted.payload)[0] > 1000
        ringing.say(Type.DATA, b"one ")
        ringing.say(Type.DATA, b"two")
        ringing.say(Type.END, channel=STDIN)
        assert await ringing.ended() == (Kind.KILLED, 9, "")
        assert ringing.output() == b"one two"


async def test_only_what_is_offered_is_run(door: Door, tmp_path: Path) -> None:
    async with answering(door) as machine:
        for name in ("touch", "/bin/sh", "../bin/sh", ""):
            kind, _, text = await machine.call(name, str(tmp_path / "ran")).ended()
            assert (kind, text) == (
                Kind.NOT_STARTED,
                "it is not a command that jobs can call from inside",
            )
        assert not (tmp_path / "ran").exists()


async def test_what_is_lacking_is_told(door: Door) -> None:
    async with answering(door) as machine:
        kind, _, text = await machine.call("bad", "word").ended()
        assert (kind, text) == (Kind.NOT_STARTED, "it is not set up")
        ringing = machine.call("good", "word")
        assert await ringing.ended() == (Kind.EXITED, 0, "")
        assert ringing.output() == b"added word\n"


async def test_one_that_nobody_waits_for_any_more_is_ended(door: Door) -> None:
    async with answering(door) as machine:
        ringing = machine.call("shell", "echo $$; exec sleep 600")
        await ringing.until(Type.DATA)
        ringing.call.hang_up()
        await gone(int(ringing.output()))


async def test_job_that_is_back_in_the_queue_is_not_told_that_a_task_failed(door: Door) -> None:
    """Whatever else it calls."""
    answers: list[bool | EncampError] = [
        False,
        EncampError(Code.UNREACHABLE, "No answer.", transient=True),
        True,
    ]
    asked: list[bool | EncampError] = []

    def is_queued() -> bool:
        asked.append(answers[len(asked)])
        if isinstance(answer := asked[-1], EncampError):
            raise answer
        return answer

    async with answering(door, is_queued) as machine:
        assert await machine.call("task", "exit 0").ended() == (Kind.EXITED, 0, "")
        assert await machine.call("shell", "exit 2").ended() == (Kind.EXITED, 2, "")
        assert asked == []
        assert await machine.call("task", "exit 3").ended() == (Kind.EXITED, 3, "")
        assert not machine.queued()
        told = []
        for script in ("exit 3", "kill -9 $$"):
            ringing = machine.call("task", f"echo it ends; {script}")
            told.append(ringing)
            await ringing.until(Type.DATA, b"it ends")
            async with asyncio.timeout(PATIENCE):
                while not machine.queued():
                    await asyncio.sleep(0.01)
            answers.append(True)
            assert not [frame for frame in ringing.frames if frame.type == Type.EXIT]
    # Not even when all calls are ended: its script would go on.
    assert not [frame for one in told for frame in one.frames if frame.type == Type.EXIT]
    assert asked[:3] == answers[:3]


async def test_signals_are_passed_on(door: Door) -> None:
    async with answering(door) as machine:
        script = "trap 'exit 4' USR1; echo there; while :; do sleep 0.05; done"
        ringing = machine.call("shell", script)
        await ringing.until(Type.DATA, b"there")
        ringing.say(Type.SIGNAL, U32.pack(2**31))  # There is none of that number.
        ringing.say(Type.SIGNAL, U32.pack(signal.SIGUSR1))
        assert await ringing.ended() == (Kind.EXITED, 4, "")


@pytest.mark.parametrize(
    ("cwd", "begins"),
    [
        (b"/usr/share", b"/usr/share\n"),
        (b"/usrs", b"/\n"),
        (b"/tmp", b"/\n"),
        (b"", b"/\n"),
        (b"/usr/not-there", b"/\n"),
    ],
)
async def test_a_directory_of_the_machines_own_is_not_taken_for_one_outside(
    door: Door, cwd: bytes, begins: bytes
) -> None:
    """Which anybody may have put something into."""
    async with answering(door) as machine:
        ringing = machine.call("shell", "pwd", cwd=cwd)
        assert await ringing.ended() == (Kind.EXITED, 0, "")
        assert ringing.output() == begins


async def test_output_waits_until_there_is_room_for_it(door: Door) -> None:
    async with answering(door) as machine:
        ringing = machine.call("shell", "head -c 300000 /dev/zero; echo end")
        await ringing.until(Type.DATA)
        for _ in range(6):
            ringing.say(Type.CREDIT, U32.pack(60_000), channel=STDOUT)
        assert await ringing.ended() == (Kind.EXITED, 0, "")
        assert ringing.output() == bytes(300_000) + b"end\n"


async def test_what_is_left_behind_does_not_hold_the_end_up(door: Door) -> None:
    async with answering(door) as machine:
        ringing = machine.call("shell", "while :; do echo y; done & echo $!; exit 0")
        ringing.say(Type.CREDIT, U32.pack(1 << 20), channel=STDOUT)
        assert await ringing.ended() == (Kind.EXITED, 0, "")
        pid = next(int(line) for line in ringing.output().split() if line.isdigit())
        with suppress(ProcessLookupError):  # Nobody reads what it writes: it may be gone.
            os.kill(pid, signal.SIGKILL)


async def test_more_than_there_may_be_wait_and_none_is_left(door: Door) -> None:
    async with answering(door) as machine:
        all = [machine.call("shell", "echo $$; exec sleep 600") for _ in range(MOST)]
        given_up = machine.call("shell", "echo never")
        waiting = machine.call("shell", "echo then")
        for ringing in all:
            await ringing.until(Type.DATA)
        assert not waiting.frames
        given_up.call.hang_up()
        # Nobody wants this one any more, and it has its place until it has ended.
        all[0].call.hang_up()
        assert await waiting.ended() == (Kind.EXITED, 0, "")
        assert (waiting.output(), given_up.output()) == (b"then\n", b"")
        never = machine.call("shell", "sleep 600")
        await asyncio.sleep(0)
    for ringing in all:
        await gone(int(ringing.output()))
    assert await never.ended() == (Kind.NOT_STARTED, errno.EIO, os.strerror(errno.EIO))


async def test_a_check_that_was_broken_off_says_nothing(door: Door) -> None:
    async with answering(door) as machine:
        hasty = machine.call("slow", "word")
        await asyncio.sleep(0.2)
        hasty.call.hang_up()
        ringing = machine.call("slow", "word")
        assert await ringing.ended() == (Kind.EXITED, 0, "")
        assert ringing.output() == b"word\n"


@pytest.mark.site
def test_login_shells_find_them_too(host: Host, alice: Person) -> None:
    """Whose profile sets PATH anew."""
    words = "command -v notes; notes here; echo $PATH; stat -c '%U %a' /etc/profile.d/encamp.sh"
    again = "; . /etc/profile.d/encamp.sh; echo $PATH"
    read = host.notes / "read"
    read.touch()
    try:
        done = host.run(alice, "/bin/sh", "-l", "-c", words + again)
    finally:
        read.unlink()
    place, said, path, file, same = done.stdout.decode().splitlines()
    assert (place, said) == ("/run/encamp/bin/notes", "noted here")
    assert path.endswith(":/bin:/run/encamp/bin")
    assert file == "root 644"
    assert same == path


async def gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.02)


# ── does it read? ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        ("", True),
        ("-N2", True),
        ("-N 2", True),
        ("-N 2 job.sh", False),
        ("-H job.sh", False),
        ("-H", True),
        ("--hold --name=x", True),
        ("--name x", True),
        ("--name x job.sh -N 2", False),
        ("--wrap=true", False),
        ("--wrap true", False),
        ("-pe mpi 4", True),
        ("-pe mpi 4 job.sh", False),
        ("-", True),
        ("/dev/stdin word", True),
        ("--name - job.sh", False),
        ("-H -N 2 /proc/self/fd/0", True),
    ],
)
def test_who_is_given_a_script_does_not_read_one(words: str, reads: bool) -> None:
    command = offered(
        "/bin/x",
        reads=Reads.ALONE,
        options={"-H": 0, "--hold": 0, "-pe": 2},
        instead=("--wrap",),
    )
    assert does_read(command, tuple(word.encode() for word in words.split())) is reads


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        ("-N2 job.sh", False),
        ("-N2", True),
        ("-HN 2", True),
        ("-HN 2 job.sh", False),
        ("-HN2 job.sh", False),
        ("-H job.sh", False),
        ("-N 2 job.sh", False),
    ],
)
def test_letters_that_stand_together_leave_the_script_a_script(words: str, reads: bool) -> None:
    command = offered("/bin/x", reads=Reads.ALONE, options={"-H": 0, "--hold": 0}, letters=True)
    assert does_read(command, tuple(word.encode() for word in words.split())) is reads


@pytest.mark.parametrize(
    ("inside", "outside", "found"),
    [
        (b"ENCAMP_ENVIRONMENT=mini", {}, {}),
        (b"ENCAMP_ENVIRONMENT=other", {}, {"ENCAMP_ENVIRONMENT": "other"}),
        (
            b"ENCAMP_ENVIRONMENT=mini",
            {"ENCAMP_ENVIRONMENT": "outside"},
            {"ENCAMP_ENVIRONMENT": "outside"},
        ),
    ],
)
def test_what_a_job_submits_is_not_for_the_environment_it_is_in_itself(
    inside: bytes, outside: dict[str, str], found: dict[str, str]
) -> None:
    assert variables((inside,), outside, "mini") == found


def test_the_hosts_own_variables_are_the_hosts() -> None:
    outside = {"PATH": "/outside", "HOME": "/home/x", "OTHER": "outside"}
    inside = (b"PATH=/inside", b"LD_PRELOAD=/inside.so", b"OTHER=inside", b"MORE=\xff")
    assert variables(inside, outside, "mini") == {
        "PATH": "/outside",
        "HOME": "/home/x",
        "OTHER": "inside",
        "MORE": "\udcff",
    }
