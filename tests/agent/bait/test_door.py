"""Whoever knocks at a bait's door in bad faith is refused, and holds up nobody else."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from encamp.agent.bait import door as door_module
from encamp.agent.bait import frames
from encamp.agent.bait.door import BaitDoor
from encamp.agent.bait.starter import Visit, starter_of
from encamp.door.socket_file import short
from encamp.model.errors import EncampError
from tests.agent.bait.test_frames import LEAST

PATIENCE = 60.0


class Taken:
    """Those who were let in, and what they asked for."""

    def __init__(self) -> None:
        self.visits: list[tuple[int, int, tuple[int, ...], list[tuple[int, int]]]] = []
        self.asked: list[str] = []

    async def __call__(self, visit: Visit) -> None:
        starter = visit.starter
        files = [(os.fstat(file).st_dev, os.fstat(file).st_ino) for file in visit.files]
        self.visits.append((starter.pid, starter.uid, starter.groups, files))
        self.asked.append(visit.asked.system)
        await visit.say(frames.plain())


class Starter:
    """A starter of whatever kind."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short(path) as address:
            self.socket.connect(address)
        self.socket.setblocking(False)

    def send(self, data: bytes, files: Sequence[int] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        self.socket.sendmsg([data], rights)

    async def answer(self) -> tuple[str, bytes]:
        """Which kind of frame it is told, and what that holds; nothing: it was shut out."""
        async with asyncio.timeout(PATIENCE):
            said = b""
            try:
                while piece := await asyncio.get_running_loop().sock_recv(self.socket, 65536):
                    said += piece
            except ConnectionResetError:
                pass
        if not said:
            return "", b""
        return chr(said[4]), said[frames.HEADER.size :]


@pytest.fixture
def taken() -> Taken:
    return Taken()


@asynccontextmanager
async def opened(path: Path, taken: Taken, patience: float = PATIENCE) -> AsyncIterator[BaitDoor]:
    async with BaitDoor(taken, path / "bait", patience) as door:
        yield door


@pytest.fixture
async def door(tmp_path: Path, taken: Taken) -> AsyncIterator[BaitDoor]:
    async with opened(tmp_path, taken) as made:
        before = _open_files()
        yield made
        # All that came along is closed, by whoever has the time.
        async with asyncio.timeout(PATIENCE):
            while _open_files() > before:
                await asyncio.sleep(0.01)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


JOB = frames.frame(frames.JOB, LEAST)
FILES = (0, 1, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself groups")
@pytest.mark.parametrize("count", [0, 3, 256, 257, 3000])
def test_all_groups_of_a_starter_are_known(tmp_path: Path, count: int) -> None:
    groups = tuple(range(30000, 30000 + count))
    script = "import socket, sys; s = socket.socket(1); s.connect(sys.argv[1]); sys.stdin.read()"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "door"))
        listener.listen()
        listener.settimeout(PATIENCE)
        words = [sys.executable, "-c", script, str(tmp_path / "door")]
        with subprocess.Popen(words, stdin=subprocess.PIPE, extra_groups=groups) as process:
            with listener.accept()[0] as connection:
                starter = starter_of(connection)
            process.communicate()
    assert (starter.pid, starter.groups) == (process.pid, groups)


async def test_who_comes_is_known_by_the_kernel(door: BaitDoor, taken: Taken) -> None:
    starter = Starter(door.path)
    with open(os.devnull, "rb") as null:
        starter.send(JOB, [null.fileno()] * 3)
        assert await starter.answer() == ("P", b"")
        status = os.fstat(null.fileno())
    starter.socket.close()
    ((pid, uid, groups, files),) = taken.visits
    assert (pid, uid) == (os.getpid(), os.geteuid())
    assert set(groups) == set(os.getgroups())
    assert files == [(status.st_dev, status.st_ino)] * 3


async def test_job_may_come_in_pieces(door: BaitDoor, taken: Taken) -> None:
    starter = Starter(door.path)
    starter.send(JOB[:1], FILES)
    for at in range(1, len(JOB)):
        starter.send(JOB[at : at + 1])
        await asyncio.sleep(0)
    assert await starter.answer() == ("P", b"")
    starter.socket.close()
    assert taken.asked == ["slurm"]


