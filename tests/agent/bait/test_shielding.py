"""Of the signals that a batch system sends to all of a job, the process that carries the job out
hears only what its own parent has sent."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from encamp.agent.bait.shielding import shielded

SOME = (signal.SIGHUP, signal.SIGINT, signal.SIGTSTP, signal.SIGXCPU, signal.SIGRTMAX)
TOLD, NOT_TOLD = 3, 4
SOON, LONG = 0.2, 20.0


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a process that does it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_to_be_told(seconds: float, before: Callable[[], object]) -> None:
    """As commands do: whoever stops them cancels what they are at."""

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with shielded(os.getppid()):
            before()
        await asyncio.sleep(seconds)

    try:
        asyncio.run(work())
    except asyncio.CancelledError:
        os._exit(TOLD)
    os._exit(NOT_TOLD)


def sent_by_parent() -> None:
    """Once the child says that it is ready."""
    ready, say = os.pipe()
    child = os.fork()
    if child == 0:
        wait_to_be_told(LONG, lambda: os.write(say, b"."))
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def test_parent_can_have_it_stop() -> None:
    assert in_child(sent_by_parent) == TOLD


@pytest.mark.parametrize("number", [signal.SIGTERM, *SOME])
def test_nobody_else_can(number: int) -> None:
    def sent_by_itself() -> None:
        wait_to_be_told(SOON, lambda: os.kill(os.getpid(), number))

    assert in_child(sent_by_itself) == NOT_TOLD


def test_it_is_too_late_to_stop_when_nothing_is_done_any_more() -> None:
    """What was done is told, also to a parent that has changed its mind."""

    def done_with() -> None:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with shielded(parent):
                pass
            os.kill(parent, signal.SIGUSR1)
            signal.sigtimedwait([], SOON)
            os._exit(NOT_TOLD)
        signal.sigwait({signal.SIGUSR1})
        os.kill(child, signal.SIGTERM)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        assert in_child(done_with) == NOT_TOLD
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
