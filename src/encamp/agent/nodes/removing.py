"""Removing a worker node's machine by force: its batch system is told, and its jobs are given back,
before nobody knows any more that there was one."""

from __future__ import annotations

import asyncio

from encamp.agent.journal import Journal
from encamp.agent.keeper import Keeper
from encamp.batch.enrol.opening import open_workers
from encamp.batch.enrol.workers import Workers
from encamp.describe.batch_file import load_batch_settings
from encamp.model.errors import EncampError
from encamp.model.machine import ALIVE, Machine


async def remove(keeper: Keeper, machine: Machine, *, force: bool = False) -> None:
    """Of a machine that is no node, or has not become one, nobody is told."""
    node = machine.node
    if node is None or (machine.state in ALIVE and not force):
        await keeper.remove(machine, force=force)
        return
    if machine.state in ALIVE:
        # As it is after that: whoever has it join may have told of it until then.
        machine = await keeper.kill(machine)
    if not _is_told(machine):
        await keeper.remove(machine, force=True)
        return
    try:
        workers = open_workers(load_batch_settings(), node.system)
        await give_up(keeper, workers, machine)
    except EncampError as error:
        error.hint = error.hint or "Its machine is ended. The agent removes it from there later."
        raise


async def give_up(keeper: Keeper, workers: Workers, machine: Machine) -> None:
    """End a node at once. If the batch system does not listen now, the machine's record stays, and
    the agent sees to it later. One that was never told of this node is not told now."""
    if machine.state in ALIVE:
        machine = await keeper.kill(machine)
    if _is_told(machine) and not _is_anothers(keeper.journal, machine):
        await asyncio.to_thread(workers.lost, machine.name)
    if keeper.journal.read(machine.id) is not None:
        await keeper.remove(machine, force=True)


def _is_told(machine: Machine) -> bool:
    return machine.node is not None and machine.node.is_told


def _is_anothers(journal: Journal, machine: Machine) -> bool:
    """Is another machine the node of that name now? They have them from addresses."""
    return any(
        other.name == machine.name
        and other.id != machine.id
        and other.state in ALIVE
        and _is_told(other)
        for other in journal.all()
    )
