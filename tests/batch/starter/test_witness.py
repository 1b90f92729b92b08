"""A signal to all of a job is told from one to its first process alone: a child of the starter, in
the same groups of processes, tells what it gets."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.batch.starter.double import PATIENCE, Door, Process, Visit
from tests.batch.starter.test_signals import ALONE, has_begun, state, wait_for_state

ENOUGH = 8
"""So many witnesses are tried."""


def children(process: Process) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def _status(pid: int) -> list[str]:
    """From its state on; of one that is gone, nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def is_there(pid: int) -> bool:
    return _status(pid)[:1] not in ([], ["Z"])


def wait_for(what: str, true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def is_listening(pid: int) -> bool:
    """It has let go of what it has from its parent, and waits."""
    try:
        files = sorted(os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())  # noqa: PTH115
    except OSError:
        return False
    return len(files) == 2 and files[0] == "anon_inode:[signalfd]" and "socket" in files[1]


def witness_of(process: Process, besides: Iterable[int] = ()) -> int:
    """The one that listens."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for pid in children(process) if pid not in besides and is_listening(pid)]
        return bool(found)

    wait_for("a witness", look)
    (pid,) = found
    return pid


def begin(door: Door) -> tuple[Process, Visit]:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    assert children(process) == []  # not before it is of use
    has_begun(process, visit)
    return process, visit


def end(door: Door, process: Process, visit: Visit) -> None:
    visit.ended(5)
    assert visit.gone()
    assert door.finish(process) == (5, b"", b"")


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGUSR1,
        signal.SIGCONT,
        signal.SIGXCPU,
        signal.SIGRTMIN,
    ],
    ids=lambda number: signal.Signals(number).name,
)
def test_a_signal_to_the_process_group_is_one_to_all_of_the_job(door: Door, number: int) -> None:
    process, visit = begin(door)
    witness_of(process)
    os.killpg(process.pid, number)
    assert visit.frame() == (b"S", bytes([number]))
    process.send_signal(signal.SIGUSR2)  # and nothing comes in between
    assert visit.frame() == (b"S", bytes([signal.SIGUSR2, ALONE]))
    end(door, process, visit)


def test_a_signal_to_one_process_after_the_other_is_one_to_all(door: Door) -> None:
    """As a batch system does that goes through the processes of a control group."""
    process, visit = begin(door)
    witness = witness_of(process)
    process.send_signal(signal.SIGSTOP)  # it looks when both have got it, however long that takes
    wait_for_state(process, "T")
    os.kill(witness, signal.SIGUSR1)
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGCONT)
    assert visit.frame() == (b"S", bytes([signal.SIGUSR1]))
    assert visit.frame() == (b"S", bytes([signal.SIGCONT, ALONE]))
    end(door, process, visit)


def test_each_of_several_signals_is_told_by_itself(door: Door) -> None:
    process, visit = begin(door)
    witness_of(process)
    process.send_signal(signal.SIGUSR1)
    os.killpg(process.pid, signal.SIGUSR2)
    process.send_signal(signal.SIGTERM)
    told = sorted(visit.frame() for _ in range(3))
    assert told == [
        (b"S", bytes([signal.SIGUSR1, ALONE])),
        (b"S", bytes([signal.SIGUSR2])),
        (b"S", bytes([signal.SIGTERM, ALONE])),
    ]
    end(door, process, visit)


def test_real_time_signals_come_as_often_as_they_were_sent(door: Door) -> None:
    process, visit = begin(door)
    for _ in range(3):
        process.send_signal(signal.SIGRTMIN)
    told = [visit.frame() for _ in range(3)]
    assert told == [(b"S", bytes([signal.SIGRTMIN, ALONE]))] * 3
    end(door, process, visit)


def test_what_was_stopped_together_need_not_go_on_together(door: Door) -> None:
    process, visit = begin(door)
    witness = witness_of(process)
    os.killpg(process.pid, signal.SIGSTOP)
    wait_for_state(process, "T")
    wait_for("a stopped witness", lambda: _status(witness)[0] == "T")
    process.send_signal(signal.SIGCONT)
    assert visit.frame() == (b"S", bytes([signal.SIGCONT, ALONE]))
    wait_for("a witness that goes on", lambda: _status(witness)[0] == "S")
    os.killpg(process.pid, signal.SIGSTOP)
    wait_for_state(process, "T")
    os.killpg(process.pid, signal.SIGUSR1)
    os.killpg(process.pid, signal.SIGCONT)
    told = sorted(visit.frame() for _ in range(2))
    assert told == [(b"S", bytes([signal.SIGUSR1])), (b"S", bytes([signal.SIGCONT]))]
    assert state(process) == "S"
    end(door, process, visit)


def test_a_witness_that_was_killed_is_replaced(door: Door) -> None:
    process, visit = begin(door)
    first = witness_of(process)
    os.kill(first, signal.SIGKILL)
    witness_of(process, besides=[first])
    process.send_signal(signal.SIGUSR1)
    assert visit.frame() == (b"S", bytes([signal.SIGUSR1, ALONE]))
    os.killpg(process.pid, signal.SIGUSR1)
    assert visit.frame() == (b"S", bytes([signal.SIGUSR1]))
    end(door, process, visit)


def test_where_there_can_be_no_witness_every_signal_is_one_to_all(door: Door) -> None:
    process, visit = begin(door)
    killed: list[int] = []
    while len(killed) < ENOUGH:
        killed.append(witness_of(process, besides=killed))
        os.kill(killed[-1], signal.SIGKILL)
    wait_for("no other", lambda: children(process) == [])
    process.send_signal(signal.SIGUSR1)
    assert visit.frame() == (b"S", bytes([signal.SIGUSR1]))
    end(door, process, visit)


def test_a_witness_ends_with_its_starter(door: Door) -> None:
    process, visit = begin(door)
    witness = witness_of(process)
    process.kill()
    assert visit.gone()
    wait_for("its end", lambda: not is_there(witness))
    process, visit = begin(door)
    witness = witness_of(process)
    visit.ended(0)
    process.wait(PATIENCE)
    assert not is_there(witness)
