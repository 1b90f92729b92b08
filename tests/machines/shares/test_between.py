"""Between machines, and between a machine and the host, a share keeps what NFS promises, and locks
are the host's. `machine` and `other` are two machines, `source` is the directory as the host sees
it."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.machines.shares.mounted import Mounted, mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /dev/fuse")

BRIEFLY = 5.0
FLOCK = struct.Struct("hhqqi4x")


def soon(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + BRIEFLY
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


# ── what others change is seen ───────────────────────────────────────────────────────────────────


def test_what_was_closed_is_seen_by_who_opens_it_then(
    machine: Mounted, other: Mounted, source: Path
) -> None:
    places = [machine.share, other.share, source]
    for number in range(60):
        writer = places[number % 3]
        # Of one size, and some within one tick of the clock that gives files their times.
        (writer / "file").write_text(f"{number:05}")
        assert [(place / "file").read_text() for place in places] == [f"{number:05}"] * 3


def test_files_that_grow_and_shrink_are_seen_whole(machine: Mounted, other: Mounted) -> None:
    for size in (10, 100_000, 3, 2_000_000, 0, 4096):
        (machine.share / "file").write_bytes(b"x" * size)
        assert len((other.share / "file").read_bytes()) == size


def test_names_that_were_looked_for_are_found_when_they_come(
    machine: Mounted, other: Mounted, source: Path
) -> None:
    for place in (machine.share, other.share):
        assert not (place / "late").exists()
    (source / "late").write_text("here")
    for place in (machine.share, other.share):
        assert soon((place / "late").exists)
    (machine.share / "late").unlink()
    assert soon(lambda: not (other.share / "late").exists())
    assert not (source / "late").exists()


def test_file_that_another_took_the_place_of_is_not_opened(
    machine: Mounted, other: Mounted, source: Path
) -> None:
    for number in range(30):
        (source / "new").write_text(str(number))
        (source / "new").rename(source / "file")
        for place in (machine.share, other.share):
            assert (place / "file").read_text() == str(number)


def test_changes_are_told_to_who_only_looks(machine: Mounted, source: Path) -> None:
    path = machine.share / "file"
    path.write_text("1")
    assert path.stat().st_size == 1
    (source / "file").write_text("22")
    assert soon(lambda: path.stat().st_size == 2)
    (source / "file").chmod(0o600)
    assert soon(lambda: path.stat().st_mode & 0o777 == 0o600)
    (source / "below").mkdir()
    assert soon(lambda: sorted(os.listdir(machine.share)) == ["below", "file"])


def test_appends_of_all_are_kept(machine: Mounted, other: Mounted, source: Path) -> None:
    def append(place: Path, mark: str) -> None:
        fd = os.open(place / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number in range(300):
            os.write(fd, f"{mark}{number:04}\n".encode())
        os.close(fd)

    places = {"a": machine.share, "b": other.share, "h": source}
    writers = [
        threading.Thread(target=append, args=(place, mark)) for mark, place in places.items()
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    wanted = sorted(f"{mark}{number:04}" for mark in places for number in range(300))
    for place in places.values():
        assert sorted((place / "log").read_text().split()) == wanted


def test_where_nobody_tells_of_changes_opening_a_file_shows_them(
    machine: Mounted, source: Path, tmp_path: Path
) -> None:
    """As on NFS: this share is of a file system that other hosts might change."""
    with mounted(tmp_path / "far", machine.share) as far:
        places = [far.share, source, machine.share]
        for number in range(45):
            (places[number % 3] / "file").write_text(f"{number:05}")
            assert [(place / "file").read_text() for place in places] == [f"{number:05}"] * 3
        for number in range(15):
            (source / "new").write_text(str(number))
            (source / "new").rename(source / "file")
            assert (far.share / "file").read_text() == str(number)
        assert not (far.share / "late").exists()
        (source / "late").touch()
        assert soon((far.share / "late").exists)
        with Holder(far.share / "file", flocked):
            assert not free(source / "file", flocked)


# ── locks ────────────────────────────────────────────────────────────────────────────────────────


def flocked(fd: int, kind: int) -> None:
    fcntl.flock(fd, kind)


def ranged(fd: int, kind: int) -> None:
    fcntl.lockf(fd, kind, 10, 5)


def owned(fd: int, kind: int) -> None:
    kinds = {
        fcntl.LOCK_EX: fcntl.F_WRLCK,
        fcntl.LOCK_SH: fcntl.F_RDLCK,
        fcntl.LOCK_UN: fcntl.F_UNLCK,
    }
    wanted = FLOCK.pack(kinds[kind & ~fcntl.LOCK_NB], os.SEEK_SET, 5, 10, 0)
    command = fcntl.F_OFD_SETLK if kind & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW
    fcntl.fcntl(fd, command, wanted)


Lock = Callable[[int, int], None]
LOCKS = pytest.mark.parametrize("lock", [flocked, ranged, owned])


HOLD = """
import sys
from tests.machines.shares import test_between as tests
file = open(sys.argv[1], "r+b")
getattr(tests, sys.argv[2])(file.fileno(), int(sys.argv[3]))
print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that has a lock."""

    def __init__(self, path: Path, lock: Lock, kind: int = fcntl.LOCK_EX) -> None:
        self._words = [sys.executable, "-c", HOLD, str(path), lock.__name__, str(kind)]

    def __enter__(self) -> Holder:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._words, stdin=pipe, stdout=pipe, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"held\n"
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        with self._process:  # Closes its standard input, and waits.
            pass


def free(path: Path, lock: Lock, kind: int = fcntl.LOCK_EX) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        lock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@LOCKS
def test_lock_of_one_keeps_all_others_out(
    machine: Mounted, other: Mounted, source: Path, lock: Lock
) -> None:
    places = [place / "file" for place in (machine.share, other.share, source)]
    places[2].touch()
    for holder in places:
        with Holder(holder, lock):
            assert [free(place, lock) for place in places] == [False] * 3
        assert all(soon(lambda place=place: free(place, lock)) for place in places)  # type: ignore[misc]
        with Holder(holder, lock, fcntl.LOCK_SH):
            assert [free(place, lock, fcntl.LOCK_SH) for place in places] == [True] * 3
            assert [free(place, lock) for place in places] == [False] * 3


@LOCKS
def test_lock_ends_with_its_process(machine: Mounted, other: Mounted, lock: Lock) -> None:
    (machine.share / "file").touch()
    with Holder(machine.share / "file", lock) as holder:
        assert not free(other.share / "file", lock)
        holder.kill()
        assert soon(lambda: free(other.share / "file", lock))


@LOCKS
def test_lock_ends_with_its_machine(
    machine: Mounted, other: Mounted, source: Path, lock: Lock
) -> None:
    (machine.share / "file").touch()
    with Holder(machine.share / "file", lock):
        machine.relay.kill()  # As much of a machine as there is here.
        assert soon(lambda: free(other.share / "file", lock))
        assert soon(lambda: free(source / "file", lock))


@LOCKS
def test_lock_is_waited_for(machine: Mounted, other: Mounted, source: Path, lock: Lock) -> None:
    for holds, waits in ((machine.share, other.share), (source, machine.share)):
        (holds / "file").touch()
        with Holder(holds / "file", lock) as holder:
            fd = os.open(waits / "file", os.O_RDWR)
            waiting = threading.Thread(target=lock, args=(fd, fcntl.LOCK_EX))
            waiting.start()
            time.sleep(0.2)
            assert waiting.is_alive()
            holder.kill()
            waiting.join(BRIEFLY)
            assert not waiting.is_alive()
            assert not free(holds / "file", lock)
            os.close(fd)


WAIT = """
import fcntl, signal, sys
signal.signal(signal.SIGALRM, lambda *_: sys.exit(9))
signal.setitimer(signal.ITIMER_REAL, 0.5)
fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX, 10, 5)
"""


def test_who_waits_for_a_lock_can_be_interrupted_and_killed(
    machine: Mounted, other: Mounted
) -> None:
    path = machine.share / "file"
    path.touch()
    words = [sys.executable, "-c", WAIT, str(path)]
    with Holder(other.share / "file", ranged) as holder:
        assert subprocess.run(words, timeout=BRIEFLY, check=False).returncode == 9
        with subprocess.Popen([*words[:2], WAIT.replace("0.5", "60"), str(path)]) as waiting:
            time.sleep(0.5)
            waiting.send_signal(signal.SIGKILL)
            waiting.wait(BRIEFLY)
        holder.kill()
        # What was waited for in vain is not held by anybody later.
        assert soon(lambda: free(other.share / "file", ranged))


def test_locks_are_kept_byte_by_byte(machine: Mounted, other: Mounted) -> None:
    path = machine.share / "file"
    path.touch()
    with path.open("r+b") as mine, (other.share / "file").open("r+b") as theirs:
        fcntl.lockf(mine, fcntl.LOCK_EX, 10, 0)
        fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)
        fcntl.lockf(mine, fcntl.LOCK_UN, 5, 5)
        fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5)
        with pytest.raises(BlockingIOError):
            fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 4)
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, start, length, _ = FLOCK.unpack(fcntl.fcntl(theirs, fcntl.F_GETLK, asked))
        assert (kind, start, length) == (fcntl.F_WRLCK, 0, 5)
        # Closing any descriptor of the file gives up all that the process has locked in it.
        path.open("rb").close()
        fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 0)


def test_who_gets_a_lock_sees_what_its_former_holder_wrote(
    machine: Mounted, other: Mounted, source: Path
) -> None:
    (source / "counter").write_bytes(bytes(8))
    files = [
        (place / "counter").open("r+b", buffering=0)
        for place in (machine.share, other.share, source)
    ]

    def count(fd: int) -> None:
        for _ in range(100):
            fcntl.flock(fd, fcntl.LOCK_EX)
            value = int.from_bytes(os.pread(fd, 8, 0), "little")
            os.pwrite(fd, (value + 1).to_bytes(8, "little"), 0)
            fcntl.flock(fd, fcntl.LOCK_UN)

    threads = [threading.Thread(target=count, args=(file.fileno(),)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for file in files:
        file.close()
    assert int.from_bytes((source / "counter").read_bytes(), "little") == 300


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────

INSERT = """
import sqlite3, sys
path, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = sqlite3.connect(path, timeout=60, isolation_level=None)
for number in range(count):
    database.execute("begin immediate")
    database.execute("insert into t values (?, ?)", (who, number))
    database.execute("commit")
    print(number, flush=True)
