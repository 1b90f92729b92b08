"""What expressions can know of requests, of the demand for environments, and of hosts' room."""

from __future__ import annotations

from encamp.core.actions import Notify
from encamp.core.happenings import Submitted
from encamp.core.world import Unknown
from encamp.model.machine import State
from encamp.model.request import RequestState
from encamp.model.size import Size
from encamp.model.trigger import Passage, TriggerDefinition
from tests.core.placement.small_site import GIB, Site, machine, request


def facts(site: Site, kind: str, key: str) -> dict[str, object]:
    thing = site.core.picture.world.things[kind][key]
    return {name: thing.fact(name) for name in site.core.picture.world.schema.kinds[kind].facts}


def test_a_request_is_a_thing_until_it_is_over() -> None:
    site = Site()
    site.submit("r", priority=3)
    known = facts(site, "request", "r")
    assert (known["state"], known["cause"], known["priority"]) == ("waiting", "no hosts", 3)
    assert isinstance(known["host"], Unknown)
    site.join("a")
    site.answer()
    known = facts(site, "request", "r")
    assert (known["state"], known["cause"], known["host"]) == ("starting", "start", "a")
    site.run("r")
    site.finish("r")
    assert "r" not in site.core.picture.world.things["request"]


def test_the_room_of_a_host_is_known_while_it_is_there() -> None:
    site = Site()
    site.join("a", cpus=4, memory=8)
    assert facts(site, "host", "a")["room_cpus"] == 4
    site.place("r", size=Size(3, 2 * GIB))
    known = facts(site, "host", "a")
    assert (known["room_cpus"], known["room_memory"], known["machines_here"]) == (1, 6 * GIB, 1)
    site.lose("a")
    assert isinstance(facts(site, "host", "a")["room_cpus"], Unknown)
    site.join("a", cpus=4, memory=8)
    assert facts(site, "host", "a")["room_cpus"] == 1


def test_machines_that_are_asked_for_come_until_they_are_there() -> None:
    site = Site()
    site.knows("mini")
    site.submit("job")
    site.submit("r", job=None, count=2)

    def coming() -> object:
        return facts(site, "environment", "mini")["coming"]

    assert coming() == 2
    site.join("a")
    site.answer_all()
    site.run("r", 0)
    assert coming() == 2
    site.run("r", 1)
    assert coming() == 0
    site.submit("other", job=None, size=Size(1000, GIB))
    assert coming() == 1
    site.end("other")
    assert coming() == 0
    # One that is made ready for jobs to come is over when its host has told of it.
    site.submit("ready", job=None, reuse=True)
    site.answer_all()
    site.run("ready")
    assert coming() == 1
    site.finish("ready")
    assert coming() == 0


def test_the_demand_for_an_environment_is_known() -> None:
    site = Site()
    site.knows("mini")
    known = facts(site, "environment", "mini")
    assert (known["waiting"], known["running"], known["idle"]) == (0, 0, 0)
    assert isinstance(known["waiting_since"], Unknown)
    site.submit("r1")
    site.now += 5
    site.submit("r2")
    known = facts(site, "environment", "mini")
    assert (known["waiting"], known["waiting_since"]) == (2, site.now - 5)
    site.join("a")
    site.answer_all()
    site.run("r1", machine="m1")
    made = (machine("m1"), machine("m2"), machine("m3", state=State.STOPPED))
    site.machines("a", *made)
    known = facts(site, "environment", "mini")
    assert (known["waiting"], known["running"], known["idle"]) == (0, 2, 1)
    site.finish("r1")
    assert facts(site, "environment", "mini")["idle"] == 2
    site.machines("a")
    assert facts(site, "environment", "mini")["running"] == 0


def test_a_trigger_can_speak_of_what_waits() -> None:
    site = Site()
    site.knows("mini")
    trigger = TriggerDefinition(
        name="demand",
        when=Passage("environment.waiting > 0 and now - environment.waiting_since > 60"),
        do=(Passage("log(f'{environment.name} is wanted')"),),
        ticks=10.0,
    )
    site.core.load([trigger], site.now)
    site.submit("r")
    found: list[object] = []
    for _ in range(10):
        due = site.core.next_look()
        assert due is not None
        site.now = max(site.now, due)
        found += [
            action
            for action in site.core.step(Submitted(request("r")), site.now).actions
            if isinstance(action, Notify)
        ]
    assert site.state("r") is RequestState.WAITING
    assert found
