"""Looking after the worker nodes of a host: each leaves when it should, and never under a job."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from encamp.agent.journal import ClientLock, Journal
from encamp.agent.keeper import Keeper
from encamp.agent.nodes.deciding import Decision, Step, decide
from encamp.agent.nodes.removing import give_up
from encamp.agent.recovery import recover
from encamp.batch.enrol.opening import open_workers
from encamp.batch.enrol.workers import Seen, Workers
from encamp.describe.batch_file import load_batch_settings
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from encamp.model.machine import ALIVE, Machine, State
from encamp.model.node import Node, NodeState

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks at the nodes."""
GRACE = 10.0
"""Seconds for which a node that is on its way is not taken for one that was left there."""
PATIENCE, AGAIN = 5.0, 0.05
"""Seconds for which whoever is just changing a machine is waited for, and between two looks."""
JOINING = "joining"
"""A file in a machine's directory that is locked by whoever has it join."""


def record(journal: Journal, machine: Machine, node: Node | None) -> Machine:
    """Write down how a machine stands towards its batch system, whatever else has changed of it."""
    with journal.moving(machine.id):
        current = journal.read(machine.id)
        if current is None:
            raise EncampError(Code.UNKNOWN_MACHINE, f"Machine {machine.name} is gone.")
        handed = tuple(dict.fromkeys((*current.handed, *machine.handed)))
        changed = msgspec.structs.replace(current, node=node, handed=handed)
        if changed != current:
            journal.write(changed)
        return changed


def change(
    journal: Journal, machine: Machine, changed: Callable[[Node], Node], wait: float = 0.0
) -> Machine | None:
    """Change how a node stands, as it is written down at that moment: others write there, too. None
    if it is gone. `wait`: seconds for which whoever is just at it is waited for."""
    end = time.monotonic() + wait
    while True:
        try:
            with journal.moving(machine.id):
                current = journal.read(machine.id)
                if current is None or current.node is None:
                    return None
                made = msgspec.structs.replace(current, node=changed(current.node))
                if made != current:
                    journal.write(made)
                return made
        except EncampError as error:
            if error.code is Code.UNKNOWN_MACHINE:
                return None
            if not error.transient or time.monotonic() >= end:
                raise
        time.sleep(AGAIN)


def nodes_of(journal: Journal) -> list[Machine]:
    return [machine for machine in journal.all() if machine.node is not None]


def ask_to_leave(journal: Journal, machine: Machine, reason: str, now: float) -> Machine:
    """Have a node leave at the next look: as if its lease had ended."""
    node = machine.node
    if node is None:
        raise EncampError(
            Code.WRONG_STATE, f"Machine {machine.name} is no worker node of a batch system."
        )

    def leaving(node: Node) -> Node:
        if node.state is NodeState.LEAVING:
            return node
        return msgspec.structs.replace(node, until=now, reason=reason)

    return change(journal, machine, leaving, PATIENCE) or machine


class Nodes:
    """The worker nodes of a home, while an agent runs."""

    def __init__(self, home: Home, opening: Callable[[str], Workers] | None = None) -> None:
        self._home = home
        self._keeper = Keeper(home)
        self._opening = opening or (lambda system: open_workers(load_batch_settings(), system))

    async def run(self, every: float = EVERY) -> None:
        """Until cancelled. What goes wrong with one node, or once, is tried again."""
        while True:
            try:
                await self.look()
            except (EncampError, OSError) as error:
                log.warning("The worker nodes could not be looked after: %s", error)
            except Exception:
                # Whatever it is: the agent has more to do than this.
                log.exception("The worker nodes could not be looked after.")
            await asyncio.sleep(every)

    async def look(self) -> None:
        """Take the next step with every node that is due for one."""
        journal = self._keeper.journal
        if not nodes_of(journal):
            return
        # Whose machine has ended is written down first.
        await asyncio.to_thread(recover, self._home)
        systems: dict[str, list[Machine]] = {}
        for machine in nodes_of(journal):
            assert machine.node is not None
            systems.setdefault(machine.node.system, []).append(machine)
        failed: list[Exception] = []
        for system, machines in systems.items():
            try:
                await self._see_to_all(self._opening(system), machines)
            except Exception as error:
                # Nodes of another one can be looked after nevertheless.
                failed.append(error)
        if failed:
            raise failed[0]

    async def _see_to_all(self, workers: Workers, machines: list[Machine]) -> None:
        names = [machine.name for machine in machines]
        seen = await asyncio.to_thread(workers.look, names)
        told = [one for one in machines if one.node is not None and one.node.is_told]
        up = {one.name: one.environment for one in told if one.name in seen}
        try:
            await asyncio.to_thread(workers.send_on, up)
        except (EncampError, OSError) as error:
            log.warning("Jobs that are not for worker nodes may be on some: %s", error)
        except Exception:
            log.exception("Jobs that are not for worker nodes may be on some.")
        for machine in machines:
            try:
                await self._see_to(workers, machine, seen.get(machine.name))
            except (EncampError, OSError) as error:
                log.warning("Node %s: %s", machine.name, error)
            except Exception:
                # Whatever is wrong with one must not keep the others from being looked after.
                log.exception("Node %s cannot be looked after.", machine.name)

    async def _see_to(self, workers: Workers, machine: Machine, seen: Seen | None) -> None:
        alive, joining, now = machine.state in ALIVE, self._is_joining(machine), time.time()
        decisions: list[Decision] = []

        def decided(node: Node) -> Node:
            decisions.append(decide(node, seen, alive=alive, joining=joining, now=now))
            return decisions[0].node

        # Somebody may have asked it to leave while its batch system was asked about it.
        current = change(self._keeper.journal, machine, decided)
        if current is None or current.node is None or machine.node is None:
            return
        if current.node.state is not machine.node.state:
            system, reason = current.node.system, current.node.reason
            log.info("Node %s leaves %s: %s", current.name, system, reason)
        await self._take(workers, current, decisions[0])

    async def _take(self, workers: Workers, machine: Machine, decision: Decision) -> None:
        node = decision.node
        match decision.step:
            case Step.STAY:
                return
            case Step.CLOSE:
                reason = f"encamp: {node.reason}"
                await asyncio.to_thread(workers.close, node.name, reason)
            case Step.REMOVE:
                await asyncio.to_thread(workers.remove, node.name)
                await self._keeper.remove(machine, force=True)
                log.info("Node %s has left %s: %s", node.name, node.system, node.reason)
            case Step.LOST:
                await give_up(self._keeper, workers, machine)
                log.warning("Node %s was lost: %s", node.name, machine.reason)
            case Step.END:
                await self._keeper.remove(machine, force=True)
                log.warning("Node %s has not come about: %s", node.name, machine.reason)

    def _is_joining(self, machine: Machine) -> bool:
        """Is whoever has it join still there? A while is left to find out."""
        assert machine.node is not None
        if machine.state is State.STARTING:
            return True  # One that was left like that has been cleared away.
        if time.time() - max(machine.node.since, machine.changed) < GRACE:
            return True
        path = self._keeper.journal.directory(machine.id).path / JOINING
        lock = ClientLock.take(path)
        if lock is None:
            return True
        lock.release()
        return False
