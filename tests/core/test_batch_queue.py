"""What waits in a batch system's queue is a fact of environments, as far as somebody looks."""

from __future__ import annotations

from typing import Any

import pytest

from encamp.core.batch_queue import understood
from encamp.core.expressions import compile_expression
from encamp.core.happenings import EnvironmentsRead, Gone, Happening, Joined, Reported
from encamp.core.step import Core
from encamp.core.world import Unknown
from encamp.describe.property_files import batch_properties, shipped_properties
from encamp.model.host import Presence
from encamp.model.property import Reading, Value

QUEUE = next(one for one in batch_properties() if one.name == "batch_waiting")


class Site:
    def __init__(self) -> None:
        self.core = Core((*shipped_properties(), *batch_properties()), {})
        environments: dict[str, dict[str, Value]] = {
            name: {"name": name, "cpus": 1, "memory": 1} for name in ("sl7", "debian12")
        }
        self.happens(EnvironmentsRead(environments))

    def happens(self, happening: Happening) -> None:
        self.core.step(happening, 1000.0)

    def joins(self, name: str, **waiting: tuple[int, float]) -> None:
        self.happens(
            Joined(
                name=name,
                instance=name,
                version="1",
                clock_offset=0.0,
                properties=(QUEUE,),
                readings={"batch_waiting": Reading(queue(**waiting), at=1.0)},
            )
        )

    def reports(self, name: str, **waiting: tuple[int, float]) -> None:
        self.happens(Reported(name, {"batch_waiting": Reading(queue(**waiting), at=2.0)}, None))

    def facts(self, environment: str) -> tuple[Any, Any]:
        thing = self.core.picture.world.things["environment"][environment]
        return thing.fact("batch_waiting"), thing.fact("batch_waiting_since")


def queue(**waiting: tuple[int, float]) -> Value:
    return {
        name: {"jobs": jobs, "cpus": jobs, "oldest": oldest, "owner": f"user{oldest:.0f}"}
        for name, (jobs, oldest) in waiting.items()
    }


def test_without_anybody_who_looks_it_is_not_known() -> None:
    jobs, since = Site().facts("sl7")
    assert isinstance(jobs, Unknown)
    assert isinstance(since, Unknown)
    assert "no host looks" in jobs.reason


def test_what_waits_is_counted_and_none_is_none() -> None:
    site = Site()
    site.joins("node1", sl7=(3, 900.0))
    assert site.facts("sl7") == (3, 900.0)
    jobs, since = site.facts("debian12")
    assert jobs == 0
    assert isinstance(since, Unknown)
    site.reports("node1", debian12=(1, 950.0))
    assert site.facts("sl7")[0] == 0
    assert site.facts("debian12") == (1, 950.0)


def test_of_two_who_look_the_longer_queue_counts() -> None:
    site = Site()
    site.joins("node1", sl7=(3, 900.0))
    site.joins("node2", sl7=(5, 910.0))
    assert site.facts("sl7") == (5, 900.0)
    thing = site.core.picture.world.things["environment"]["sl7"]
    assert thing.fact("batch_waiting_owner") == "user900"
    site.happens(Gone("node2", Presence.LOST, "nothing was heard"))
    assert site.facts("sl7") == (3, 900.0)
    site.happens(Gone("node1", Presence.LEFT, "it was stopped"))
    assert isinstance(site.facts("sl7")[0], Unknown)


def test_a_look_that_fails_is_no_empty_queue() -> None:
    site = Site()
    site.joins("node1", sl7=(3, 900.0))
    site.happens(Reported("node1", {"batch_waiting": Reading(None, "squeue failed", 2.0)}, None))
    assert isinstance(site.facts("sl7")[0], Unknown)


def test_environments_that_are_described_later_have_it_too() -> None:
    site = Site()
    site.joins("node1", sl9=(2, 900.0))
    site.happens(EnvironmentsRead({"sl9": {"name": "sl9", "cpus": 1, "memory": 1}}))
    assert site.facts("sl9") == (2, 900.0)


@pytest.mark.parametrize(
    "said",
    [
        None,
        3,
        ["sl7"],
        {"sl7": 3},
        {"sl7": {"jobs": "3", "oldest": 1.0}},
        {"sl7": {"jobs": True, "oldest": 1.0}},
        {"sl7": {"jobs": -3, "oldest": 1.0}},
        {"sl7": {"jobs": 3}},
    ],
)
def test_nonsense_is_nothing(said: Any) -> None:
    assert understood(said) == {}


def test_expressions_can_speak_of_it() -> None:
    schema = Site().core.picture.world.schema
    compile_expression("environment.batch_waiting > 0 and environment.idle == 0", schema)
    compile_expression("now - environment.batch_waiting_since > 600", schema)
    compile_expression("environment.batch_waiting_owner == 'alice'", schema)
    compile_expression("host.bait == 'full' and host.batch_jobs == 0", schema)
    compile_expression("host.batch_waiting['sl7']['jobs'] > 3", schema)