"""


def test_sqlite_loses_nothing_of_three_at_once_one_of_whom_is_killed(
    machine: Mounted, other: Mounted, source: Path
) -> None:
    with sqlite3.connect(source / "database") as database:
        database.execute("create table t (who, number)")
        database.execute("create index i on t (who, number)")
    database.close()
    count = 1000
    places = {"one": machine.share, "two": other.share, "host": source}
    words = [sys.executable, "-c", INSERT]
    writers = {
        who: subprocess.Popen(
            [*words, place / "database", who, str(count)], stdout=subprocess.PIPE, text=True
        )
        for who, place in places.items()
    }
    assert writers["two"].stdout is not None
    for _ in range(20):
        writers["two"].stdout.readline()
    # In the middle of whatever it is at: the machine, and its programs with it.
    other.server.kill()
    writers["two"].kill()
    said = {who: writer.communicate(timeout=120)[0].split() for who, writer in writers.items()}
    with sqlite3.connect(source / "database") as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        rows = set(database.execute("select who, number from t").fetchall())
    database.close()
    for who in ("one", "host"):
        assert len(said[who]) == count
        assert {(who, number) for number in range(count)} <= rows
    told = {("two", number) for number in range(20 + len(said["two"]))}
    assert told <= rows
    # At most the one that was not told any more.
    assert len({row for row in rows if row[0] == "two"} - told) <= 1


def ask(path: Path, *statements: str) -> list[object]:
    """What SQLite answers; it waits for nobody."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
        return [database.execute(statement).fetchall() for statement in statements]


