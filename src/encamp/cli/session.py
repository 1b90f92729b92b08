"""A command in a machine, connected to the caller's streams, terminal and signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from encamp.agent.keeper import Keeper
from encamp.agent.run import Control, run_in, run_job
from encamp.cli.bar import Bar
from encamp.cli.streams import StandardStreams
from encamp.cli.terminal import raw_terminal, window
from encamp.home import default_home
from encamp.model.errors import Code
from encamp.model.job import Command, Job, Outcome

T = TypeVar("T")

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_here(job: Job, *, timings: bool, as_json: bool) -> int:
    outcome = asyncio.run(_run(job))
    report(outcome)
    if timings:
        from encamp.cli.tables import print_timings

        print_timings(outcome.phases, error=True)
    if as_json:
        import msgspec

        print(msgspec.json.encode(outcome).decode(), file=sys.stderr)
    if outcome.problems and outcome.exit_code == 0:
        return Code.COPY_FAILED.value
    return outcome.exit_code


def report(outcome: Outcome) -> None:
    """What the caller should know beyond the exit code."""
    if not outcome.started:
        print(f"encamp: The command was not run in the machine: {outcome.reason}", file=sys.stderr)
    for pattern in outcome.missing:
        print(f"encamp: --out {pattern}: nothing in the machine matches.", file=sys.stderr)
    for problem in outcome.problems:
        print(f"encamp: {problem}", file=sys.stderr)


async def _run(job: Job) -> Outcome:
    keeper = Keeper.open(default_home())
    control = Control()
    with ExitStack() as held:
        bar = held.enter_context(Bar())
        control.on_start = bar.finish
        streams = StandardStreams()
        held.callback(streams.close)
        if job.command.terminal is not None:
            held.enter_context(raw_terminal())
            held.enter_context(_window_changes(control))
        work = run_job(keeper, job, streams, control=control, progress=bar, window=window())
        return await _with_signals(work, control)


def execute_here(reference: str, command: Command, timeout: float | None) -> int:
    outcome = asyncio.run(_execute(reference, command, timeout))
    report(outcome)
    return outcome.exit_code


async def _execute(reference: str, command: Command, timeout: float | None) -> Outcome:
    from encamp.cli.options import caller

    keeper = Keeper.open(default_home())
    machine = keeper.journal.find(reference)
    control = Control()
    with ExitStack() as held:
        streams = StandardStreams()
        held.callback(streams.close)
        if command.terminal is not None:
            held.enter_context(raw_terminal())
            held.enter_context(_window_changes(control))
        work = run_in(keeper, machine, command, caller(), streams, control, timeout, window())
        return await _with_signals(work, control)


@contextmanager
def _window_changes(control: Control) -> Iterator[None]:
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


async def _with_signals(work: Coroutine[object, object, T], control: Control) -> T:
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
