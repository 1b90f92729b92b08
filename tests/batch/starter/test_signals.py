"""Signals that a batch system, or a user, sends to a job."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.batch.starter.double import PATIENCE, Door, Process, Visit

ALONE = 1
"""After a signal's number: it was not sent to all of the job."""
SETTLING = 0.9
"""Seconds, nearly, in which a job that has just begun gets nothing that came before."""


def state(process: Process) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]


def wait_for_state(process: Process, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while state(process) != wanted:
        assert time.monotonic() < deadline, f"it is still in state {state(process)}"
        time.sleep(0.01)


def has_begun(process: Process, visit: Visit) -> None:
    """Tell a starter that its job has begun; it has heard that."""
    visit.answer(b"B")
    visit.answer(b"N", b"begun")
    assert process.stderr is not None
    assert process.stderr.readline() == b"encamp: begun\n"


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCONT,
        signal.SIGALRM,
        signal.SIGXCPU,
        signal.SIGWINCH,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGABRT,
        signal.SIGRTMAX,
    ],
    ids=lambda number: signal.Signals(number).name,
)
def test_a_signal_reaches_the_first_process_of_the_job_once(door: Door, number: int) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    has_begun(process, visit)
    process.send_signal(number)
    assert visit.frame() == (b"S", bytes([number, ALONE]))
    visit.ended(0)
    assert visit.gone()
    assert door.finish(process)[0] == 0


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
        (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    ],
)
def test_signals_that_tell_something_wait_until_the_job_has_begun(
    door: Door, numbers: tuple[int, ...]
) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    for number in reversed(numbers):
        process.send_signal(number)
    visit.answer(b"T", b"\1\0\0\0")
    again = door.accept()
    begun = time.monotonic()
    again.answer(b"B")
    told = [again.frame() for _ in numbers]
    # Not at once: the job has to set its traps first.
    assert time.monotonic() - begun > SETTLING
    assert told == [(b"S", bytes([number, ALONE])) for number in sorted(numbers)]
    again.ended(0)
    assert again.gone()
    assert door.finish(process)[0] == 0


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGTSTP, signal.SIGCONT),
        (signal.SIGTTOU, signal.SIGTTIN, signal.SIGCONT),
        (signal.SIGCONT, signal.SIGTSTP),
        (signal.SIGTSTP, signal.SIGCONT, signal.SIGTSTP),
    ],
)
def test_a_job_that_has_not_begun_stops_or_goes_on_as_it_was_told_last(
    door: Door, numbers: tuple[int, ...]
) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.2)  # It has looked.
    visit.answer(b"T", b"\1\0\0\0")
    again = door.accept()
    process.send_signal(signal.SIGUSR2)
    again.answer(b"B")
    told = sorted([again.frame(), again.frame()])
    last = [numbers[-1], signal.SIGUSR2]
    assert told == sorted((b"S", bytes([number, ALONE])) for number in last)
    again.ended(0)
    assert again.gone()
    assert door.finish(process)[0] == 0


def test_one_that_ends_the_job_does_not_wait_for_those_that_tell_something(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    process.send_signal(signal.SIGUSR1)
    has_begun(process, visit)
    process.send_signal(signal.SIGTERM)
    assert visit.frame() == (b"S", bytes([signal.SIGTERM, ALONE]))
    visit.ended(0)
    assert visit.gone()
    assert door.finish(process)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGXCPU])
def test_a_deadly_signal_ends_a_job_that_has_not_begun(door: Door, number: int) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    visit.answer(b"A", b"17")
    process.send_signal(number)
    assert door.finish(process) == (-number, b"", b"")
    assert visit.gone()


def test_a_deadly_signal_ends_a_job_that_waits_for_the_agent(closed_door: Door) -> None:
    process = closed_door.start("slurm:mini", "--", "true")
    wait_for_state(process, "S")
    process.send_signal(signal.SIGTERM)
    assert closed_door.finish(process) == (-signal.SIGTERM, b"", b"")


def test_a_deadly_signal_ends_a_job_whose_machine_was_lost(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    with door.accept() as visit:
        visit.answer(b"B")
    again = door.accept()
    process.send_signal(signal.SIGTERM)
    assert door.finish(process)[0] == -signal.SIGTERM
    assert again.gone()


def test_what_the_job_was_to_ignore_does_not_reach_it(door: Door) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = door.start("slurm:mini", "--", "true", preexec_fn=ignore)
    visit = door.accept()
    process.send_signal(signal.SIGHUP)  # before it has begun, this would have ended it
    has_begun(process, visit)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGCHLD)
    process.send_signal(signal.SIGPIPE)
    process.send_signal(signal.SIGUSR1)
    assert visit.frame() == (b"S", bytes([signal.SIGUSR1, ALONE]))
    visit.ended(0)
    assert visit.gone()
    assert door.finish(process)[0] == 0


def test_it_is_stopped_and_goes_on_as_any_process(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    has_begun(process, visit)
    process.send_signal(signal.SIGSTOP)
    wait_for_state(process, "T")
    process.send_signal(signal.SIGCONT)
    assert visit.frame() == (b"S", bytes([signal.SIGCONT, ALONE]))
    visit.ended(0)
    assert door.finish(process)[0] == 0


def test_a_job_that_nobody_carries_further_leaves_the_terminal_alone(door: Door) -> None:
    """A starter in a pipeline whose reader has gone must not die of telling."""
    read, write = os.pipe()
    process = door.start("slurm:mini", "--", "true", stderr=write)
    os.close(write)
    visit = door.accept()
    visit.release_streams()
    os.close(read)
    visit.answer(b"N", b"Nobody hears this.")
    visit.answer(b"B")
    visit.ended(6)
    assert process.wait(PATIENCE) == 6
