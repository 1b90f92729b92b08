"""What goes wrong with a worker node, or once, is tried again, and nothing else ends of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import pytest

from encamp.agent.journal import ClientLock, Journal
from encamp.agent.keeper import Keeper
from encamp.agent.nodes import keeping
from encamp.agent.nodes.keeping import Nodes
from encamp.agent.nodes.removing import remove
from encamp.batch.enrol.workers import Seen, Workers
from encamp.home import Home
from encamp.model.batch import BatchSettings
from encamp.model.environment import Context, Environment
from encamp.model.machine import Machine, State
from encamp.model.node import Node, NodeState
from encamp.model.size import MIB, Size

TROUBLE = [KeyError("State"), RuntimeError("can't start new thread"), OSError(24, "Too many files")]


class Odd(Workers):
    """A batch system of which something goes wrong."""

    system = "slurm"

    def __init__(self, **wrong: Exception) -> None:
        super().__init__(BatchSettings(system="slurm"))
        self.wrong = wrong
        self.closed: list[str] = []
        self.given_up: list[str] = []
        self.sent_on: list[str] = []
        self.looks = 0

    def look(self, nodes: Collection[str]) -> dict[str, Seen]:
        self.looks += 1
        if "look" in self.wrong:
            raise self.wrong["look"]
        return {name: Seen(up=True, jobs=0) for name in nodes}

    def send_on(self, nodes: Mapping[str, str]) -> None:
        if "send_on" in self.wrong:
            raise self.wrong["send_on"]
        self.sent_on += nodes

    def close(self, node: str, reason: str) -> None:
        if node in self.wrong:
            raise self.wrong[node]
        self.closed.append(node)

    def context(self, machine: Machine, environment: Environment) -> Context:
        raise NotImplementedError

    def check(self, name: str, address: str | None) -> None:
        raise NotImplementedError

    def register(self, machine: Machine, environment: Environment) -> None:
        raise NotImplementedError

    def remove(self, node: str) -> None:
        raise NotImplementedError

    def lost(self, node: str) -> None:
        self.given_up.append(node)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """There are three nodes that are to leave, and nobody looks for their processes."""
    monkeypatch.setattr(keeping, "recover", lambda home: None)
    home = Home(tmp_path / "home").prepare()
    journal = Journal(home)
    for number, system in enumerate(("slurm", "slurm", "gridengine"), start=1):
        name = f"n{number}"
        one = Machine(
            id=str(number) * 32,
            name=name,
            owner=os.getuid(),
            host=os.uname().nodename,
            environment="big",
            image="0" * 64,
            size=Size(1, 128 * MIB),
            state=State.RUNNING,
            reason="it runs",
            created=0.0,
            changed=0.0,
            node=Node(system=system, name=name, state=NodeState.MEMBER, since=0.0, until=0.0),
        )
        journal.directory(one.id).path.mkdir(parents=True, exist_ok=True)
        journal.write(one)
    return home


def looking(home: Home, workers: Odd, other: Odd | None = None) -> Nodes:
    return Nodes(home, lambda system: workers if system == "slurm" else other or Odd())


@pytest.mark.parametrize("trouble", TROUBLE, ids=repr)
async def test_a_look_that_fails_is_not_the_last(home: Home, trouble: Exception) -> None:
    workers, other = Odd(look=trouble), Odd()
    running = asyncio.create_task(looking(home, workers, other).run(every=0.0))
    while workers.looks < 3:
        assert not running.done(), running.exception()
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    assert other.closed[:1] == ["n3"], "those of another batch system are looked after"


@pytest.mark.parametrize("trouble", TROUBLE, ids=repr)
@pytest.mark.parametrize("where", ["send_on", "n1"])
async def test_what_is_wrong_with_one_keeps_no_other_from_being_looked_after(
    home: Home, where: str, trouble: Exception
) -> None:
    workers = Odd(**{where: trouble})
    await looking(home, workers).look()
    assert workers.closed == (["n2"] if where == "n1" else ["n1", "n2"])


def on_its_way(home: Home, state: State, **fields: bool | float) -> Machine:
    """The first node, as one that has not joined yet."""
    journal = Journal(home)
    one = journal.find("n1")
    given = {"system": "slurm", "name": "n1", "since": 0.0, **fields}
    node = Node(state=NodeState.JOINING, **given)  # type: ignore[arg-type]
    one = msgspec.structs.replace(one, state=state, node=node, changed=0.0)
    journal.write(one)
    return one


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("state", [State.FAILED, State.RUNNING])
async def test_node_of_the_same_name_on_another_host_stays_if_one_has_not_come_about_here(
    home: Home, state: State, told: bool
) -> None:
    machine = on_its_way(home, state, told=told)
    workers = Odd()
    await looking(home, workers).look()
    is_lost = told and state is State.FAILED
    assert workers.given_up == (["n1"] if is_lost else [])
    assert workers.closed == (["n1", "n2"] if told and not is_lost else ["n2"])
    assert workers.sent_on == (["n1", "n2"] if told else ["n2"])
    is_kept = told and not is_lost
    assert (Journal(home).read(machine.id) is not None) == is_kept


async def test_machine_that_somebody_has_join_is_not_ended(home: Home) -> None:
    """However long it takes to start: until it has, nobody holds its lock."""
    journal = Journal(home)
    machine = on_its_way(home, State.STARTING)
    nodes = looking(home, Odd())
    await nodes.look()
    assert journal.read(machine.id) is not None
    journal.write(msgspec.structs.replace(machine, state=State.RUNNING, changed=time.time()))
    await nodes.look()
    assert journal.read(machine.id) is not None, "it has only just started"
    machine = on_its_way(home, State.RUNNING)
    lock = ClientLock.take(journal.directory(machine.id).path / keeping.JOINING)
    assert lock is not None
    await nodes.look()
    assert journal.read(machine.id) is not None
    lock.release()
    await nodes.look()
    assert journal.read(machine.id) is None


@pytest.mark.parametrize("state", [State.FAILED, State.RUNNING])
async def test_batch_system_is_not_asked_when_a_machine_is_removed_that_it_was_never_told_of(
    home: Home, state: State
) -> None:
    machine = on_its_way(home, state)
    await remove(Keeper(home), machine, force=True)
    assert Journal(home).read(machine.id) is None


async def test_node_that_is_gone_is_given_up_though_one_of_its_name_is_on_its_way(
    home: Home,
) -> None:
    """That one may never come about."""
    journal = Journal(home)
    former = on_its_way(home, State.FAILED, told=True)
    assert former.node is not None
    for told, given_up in ((False, ["n1"]), (True, [])):
        journal.write(former)
        node = msgspec.structs.replace(former.node, told=told, since=time.time())
        other = msgspec.structs.replace(former, id="f" * 32, state=State.RUNNING, node=node)
        journal.directory(other.id).path.mkdir(parents=True, exist_ok=True)
        journal.write(other)
        workers = Odd()
        await looking(home, workers).look()
        assert workers.given_up == given_up
        assert journal.read(former.id) is None
        journal.directory(former.id).path.mkdir(parents=True, exist_ok=True)
