"""The triggers that are shipped for sites beside a batch system, with a clock that is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encamp.agent.commands.offers import plugins
from encamp.core.actions import Notify, PlaceMachines
from encamp.core.happenings import EnvironmentsRead, Happening, Joined, Reported, TimePassed
from encamp.core.step import Core
from encamp.describe.property_files import batch_properties, shipped_properties
from encamp.describe.sources import Level, Source
from encamp.describe.trigger_files import read_triggers
from encamp.model.property import Reading, Value
from encamp.model.size import MIB

FILE = Path(__file__).parents[3] / "examples" / "triggers" / "batch.yaml"
COMMANDS = {name: offer.definition for name, offer in plugins(ours_only=True)[0].items()}
PROPERTIES = (*shipped_properties(), *batch_properties())


class Site:
    """One host that has a bait and looks at the queue, and two environments."""

    def __init__(self) -> None:
        self.core = Core(PROPERTIES, COMMANDS)
        self.now = 1000.0
        self.done: list[Any] = []
        facts: dict[str, Value] = {"cpus": 1, "memory": 128 * MIB, "classes": [], "reuse": True}
        self.happens(
            EnvironmentsRead(
                {
                    "again": {"name": "again", **facts},
                    "once": {"name": "once", **facts, "reuse": False},
                }
            )
        )
        self.happens(
            Joined(
                name="node1",
                instance="1",
                version="1",
                clock_offset=0.0,
                commands=tuple(COMMANDS.values()),
                properties=PROPERTIES,
            )
        )
        source = Source(str(FILE), Level.SITE, 0, str(FILE.parent), str(FILE))
        schema = self.core.picture.world.schema
        triggers = read_triggers([(source, FILE.read_bytes())], schema, COMMANDS)
        self.core.load(triggers, self.now)

    def reads(self, **values: Value) -> None:
        readings = {name: Reading(value, at=self.now) for name, value in values.items()}
        self.happens(Reported("node1", readings))

    def waits(self, environment: str, owner: str = "alice") -> None:
        line: Value = {"jobs": 3, "cpus": 3, "oldest": self.now, "owner": owner}
        self.reads(batch_waiting={environment: line})

    def happens(self, happening: Happening) -> None:
        actions = self.core.step(happening, self.now).actions
        self.done += [one for one in actions if isinstance(one, PlaceMachines | Notify)]

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.core.next_look()) is not None and due <= end:
            self.now = max(self.now, due) + 0.001
            self.happens(TimePassed())
        self.now = end
        self.happens(TimePassed())


def test_a_machine_is_made_ready_for_whoever_has_waited_in_the_queue() -> None:
    site = Site()
    site.waits("again")
    site.passes(25)
    assert site.done == []
    site.passes(20)
    assert site.done == [PlaceMachines("again", 1, "alice", "ready_for_waiting", batch=True)]
    site.passes(30)
    assert len(site.done) == 1


def test_nothing_is_made_ready_where_no_second_job_could_use_it_or_none_waits() -> None:
    site = Site()
    site.waits("once")
    site.passes(300)
    site.reads(batch_waiting={})
    site.passes(300)
    assert site.done == []


def test_a_bait_that_is_closed_for_long_is_told_and_told_again() -> None:
    site = Site()
    site.reads(bait="full", bait_reason="200 MiB of memory free, 512 MiB wanted")
    site.passes(3500)
    assert site.done == []
    site.passes(200)
    (told,) = site.done
    assert "node1" in told.text
    assert "200 MiB of memory free" in told.text
    site.passes(6 * 3600)
    assert len(site.done) == 2


def test_a_bait_that_opens_in_time_or_was_closed_by_somebody_is_not_told() -> None:
    site = Site()
    for _ in range(5):
        site.reads(bait="full", bait_reason="no room")
        site.passes(3000)
        site.reads(bait="open", bait_reason="")
        site.passes(600)
    site.reads(bait="closed", bait_reason="a fan is broken")
    site.passes(20_000)
    assert site.done == []
