"""Whoever knocks at a bait's door in bad faith is refused, and holds up nobody else."""

from __future__ import annotations

import array
import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from encamp.agent.bait import door as door_module
from encamp.agent.bait import frames
from encamp.agent.bait import starter as starter_module
from encamp.agent.bait.door import BaitDoor
from encamp.agent.bait.starter import Visit, is_there, starter_of
from encamp.door.socket_file import short
from encamp.model.errors import EncampError
from tests.agent.bait.test_frames import LEAST

PATIENCE = 60.0
NOBODY = 65534


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


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="encamp-door-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@asynccontextmanager
async def somebody(script: str, *words: object, at_once: bool = False) -> AsyncIterator[None]:
    """A process of another user's, in no job, that has said that it is up. `at_once`: before
    anybody here can do anything."""
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", script, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
    ) as process:
        try:
            assert process.stdout is not None
            up = process.stdout.readline
            assert (up() if at_once else await asyncio.to_thread(up)) == b"up\n"
            yield
        finally:
            process.kill()


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
        assert (kind, taken.asked) == ("W", [])


HOLDING = """
import socket, sys
for _ in range(int(sys.argv[2])):
    line = socket.socket(socket.AF_UNIX)
    line.connect(sys.argv[1])
    socket.send_fds(line, [b"x"], [0, 1, 2])
    line.detach()
print("up", flush=True)
sys.stdin.read()
"""
"""Comes as often as it is told to, begins to speak, and keeps all open."""


@only_root
async def test_somebody_with_hundreds_of_connections_shuts_nobody_out(
    place: Path, taken: Taken
) -> None:
    many = door_module.MOST_OF_ONE
    async with opened(place, taken) as door, somebody(HOLDING, door.path, many):
        async with asyncio.timeout(PATIENCE):
            while _open_files() < many * 4:
                await asyncio.sleep(0.01)
        starter = Starter(door.path)
        assert starter.socket.fileno() > 1024, "more than this many files are open"
        starter.send(JOB, FILES)
        assert await starter.answer() == ("P", b"")
        starter.socket.close()


async def test_there_are_no_more_places_than_files_can_be_open(
    door: BaitDoor, taken: Taken
) -> None:
    async with AsyncExitStack() as held:
        held.enter_context(most_files(512))
        waiting = [Starter(door.path) for _ in range(17)]
        for one in waiting:
            held.callback(one.socket.close)
            one.send(JOB[:20], FILES)
        assert (await waiting[-1].answer())[0] == "W"
        with pytest.raises(BlockingIOError):
            waiting[0].socket.recv(1)


