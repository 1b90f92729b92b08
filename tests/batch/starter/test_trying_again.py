"""A job that has not begun is tried again; one that has begun, never."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import threading
from contextlib import suppress

import pytest

from tests.batch.starter.double import PATIENCE, Door, Visit


def tries(visit: Visit) -> tuple[int, int]:
    return visit.only("t")[0], visit.only("b")[0]


def test_a_job_whose_connection_is_lost_before_it_began_is_told_again(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true", "word")
    with door.accept() as first:
        assert tries(first) == (0, 0)
        first.answer(b"A", b"17")
    with door.accept() as second:
        assert tries(second) == (1, 0)
    third = door.accept()
    assert tries(third) == (2, 0)
    marks = ("t", "b")
    told = [{k: v for k, v in visit.fields.items() if k not in marks} for visit in (first, third)]
    assert told[0] == told[1]
    assert len(third.streams) == 3, "its input and outputs come with it each time"
    third.answer(b"B")
    third.ended(2)
    assert door.finish(process) == (2, b"", b"")


def test_a_job_whose_connection_is_lost_after_it_began_says_so(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    with door.accept() as first:
        first.answer(b"B")
    with door.accept() as second:
        assert tries(second) == (1, 1)
    third = door.accept()
    assert tries(third) == (2, 1)
    third.answer(b"P")  # it would be run a second time
    third.answer(b"F", b"\6Lost.")
    assert door.finish(process) == (6, b"", b"encamp: Lost.\n")


def test_a_crowd_at_the_door_is_waited_for(door: Door) -> None:
    crowd = []
    with suppress(BlockingIOError):
        while True:
            crowd.append(socket.socket(socket.AF_UNIX))
            crowd[-1].setblocking(False)
            crowd[-1].connect(str(door.path))
    process = door.start("slurm:mini", "--", "true")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    crowd.pop().close()  # It had no place.
    door.dismiss(len(crowd))
    for one in crowd:
        one.close()
    door.accept().ended(3)
    assert door.finish(process) == (3, b"", b"")


def test_try_again_waits_as_long_as_it_was_told_and_says_why(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    with door.accept() as first:
        first.answer(b"T", struct.pack("<I", 10) + b"The host is full.")
    second = door.accept()
    assert tries(second) == (1, 0)
    second.ended(0)
    assert door.finish(process) == (0, b"", b"encamp: The host is full.\n")


@pytest.mark.parametrize("kind", [b"W", b"M"])
def test_what_was_not_tried_does_not_count_as_a_try(door: Door, kind: bytes) -> None:
    """There was a crowd, or the agent made a mistake."""
    process = door.start("slurm:mini", "--", "true")
    for _ in range(5):
        with door.accept() as visit:
            assert tries(visit) == (0, 0)
            visit.answer(kind, struct.pack("<I", 1) + b"Not now.")
    with door.accept() as visit:
        assert tries(visit) == (0, 0)
        visit.answer(b"T", struct.pack("<I", 1) + b"It did not come up.")
    last = door.accept()
    assert tries(last) == (1, 0)
    last.ended(0)
    said = b"encamp: Not now.\nencamp: It did not come up.\n"
    assert door.finish(process) == (0, b"", said)


def test_crowd_is_waited_for_and_an_agent_that_only_makes_mistakes_is_not(door: Door) -> None:
    gridengine = {"JOB_ID": "5", "RESTARTED": "0"}
    process = door.start("gridengine", "true", variables=gridengine)
    for kind, times in ((b"W", 300), (b"M", 60)):
        for _ in range(times):
            with door.accept() as visit:
                assert tries(visit) == (0, 0)
                visit.answer(kind, struct.pack("<I", 1))
    code, _, err = door.finish(process)
    assert code == 99
    assert b"goes back into the queue" in err


def test_why_is_said_once_and_not_each_time(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    for why in (b"The host is full.", b"The host is full.", b"It is away.", b"The host is full."):
        with door.accept() as visit:
            visit.answer(b"T", struct.pack("<I", 1) + why)
    door.accept().ended(0)
    said = b"encamp: The host is full.\nencamp: It is away.\nencamp: The host is full.\n"
    assert door.finish(process) == (0, b"", said)


def test_what_a_job_goes_back_for_is_said_once_however_often_that_is_tried(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    for _ in range(3):
        with door.accept() as visit:
            visit.answer(b"N", b"It could not be run.")
            visit.answer(b"T", struct.pack("<I", 1) + b"The batch system is away.")
    door.accept().ended(0)
    said = b"encamp: It could not be run.\nencamp: The batch system is away.\n"
    assert door.finish(process) == (0, b"", said)


def test_a_deadly_signal_ends_the_wait_for_another_try(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    door.accept().answer(b"T", struct.pack("<I", 0xFFFFFFFF) + b"Later.")
    assert process.stderr is not None
    assert process.stderr.readline() == b"encamp: Later.\n"
    process.send_signal(signal.SIGTERM)
    assert door.finish(process)[0] == -signal.SIGTERM


def test_a_job_waits_for_an_agent_that_comes_later(closed_door: Door) -> None:
    process = closed_door.start("slurm:mini", "--", "true")
    closed_door.path.mkdir()  # nobody can answer there
    closed_door.path.rmdir()
    closed_door.open()
    visit = closed_door.accept()
    assert tries(visit) == (0, 0)
    visit.ended(0)
    assert closed_door.finish(process)[0] == 0


def test_a_job_that_has_waited_for_a_while_says_so_once(closed_door: Door) -> None:
    process = closed_door.start("slurm:mini", "--", "true")
    assert process.stderr is not None
    assert b"the job waits for it" in process.stderr.readline()
    closed_door.open()
    closed_door.accept().ended(0)
    assert closed_door.finish(process) == (0, b"", b"")


def test_what_cannot_have_been_said_by_an_agent_counts_as_lost(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    door.accept().say(b"\xff\xff\xff\xffN")
    second = door.accept()
    second.answer(b"E", b"\0")  # too short
    third = door.accept()
    assert tries(third) == (2, 0)
    third.ended(0)
    assert door.finish(process)[0] == 0


def test_a_door_that_always_loses_it_gets_the_job_taken_away(absent: Door) -> None:
    absent.open()
    process = absent.start("gridengine", "true", variables={"JOB_ID": "5", "RESTARTED": "0"})
    visits: list[Visit] = []

    def lose() -> None:
        with suppress(OSError):  # once it is closed
            while True:
                with absent.accept() as visit:
                    visits.append(visit)

    losing = threading.Thread(target=lose)
    losing.start()
    process.wait(PATIENCE)
    absent.close()
    losing.join()
    code, _, err = absent.finish(process)
    assert code == 99
    assert [visit.only("t")[0] for visit in visits] == list(range(len(visits)))
    assert len(visits) >= 5
    assert b"goes back into the queue" in err
