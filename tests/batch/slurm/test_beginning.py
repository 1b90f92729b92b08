"""Jobs that were given back are let begin, whatever goes wrong with one of them or for a moment."""

from __future__ import annotations

import threading
import time

import pytest

from encamp.batch.slurm import beginning
from encamp.batch.slurm.beginning import Beginning


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "LOOK", 0.01)


def test_a_host_that_is_short_of_processes_tries_again() -> None:
    tries, begun = 0, threading.Event()

    def begin(id: str) -> bool:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        begun.set()
        return True

    Beginning(begin).soon("1")
    assert begun.wait(30)


def test_what_is_wrong_with_one_job_keeps_no_other_waiting() -> None:
    begun = {id: threading.Event() for id in ("right", "late")}

    def begin(id: str) -> bool:
        if id == "wrong":
            raise ValueError(id)
        begun[id].set()
        return True

    following = Beginning(begin)
    for id in ("wrong", "right"):
        following.soon(id)
    assert begun["right"].wait(30)
    end = time.monotonic() + 30
    while following._following and time.monotonic() < end:
        time.sleep(0.01)
    following.soon("late")
    assert begun["late"].wait(30)


def test_without_room_for_a_thread_the_next_job_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: set[str] = set()
    both = threading.Event()

    def begin(id: str) -> bool:
        begun.add(id)
        if begun == {"1", "2"}:
            both.set()
        return True

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    following = Beginning(begin)
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", start)
        following.soon("1")
    following.soon("2")
    assert both.wait(30)
