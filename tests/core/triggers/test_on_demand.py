"""The triggers that are shipped for on-demand activation, on a site whose clock is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.agent.commands.offers import plugins
from encamp.core.actions import IssueCommand, PlaceMachines
from encamp.core.happenings import EnvironmentsRead, Happening, Joined, Submitted, TimePassed
from encamp.core.step import Core
from encamp.describe.property_files import shipped_properties
from encamp.describe.sources import Level, Source
from encamp.describe.trigger_files import read_triggers
from encamp.model.errors import EncampError
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.machine import Machine, State
from encamp.model.property import Value
from encamp.model.request import Request
from encamp.model.size import MIB, Size

FILE = Path(__file__).parents[3] / "examples" / "on-demand.yaml"
COMMANDS = {name: offer.definition for name, offer in plugins(ours_only=True)[0].items()}


class Site:
    """One host without any room, and two environments."""

    def __init__(self) -> None:
        self.core = Core(shipped_properties(), COMMANDS)
        self.now = 1000.0
        self.done: list[Any] = []
        facts: dict[str, Value] = {"cpus": 1, "memory": 128 * MIB, "classes": [], "reuse": True}
        self.happens(
            EnvironmentsRead(
                {
                    "batch": {"name": "batch", **facts},
                    "alone": {"name": "alone", **facts, "reuse": False},
                }
            )
        )
        self.joins()
        source = Source(str(FILE), Level.SITE, 0, str(FILE.parent), str(FILE))
        schema = self.core.picture.world.schema
        triggers = read_triggers([(source, FILE.read_bytes())], schema, COMMANDS)
        self.core.load(triggers, self.now)

    def joins(self, *machines: Machine) -> None:
        self.happens(
            Joined(
                name="node1",
                instance="1",
                version="1",
                clock_offset=0.0,
                commands=tuple(COMMANDS.values()),
                properties=shipped_properties(),
                machines=machines,
            )
        )

    def happens(self, happening: Happening) -> None:
        actions = self.core.step(happening, self.now).actions
        self.done += [one for one in actions if isinstance(one, PlaceMachines | IssueCommand)]

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.core.next_look()) is not None and due <= end:
            self.now = max(self.now, due) + 0.001
            self.happens(TimePassed())
        self.now = end
        self.happens(TimePassed())


def request(environment: str, **fields: Any) -> Request:
    machine = MachineRequest(environment, User("alice", 1, 1, "alice", (), "/"))
    usual = Request(
        id=f"r-{environment}",
        owner="alice",
        submitted=1000.0,
        environment=environment,
        size=Size(1, 128 * MIB),
        machine=machine,
        job=Job(machine, Command(("true",))),
    )
    return msgspec.structs.replace(usual, **fields)


def idle(name: str, since: float) -> Machine:
    return Machine(
        id=name,
        name=name,
        owner=0,
        host="node1",
        environment="batch",
        image="0" * 64,
        size=Size(1, 128 * MIB),
        state=State.RUNNING,
        reason="it is idle",
        created=since,
        changed=since,
        idle=True,
    )


def test_a_job_that_has_waited_has_a_machine_made_ready_for_its_owner_once() -> None:
    site = Site()
    site.happens(Submitted(request("batch")))
    site.passes(25)
    assert site.done == []
    site.passes(300)
    assert site.done == [PlaceMachines("batch", 1, "alice", "on_demand")]


def test_however_many_jobs_wait_one_machine_is_on_its_way_for_them() -> None:
    site = Site()
    for number in range(50):
        site.happens(Submitted(request("batch", id=f"r{number}", submitted=1000.0 + number / 10)))
    site.passes(300)
    assert site.done == [PlaceMachines("batch", 1, "alice", "on_demand")]
    # What was asked for waits, too.
    site.happens(Submitted(request("batch", id="asked", submitted=1300.0, job=None, reuse=True)))
    site.passes(300)
    assert len(site.done) == 1


@pytest.mark.parametrize(
    "asked", [request("alone"), request("batch", job=None)], ids=["alone", "without a job"]
)
def test_nothing_is_made_ready_where_no_job_could_use_it(asked: Request) -> None:
    site = Site()
    site.happens(Submitted(asked))
    site.passes(300)
    assert site.done == []


def test_environments_that_are_to_be_ready_are_filled_up() -> None:
    site = Site()
    site.happens(
        EnvironmentsRead({"batch": {"name": "batch", "classes": ["interactive"], "reuse": True}})
    )
    assert site.done == [PlaceMachines("batch", 2, "", "keep_ready")]
    site.joins(idle("a", 900.0))
    site.done.clear()
    site.passes(130)
    assert site.done == [PlaceMachines("batch", 1, "", "keep_ready")]
    site.joins(idle("a", 900.0), idle("b", 950.0))
    site.done.clear()
    site.passes(600)
    assert site.done == []


def test_of_those_that_stand_idle_the_longest_are_stopped() -> None:
    site = Site()
    site.joins(idle("a", 900.0), idle("b", 980.0), idle("c", 910.0), idle("d", 990.0))
    site.passes(299)
    assert site.done == []
    site.passes(10)
    assert [(one.name, one.arguments["machine"]) for one in site.done] == [
        ("machine.remove", "c"),
        ("machine.remove", "a"),
    ]
    assert all(one.arguments["idle"] for one in site.done)
    assert not any("force" in one.arguments for one in site.done)


def test_what_managers_issue_for_requests_is_not_for_triggers_to_send() -> None:
    source = Source("triggers.yaml", Level.SITE, 0, "/", "triggers.yaml")
    text = b"wrong: { when: len(hosts) > 0, do: \"send(hosts, 'request.run', number=1)\" }"
    with pytest.raises(EncampError) as caught:
        read_triggers([(source, text)], Site().core.picture.world.schema, COMMANDS)
    assert "request.run" in caught.value.detail
