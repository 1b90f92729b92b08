"""A command in a machine of the site, with the caller's streams, terminal and signals; or files
copied into it and out of it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack

from encamp.agent.streams import Silence
from encamp.cli import requests
from encamp.cli.bar import Bar
from encamp.cli.caller_files import CallerFiles
from encamp.cli.steering import conclude, window_changes, with_signals
from encamp.cli.streams import StandardStreams
from encamp.cli.terminal import raw_terminal, window
from encamp.door.client import AnyDoor
from encamp.door.questions import AskTicket, Exec, Ticket
from encamp.meeting.client import Client, Streams
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Copy, Outcome


def is_here(reference: str) -> bool:
    """Is this one of the caller's machines on this host, outside of any site?"""
    from encamp.agent.journal import Journal
    from encamp.home import default_home

    try:
        Journal(default_home().prepare()).find(reference)
    except EncampError as error:
        if error.code is Code.UNKNOWN_MACHINE:
            return False
        raise
    return True


def execute_through_site(
    door: AnyDoor, machine: str, command: Command, timeout: float | None
) -> int:
    if not machine:
        raise EncampError(
            Code.UNKNOWN_MACHINE, "There is no machine ''.", "'encamp ps' lists your machines."
        )
    what = Exec(command=command, timeout=timeout)
    outcome = asyncio.run(_execute(door, machine, what, CallerFiles((), ())))
    return conclude(outcome, timings=False, as_json=False)


def copy_through_site(
    door: AnyDoor, machine: str, inputs: tuple[Copy, ...], outputs: tuple[Copy, ...]
) -> Outcome:
    """Copy the caller's files into a machine, or a machine's files to the caller's host."""
    files = CallerFiles(inputs, outputs)
    what = Exec(command=Command(arguments=()), inputs=inputs, outputs=outputs)
    return files.judge(asyncio.run(_execute(door, machine, what, files)))


async def _execute(door: AnyDoor, machine: str, what: Exec, files: CallerFiles) -> Outcome:
    ticket = await requests.one(door, AskTicket(machine=machine, exec=what), Ticket)
    with ExitStack() as held:
        bar = held.enter_context(Bar())
        streams: Streams = Silence()
        if what.command.arguments:
            streams = own = StandardStreams()
            held.callback(own.close)
        client = Client(ticket, streams=streams, files=files, window=window())
        steering = _Steering(client, bar)
        if what.command.terminal is not None:
            held.enter_context(raw_terminal())
            held.enter_context(window_changes(steering))
        outcome = await with_signals(client.run(), steering)
        assert outcome is not None
        return outcome


class _Steering:
    def __init__(self, client: Client, bar: Bar) -> None:
        self.started = False
        self._client = client
        self._bar = bar
        client.on_begin = self._begin
        client.on_said = bar.update
        client.on_break = lambda error: bar.update(error.sentence)

    def _begin(self) -> None:
        self.started = True
        self._bar.finish()

    def signal(self, number: signal.Signals) -> None:
        self._client.signal(number)

    def resize(self, rows: int, columns: int) -> None:
        self._client.resize(rows, columns)