@pytest.mark.parametrize(
    ("data", "files"),
    [
        pytest.param(JOB, (), id="no files"),
        pytest.param(JOB, (0,), id="one file"),
        pytest.param(JOB, (0, 1, 2, 0), id="four files"),
        pytest.param(JOB, (0,) * 200, id="two hundred files"),
        pytest.param(frames.HEADER.pack(1 << 31, frames.JOB), FILES, id="a huge frame"),
        pytest.param(frames.HEADER.pack((8 << 20) + 1, frames.JOB), FILES, id="one byte too many"),
        pytest.param(frames.frame(frames.SIGNAL, b"\x0f"), FILES, id="a signal first"),
        pytest.param(frames.frame(frames.JOB, b"noise"), FILES, id="noise"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", FILES, id="another protocol"),
    ],
)
async def test_nonsense_is_refused(
    door: BaitDoor, taken: Taken, data: bytes, files: Sequence[int]
) -> None:
    starter = Starter(door.path)
    starter.send(data, files)
    kind, said = await starter.answer()
    starter.socket.close()
    assert (kind, taken.asked) == ("F", [])
    assert said[0] != 0


async def test_files_that_come_later_are_not_kept(door: BaitDoor, taken: Taken) -> None:
    starter = Starter(door.path)
    starter.send(JOB[:10], FILES)
    await asyncio.sleep(0)
    starter.send(JOB[10:], (0,))
    kind, _ = await starter.answer()
    starter.socket.close()
    assert (kind, taken.asked) == ("F", [])


async def test_whoever_is_slow_is_shut_out_and_holds_up_nobody(
    tmp_path: Path, taken: Taken
) -> None:
    async with opened(tmp_path, taken, patience=0.5) as door:
        slow = [Starter(door.path) for _ in range(20)]
        for one in slow:
            one.send(JOB[:20], FILES)
        quick = Starter(door.path)
        quick.send(JOB, FILES)
        assert (await quick.answer())[0] == "P"
        assert [await one.answer() for one in slow] == [("", b"")] * 20
        for one in (*slow, quick):
            one.socket.close()
    assert taken.asked == ["slurm"]


async def test_whoever_goes_away_leaves_nothing(door: BaitDoor, taken: Taken) -> None:
    for _ in range(50):
        starter = Starter(door.path)
        starter.send(JOB[:20], FILES)
        starter.socket.close()
    last = Starter(door.path)
    last.send(JOB, FILES)
    assert (await last.answer())[0] == "P"
    last.socket.close()


async def test_nobody_has_more_than_a_share_of_the_places(
    door: BaitDoor, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "MOST_OF_ONE", 3)
    async with AsyncExitStack() as held:
        for _ in range(3):
            waiting = Starter(door.path)
            held.callback(waiting.socket.close)
            waiting.send(JOB[:20], FILES)
        one_more = Starter(door.path)
        held.callback(one_more.socket.close)
        one_more.send(JOB, FILES)
        kind, _ = await one_more.answer()
        assert (kind, taken.asked) == ("T", [])


async def test_second_agent_does_not_get_the_door(door: BaitDoor, taken: Taken) -> None:
    with pytest.raises(EncampError, match="cannot be opened"):
        async with BaitDoor(taken, door.path):
            pass


async def test_door_is_for_everybody_and_its_directory_for_nobody_else(tmp_path: Path) -> None:
    async with BaitDoor(Taken(), tmp_path / "new" / "bait") as door:
        assert door.path.stat().st_mode & 0o777 == 0o666
        assert door.path.parent.stat().st_mode & 0o777 == 0o755
    assert not door.path.exists()


async def test_large_jobs_of_one_user_are_taken_in_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "LARGE", 10)
    monkeypatch.setattr(door_module, "MOST_LARGE", 2)
    inside, most = 0, 0
    go = asyncio.Event()

    async def attend(visit: Visit) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await go.wait()
        inside -= 1
        await visit.say(frames.plain())

    async with BaitDoor(attend, tmp_path / "bait") as door:
        starters = [Starter(door.path) for _ in range(6)]
        for one in starters:
            one.send(JOB, FILES)
        async with asyncio.timeout(PATIENCE):
            while inside < 2:
                await asyncio.sleep(0.01)
        go.set()
        assert [(await one.answer())[0] for one in starters] == ["P"] * 6
        for one in starters:
            one.socket.close()
    assert most == 2


def test_log_is_not_filled_by_whoever_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complaints = door_module.Complaints(lambda: now)
    for number in range(1000):
        complaints.say(os.geteuid(), f"refused {number}")
    complaints.say(12345, "another's")
    assert len(caplog.messages) == door_module.MOST_SAID + 1
    now = 61.0
    complaints.say(os.geteuid(), "later")
    assert caplog.messages[-2].startswith("980 more")
    assert caplog.messages[-1] == "later"
