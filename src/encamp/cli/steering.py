"""What the caller's signals, terminal and result are to a command that runs elsewhere."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from encamp.cli.cleaning import json_text, remark
from encamp.cli.terminal import window
from encamp.model.errors import Code
from encamp.model.job import Outcome

T = TypeVar("T")

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Steering(Protocol):
    """What the outside may do to a command under way."""

    @property
    def started(self) -> bool: ...

    def signal(self, number: signal.Signals) -> None: ...

    def resize(self, rows: int, columns: int) -> None: ...


@contextmanager
def window_changes(control: Steering) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def changed() -> None:
        size = window()
        if size is not None:
            control.resize(*size)

    loop.add_signal_handler(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def with_signals(work: Coroutine[object, object, T], control: Steering) -> T:
    """The first signal goes to the command; a second one, or one before it began, ends all."""
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work)
    received: list[signal.Signals] = []

    def handle(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1 and control.started:
            control.signal(number)
        else:
            task.cancel()

    for number in PASSED_ON:
        loop.add_signal_handler(number, handle, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise SystemExit(128 + received[-1]) from None
    finally:
        for number in PASSED_ON:
            loop.remove_signal_handler(number)


def conclude(outcome: Outcome, *, timings: bool, as_json: bool) -> int:
    """Tell what became of a job, and with what exit code that is said."""
    report(outcome)
    if timings:
        from encamp.cli.tables import print_timings

        print_timings(outcome.phases, error=True)
    if as_json:
        print(json_text(outcome), file=sys.stderr)
    if outcome.problems and outcome.exit_code == 0:
        return Code.COPY_FAILED.value
    return outcome.exit_code


def report(outcome: Outcome) -> None:
    """What the caller should know beyond the exit code."""
    if not outcome.started:
        remark(f"The command was not run in the machine: {outcome.reason}")
    for pattern in outcome.missing:
        remark(f"--out {pattern}: nothing in the machine matches.")
    for problem in outcome.problems:
        remark(problem)
