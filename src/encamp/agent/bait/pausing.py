"""A job whose starter is stopped stands still, and goes on when that does: its machine is paused
and resumed. The batch system knows the starter alone."""

from __future__ import annotations

import asyncio
import logging
import signal

from encamp.agent.bait.starter import Starter, process_state
from encamp.agent.keeper import Keeper
from encamp.agent.run import Control
from encamp.model.errors import EncampError
from encamp.model.machine import Machine

EVERY = 0.5
"""Seconds between two looks at the starter."""

STOPPED = frozenset("Tt")

LOG = logging.getLogger(__name__)


async def until_going(starter: Starter) -> None:
    """Nothing begins for one that is stopped."""
    while True:
        process = process_state(starter.pid)
        if process is None or process[0] not in STOPPED:
            return
        await asyncio.sleep(EVERY)


async def follow_alone(starter: Starter, control: Control) -> None:
    """The same for one of several commands in a machine: it stands still, and not the machine."""
    stopped = False
    while (process := process_state(starter.pid)) is not None and process[1] == starter.began:
        if (process[0] in STOPPED) != stopped:
            stopped = not stopped
            control.signal(signal.SIGSTOP if stopped else signal.SIGCONT)
        await asyncio.sleep(EVERY)


async def follow(starter: Starter, keeper: Keeper, machine: Machine) -> None:
    """Until cancelled, or until the starter is no more."""
    paused = False
    while True:
        await asyncio.sleep(EVERY)
        process = process_state(starter.pid)
        if process is None or process[1] != starter.began or process[0] in "ZX":
            return
        stopped = process[0] in STOPPED
        if stopped == paused:
            continue
        try:
            machine = await (keeper.pause(machine) if stopped else keeper.resume(machine))
            paused = stopped
        except EncampError as error:
            # Somebody else moves it, or it has just ended: the next look tells.
            LOG.info("%s", error)