async def test_who_comes_while_no_more_files_can_be_open_waits(
    door: BaitDoor, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    starter = Starter(door.path)
    starter.send(JOB, FILES)
    with most_files(3):
        await asyncio.sleep(0.5)
    assert caplog.messages == ["Nobody can be let in just now: Too many open files."]
    assert await starter.answer() == ("P", b"")
    starter.socket.close()


async def test_who_brings_files_while_no_more_can_be_open_comes_again(
    door: BaitDoor, taken: Taken
) -> None:
    starter = Starter(door.path)
    await asyncio.sleep(0.1)
    with most_files(3):
        starter.send(JOB, FILES)
        assert (await starter.answer())[0] == "M"
    starter.socket.close()


async def test_mistake_over_one_is_told_and_concerns_no_other(
    door: BaitDoor, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake(connection: socket.socket) -> None:
        monkeypatch.undo()
        raise ValueError

    monkeypatch.setattr(starter_module, "starter_of", mistake)
    first, second = Starter(door.path), Starter(door.path)
    second.send(JOB, FILES)
    kind, said = await first.answer()
    assert (kind, b"ValueError" in said) == ("M", True)
    assert await second.answer() == ("P", b"")
    for one in (first, second):
        one.socket.close()


LINGERING = """
import socket, struct, sys
listener = socket.create_server(("127.0.0.1", 0))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
ends = []
for _ in range(int(sys.argv[2])):
    ours = socket.socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ours.connect(listener.getsockname())
    ends.append(listener.accept()[0])
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(65536))
    except BlockingIOError:
        pass
    files = [ours.fileno()] * 3 if sys.argv[3] == "taken" else [0, 1, 2, ours.fileno()]
    line = socket.socket(socket.AF_UNIX)
    line.connect(sys.argv[1])
    socket.send_fds(line, [b"GET /"], files)
    line.detach()
    ours.close()
print("up", flush=True)
sys.stdin.read()
"""
"""Comes with files that take long to be closed by whoever has them last."""


COMING = """
import socket, sys
said = b"    W"
while chr(said[4]) == "W":
    line = socket.socket(socket.AF_UNIX)
    line.connect(sys.argv[1])
    try:
        socket.send_fds(line, [bytes.fromhex(sys.argv[2])], [0, 1, 2])
    except BrokenPipeError:
        pass
    said = line.recv(4096)
print("up", flush=True)
"""
"""Comes until it is not told to come again."""


@only_root
@pytest.mark.parametrize("files", ["taken", "too many"])
async def test_files_that_are_not_closed_soon_keep_the_places_of_who_has_brought_them(
    place: Path, taken: Taken, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    """So do those of one for whom there was no place any more."""
    monkeypatch.setattr(door_module, "MOST_OF_ONE", 3)
    before = threading.active_count()
    async with opened(place, taken) as door:
        async with somebody(LINGERING, door.path, 10, files, at_once=True):
            for _ in range(2):
                starter = Starter(door.path)
                starter.send(JOB, FILES)
                assert await starter.answer() == ("P", b"")
                starter.socket.close()
            await asyncio.sleep(0.5)
            assert threading.active_count() <= before + 3 + 3 + 1, "that take, close and read"
        async with asyncio.timeout(PATIENCE), somebody(COMING, door.path, JOB.hex()):
            pass
    assert taken.asked == ["slurm"] * 3


@only_root
async def test_files_that_are_not_closed_soon_shut_nobody_out(
    place: Path, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither do those of one for whom there was no place any more."""
    monkeypatch.setattr(door_module, "MOST_OF_ONE", 3)
    few, many = 200, 120
    assert many > few // door_module.LEFT, "or all could be kept"
    async with opened(place, taken) as door:
        before = _open_files()
        async with somebody(LINGERING, door.path, many, "taken", at_once=True):
            with most_files(few):
                for _ in range(2):
                    starter = Starter(door.path)
                    starter.send(JOB, FILES)
                    async with asyncio.timeout(10.0):
                        assert await starter.answer() == ("P", b"")
                    starter.socket.close()
                async with asyncio.timeout(10.0):
                    while _open_files() > before + 3 * door_module.OPEN + 4:
                        await asyncio.sleep(0.01)


def test_it_is_known_whether_files_wait_in_a_connection() -> None:
    sent: list[list[tuple[bytes, int, bool]]] = [
        [],
        [(b"x", 0, False), (bytes(5000), 0, False)],
        [(b"x", 0, True)],
        [(bytes(5000), 0, False), (b"x", 0, True)],
        [(b"x", 0, False), (b"!", socket.MSG_OOB, False), (b"x", 0, True)],
        [(b"!", socket.MSG_OOB, True)],
    ]
    for messages in sent:
        ours, its = socket.socketpair()
        with ours, its:
            ours.setblocking(False)
            for data, flags, files in messages:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", FILES))]
                its.sendmsg([data], rights if files else [], flags)
            assert Visit(ours).may_hold_files() == any(files for _, _, files in messages)
            with pytest.raises(BrokenPipeError):
                its.send(b"more")


async def test_place_is_free_again_though_no_thread_could_be_begun(
    door: BaitDoor, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Thread(threading.Thread):
        def start(self) -> None:
            monkeypatch.setattr(door_module, "threading", threading)
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(door_module, "MOST_OF_ONE", 1)
    monkeypatch.setattr(door_module, "threading", SimpleNamespace(Thread=Thread))
    kinds = ["W"]
    for _ in range(2):
        while kinds[-1] == "W":
            starter = Starter(door.path)
            starter.send(JOB, FILES)
            kinds[-1] = (await starter.answer())[0]
            starter.socket.close()
        kinds.append("W")
    assert kinds == ["P", "P", "W"]


@contextmanager
def most_files(count: int) -> Iterator[None]:
    """Of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_process_of_which_nothing_can_be_found_out_now_is_not_gone() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        starter = starter_of(ours)
        with most_files(3), pytest.raises(OSError, match="Too many open files"):
            is_there(starter)
        assert is_there(starter)


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


async def test_job_that_is_read_holds_up_nobody(
    door: BaitDoor, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go, before = threading.Event(), threading.Event(), Visit.understand

    def understand(visit: Visit) -> None:
        reading.set()
        assert go.wait(5.0), "others go on meanwhile"
        before(visit)

    monkeypatch.setattr(Visit, "understand", understand)
    starter = Starter(door.path)
    starter.send(JOB, FILES)
    async with asyncio.timeout(PATIENCE):
        while not reading.is_set():
            await asyncio.sleep(0.01)
    go.set()
    assert await starter.answer() == ("P", b"")
    starter.socket.close()


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