def test_write_ahead_log_works_in_one_machine_at_a_time(
    machine: Mounted, other: Mounted, source: Path
) -> None:
    path = machine.share / "database"
    ask(path, "pragma journal_mode=wal", "create table t (who, number)")
    words = [sys.executable, "-c", INSERT, str(path)]
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("select * from t").fetchall()
        writers = [
            subprocess.Popen([*words, who, "100"], stdout=subprocess.PIPE) for who in ("one", "two")
        ]
        for place in (other.share, source):
            with pytest.raises(sqlite3.OperationalError):
                ask(place / "database", "insert into t values ('other', 0)")
        assert [writer.communicate()[0].count(b"\n") for writer in writers] == [100, 100]
    # Once it is closed there, others have it in turn.
    for number, place in enumerate((other.share, source, machine.share)):
        select = "select who, count(*) from t group by who"
        _, rows, check = ask(
            place / "database", "insert into t values ('then', 0)", select, "pragma integrity_check"
        )
        assert rows == [("one", 100), ("then", number + 1), ("two", 100)]
        assert check == [("ok",)]


def test_memory_is_shared_by_a_file_in_one_machine_only(
    machine: Mounted, other: Mounted, source: Path
) -> None:
    for name in ("database-shm", "lock.mdb"):
        (source / name).write_bytes(bytes(4096))
        with (machine.share / name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as first:
            with (machine.share / name).open("r+b") as again:
                second = mmap.mmap(again.fileno(), 0)
            first[0:4] = b"seen"
            assert second[0:4] == b"seen"
            second.close()
            assert not free(source / name, ranged)
            with (other.share / name).open("r+b") as theirs:
                with pytest.raises(OSError, match="No such device"):
                    mmap.mmap(theirs.fileno(), 0)
                with pytest.raises(BlockingIOError):
                    ranged(theirs.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert soon(lambda name=name: free(source / name, ranged))  # type: ignore[misc]
        assert (source / name).read_bytes()[0:4] == b"seen"
