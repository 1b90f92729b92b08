"""Making a machine a worker node: started, handed what it needs, and seen by its batch system."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

import msgspec

from encamp.agent.context import hand_over
from encamp.agent.copying import ROOT
from encamp.agent.journal import ClientLock
from encamp.agent.keeper import Keeper
from encamp.agent.nodes import offering
from encamp.agent.nodes.keeping import JOINING, PATIENCE, change, record
from encamp.agent.nodes.removing import give_up
from encamp.batch.enrol.opening import open_workers
from encamp.batch.enrol.workers import Workers
from encamp.describe.batch_file import load_batch_settings
from encamp.describe.environments import find_environment
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import MachineRequest
from encamp.model.machine import ALIVE, Machine
from encamp.model.node import Enrolment, Node, NodeState
from encamp.progress import Progress

LOOK = 0.2
"""Seconds between two looks at whether a node is there."""


async def start_node(
    keeper: Keeper,
    request: MachineRequest,
    progress: Progress,
    *,
    idle: float | None = None,
    lease: float | None = None,
) -> Machine:
    """A machine that has joined its batch system. `idle` and `lease` are as its environment says,
    if not given."""
    environment = find_environment(request.environment)
    enrolment = _checked(environment, request)
    workers = open_workers(load_batch_settings(), enrolment.system)
    if request.name is not None:
        await asyncio.to_thread(workers.check, request.name, None)
    request = msgspec.structs.replace(request, enrol=True)
    with offering.trying(keeper.home, environment.name):
        try:
            machine = await keeper.start(request, progress, environment=environment)
        except EncampError as error:
            if error.code is Code.NOT_READY and request.name is not None:
                with suppress(EncampError):  # Then it waits in vain.
                    await asyncio.to_thread(workers.not_coming, request.name)
            raise
        # Held until it has joined: nobody takes it for one that was left on the way.
        joining = ClientLock.take(keeper.journal.directory(machine.id).path / JOINING)
        try:
            machine = record(keeper.journal, machine, _as_wished(machine, idle, lease))
            address = machine.link.address if machine.link else None
            await asyncio.to_thread(workers.check, machine.name, address)
            # From here on the name is this one's, whoever ends it.
            machine = _told(keeper, machine)
            await _clear_former(keeper, machine)
            progress.update(f"having {machine.name} join {enrolment.system}")
            return await _join(keeper, workers, machine, environment)
        except BaseException as error:
            await give_up(keeper, workers, machine)
            if isinstance(error, EncampError):
                error.hint = error.hint or "Its machine was ended."
            raise
        finally:
            if joining is not None:
                joining.release()


def _as_wished(machine: Machine, idle: float | None, lease: float | None) -> Node:
    node = machine.node
    assert node is not None, "it was asked to become one"
    if idle is not None:
        node = msgspec.structs.replace(node, idle=idle)
    if lease is not None:
        node = msgspec.structs.replace(node, until=time.time() + lease)
    return node


def _checked(environment: Environment, request: MachineRequest) -> Enrolment:
    if environment.enrol is None:
        raise EncampError(
            Code.USAGE,
            f"Machines of environment '{environment.name}' are no worker nodes.",
            "'enrol: slurm' or 'enrol: gridengine' in its description makes them such.",
        )
    if (request.network or environment.network) != "bridge":
        raise EncampError(
            Code.CONFIGURATION,
            f"Nobody could reach a worker node of environment '{environment.name}'.",
            "Its batch system speaks to it: say 'network: bridge' in its description.",
        )
    if os.geteuid() != 0:
        raise EncampError(
            Code.NOT_PERMITTED,
            "Only root can have a machine join a batch system: it is handed the site's key.",
        )
    return environment.enrol


async def _join(
    keeper: Keeper, workers: Workers, machine: Machine, environment: Environment
) -> Machine:
    node, patience = machine.node, environment.ready.timeout
    assert node is not None
    context = await asyncio.to_thread(workers.context, machine, environment)
    await asyncio.to_thread(workers.register, machine, environment)
    handing = msgspec.structs.replace(environment, context=context)
    try:
        async with asyncio.timeout(patience):
            async with keeper.speak(machine) as (engine, channel):
                handed = await engine.unless_ended(
                    hand_over(channel, machine, handing, ROOT, lambda step: None)
                )
            # What is handed here is in no image that is made of the machine.
            machine = msgspec.structs.replace(machine, handed=(*machine.handed, *handed))
            machine = record(keeper.journal, machine, node)
            while not await _is_up(workers, node.name):
                await asyncio.sleep(LOOK)
    except TimeoutError:
        raise EncampError(
            Code.NOT_READY,
            f"Node {node.name} has not joined {node.system} within {patience:g} seconds.",
            "See the daemon's log there, and the controller's; 'ready.timeout' gives it more time.",
            transient=True,
        ) from None
    return change(keeper.journal, machine, _member, PATIENCE) or machine


def _told(keeper: Keeper, machine: Machine) -> Machine:
    """Written down before the batch system hears of it, unless somebody has ended it meanwhile."""
    told = change(
        keeper.journal, machine, lambda node: msgspec.structs.replace(node, told=True), PATIENCE
    )
    if told is None or told.state not in ALIVE:
        raise EncampError(Code.MACHINE_LOST, f"Machine {machine.name} was ended before it joined.")
    return told


def _member(node: Node) -> Node:
    """It has no job yet: whoever wonders whether another node is needed finds this one free."""
    now = time.time()
    reason = node.reason  # Somebody may have asked it to leave already.
    return msgspec.structs.replace(node.moved(NodeState.MEMBER, now, reason), quiet=now)


async def _clear_former(keeper: Keeper, machine: Machine) -> None:
    """Nodes have their names from their addresses: a record of one that had this address before is
    about a node that is to be given up, and not about this one."""
    for other in keeper.journal.all():
        if other.name == machine.name and other.id != machine.id and other.state not in ALIVE:
            await keeper.remove(other, force=True)


async def _is_up(workers: Workers, name: str) -> bool:
    seen = (await asyncio.to_thread(workers.look, [name])).get(name)
    return seen is not None and seen.up
