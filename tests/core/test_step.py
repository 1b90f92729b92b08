"""What happens to a site changes the manager's picture of it, and is worth telling."""

from __future__ import annotations

from typing import Any

import msgspec

from encamp.core.actions import Notify
from encamp.core.happenings import CommandMoved, Forgotten, Gone, Joined, Reported, TimePassed
from encamp.core.kinds import machine_key
from encamp.core.picture import MOST_BROUGHT, RECENT, Seen
from encamp.core.step import Core
from encamp.core.world import Unknown
from encamp.model.command import CommandDefinition, CommandRecord, CommandState, Parameter
from encamp.model.event import EventKind
from encamp.model.host import Presence
from encamp.model.machine import Machine, State
from encamp.model.property import PropertyDefinition, Reading, ValueKind
from encamp.model.size import Size
from encamp.model.trigger import Passage, TriggerDefinition

LOAD = PropertyDefinition(name="load1", command="load", return_type=ValueKind.FLOAT)


def joined(name: str = "node1", **more: Any) -> Joined:
    facts: dict[str, Any] = {
        "instance": "one",
        "version": "1",
        "clock_offset": 0.0,
        "properties": (LOAD,),
        "readings": {"load1": Reading(0.5, at=1.0)},
    }
    return Joined(name=name, **{**facts, **more})


def machine(machine_id: str = "m1", state: State = State.RUNNING) -> Machine:
    return Machine(
        id=machine_id,
        name="box",
        owner=0,
        host="ignored",
        environment="mini",
        image="digest",
        size=Size(1, 1 << 28),
        state=state,
        reason="",
        created=1.0,
        changed=1.0,
        command=("true",),
    )


def kinds(core: Core, happening: Any, now: float = 10.0) -> list[EventKind]:
    return [event.kind for event in core.step(happening, now).events]


def test_a_host_that_joins_is_known_with_everything_it_said() -> None:
    core = Core()
    assert kinds(core, joined(machines=(machine(),), groups=("workers",))) == [
        EventKind.HOST_JOINED,
        EventKind.MACHINE_APPEARED,
    ]
    host = core.picture.world.things["host"]["node1"]
    assert host.fact("load1") == 0.5
    assert host.fact("presence") == "joined"
    assert host.fact("groups") == ["workers"]
    assert "workers" in core.picture.world.schema.groups
    thing = core.picture.world.things["machine"][machine_key("node1", "m1")]
    assert thing.fact("host") == "node1"
    assert core.picture.world.things["job"][machine_key("node1", "m1")].fact("command") == "true"


def test_saying_hello_again_is_no_event_but_another_run_of_the_agent_is() -> None:
    core = Core()
    kinds(core, joined(), 10.0)
    assert kinds(core, joined(), 20.0) == []
    assert core.picture.hosts["node1"].record.since == 10.0
    assert kinds(core, joined(instance="two"), 30.0) == [EventKind.HOST_JOINED]
    assert core.picture.hosts["node1"].record.since == 30.0


def test_what_a_host_no_longer_reports_when_it_says_hello_is_forgotten() -> None:
    core = Core()
    kinds(core, joined())
    kinds(core, joined(readings={}))
    assert isinstance(core.picture.world.things["host"]["node1"].fact("load1"), Unknown)
    assert core.picture.hosts["node1"].readings == {}


def test_the_properties_of_a_lost_host_are_not_taken_for_true() -> None:
    core = Core()
    kinds(core, joined(machines=(machine(),)))
    assert kinds(core, Gone("node1", Presence.LOST, "it fell silent")) == [EventKind.HOST_LOST]
    host = core.picture.world.things["host"]["node1"]
    assert host.fact("presence") == "lost"
    assert isinstance(host.fact("load1"), Unknown)
    # People can still see what was known, and its machines may well be running.
    assert core.picture.hosts["node1"].whole().readings["load1"].value == 0.5
    assert core.picture.world.things["machine"]
    assert kinds(core, joined()) == [EventKind.HOST_JOINED, EventKind.MACHINE_GONE]
    assert host.fact("load1") == 0.5


def test_a_host_goes_once() -> None:
    core = Core()
    kinds(core, joined())
    assert kinds(core, Gone("node1", Presence.LEFT, "bye")) == [EventKind.HOST_LEFT]
    assert kinds(core, Gone("node1", Presence.LOST, "silent")) == []
    assert kinds(core, Gone("node2", Presence.LOST, "never seen")) == []


def test_a_property_that_fails_and_recovers_is_told_once_each() -> None:
    core = Core()
    kinds(core, joined())
    broken = Reported("node1", {"load1": Reading(error="no such file")})
    assert kinds(core, broken) == [EventKind.PROPERTY_FAILED]
    assert kinds(core, broken) == []
    assert kinds(core, Reported("node1", {"load1": Reading(1.0)})) == [EventKind.PROPERTY_RECOVERED]


def test_machines_come_change_and_go() -> None:
    core = Core()
    kinds(core, joined())
    told = [
        kinds(core, Reported("node1", {}, (machine(),))),
        kinds(core, Reported("node1", {}, (machine(),))),
        kinds(core, Reported("node1", {}, (machine(state=State.PAUSED),))),
        kinds(core, Reported("node1", {})),
        kinds(core, Reported("node1", {}, ())),
    ]
    assert told == [
        [EventKind.MACHINE_APPEARED],
        [],
        [EventKind.MACHINE_CHANGED],
        [],
        [EventKind.MACHINE_GONE],
    ]
    assert not core.picture.world.things["machine"]
    assert not core.picture.world.things["job"]


def test_one_host_cannot_take_anothers_machine_away() -> None:
    core = Core()
    kinds(core, joined("node1", machines=(machine(),)))
    kinds(core, joined("node2", machines=(machine(),)))
    kinds(core, Reported("node2", {}, ()))
    assert list(core.picture.world.things["machine"]) == [machine_key("node1", "m1")]


def test_a_clock_that_is_off_is_told() -> None:
    core = Core()
    events = core.step(joined(clock_offset=3600.0), 10.0).events
    assert EventKind.HOST_TROUBLE in [event.kind for event in events]
    assert any("3600 seconds ahead" in event.sentence for event in events)


def test_a_forgotten_host_takes_everything_with_it() -> None:
    core = Core()
    kinds(core, joined(machines=(machine(),)))
    kinds(core, Forgotten("node1"))
    assert not any(core.picture.world.things[kind] for kind in ("host", "machine", "job"))


def test_commands_that_are_over_are_seen_for_a_while() -> None:
    core = Core()
    record = CommandRecord(
        id="c1",
        host="node1",
        name="agent.ping",
        issuer="root",
        issued=10.0,
        changed=10.0,
        timeout=60.0,
    )
    assert kinds(core, CommandMoved(record), 10.0) == [EventKind.COMMAND_ISSUED]
    done = msgspec.structs.replace(record, state=CommandState.DONE, changed=11.0)
    assert kinds(core, CommandMoved(done), 11.0) == [EventKind.COMMAND_CHANGED]
    core.step(TimePassed(), 11.0 + RECENT - 1)
    assert core.picture.world.things["command"]["c1"].fact("state") == "done"
    core.step(TimePassed(), 11.0 + RECENT)
    assert not core.picture.world.things["command"]


def test_a_property_that_hosts_define_differently_is_of_any_type() -> None:
    core = Core()
    kinds(core, joined())
    other = PropertyDefinition(name="load1", command="x", return_type=ValueKind.STR)
    kinds(core, joined("node2", properties=(other,), readings={"load1": Reading("high")}))
    assert core.picture.world.schema.kinds["host"].facts["load1"].type.value == "any"


def test_triggers_are_not_looked_at_before_the_picture_is_whole() -> None:
    core = Core(settled=False)
    few = TriggerDefinition(
        name="few", when=Passage("len(manager.clients) == 0"), do=(Passage("log('few')"),)
    )
    core.load([few], 0.0)
    assert core.step(TimePassed(), 1.0).actions == []
    assert core.next_look() is None
    core.step(joined(), 2.0)
    core.settled = True
    assert not [a for a in core.step(TimePassed(), 3.0).actions if isinstance(a, Notify)]
    gone = core.step(Gone("node1", Presence.LOST, "silent"), 4.0).actions
    assert [action.text for action in gone if isinstance(action, Notify)] == ["few"]


def test_a_manager_that_starts_again_tells_only_what_happened_meanwhile() -> None:
    core = Core()
    core.picture.seen_before["node1"] = {
        "m1": Seen("box", State.RUNNING),
        "m2": Seen("box", State.RUNNING),
        "m3": Seen("old", State.RUNNING),
    }
    there = (machine("m1"), machine("m2", State.PAUSED), machine("m4"))
    assert kinds(core, joined(machines=there)) == [
        EventKind.HOST_JOINED,
        EventKind.MACHINE_CHANGED,
        EventKind.MACHINE_APPEARED,
        EventKind.MACHINE_GONE,
    ]


def test_no_host_speaks_for_the_manager() -> None:
    core = Core()
    names = ("name", "presence", "groups")
    definitions = tuple(PropertyDefinition(name=name, command="x") for name in names)
    readings = {name: Reading("forged") for name in names}
    kinds(core, joined(properties=definitions, readings=readings))
    host = core.picture.world.things["host"]["node1"]
    assert [host.fact(name) for name in names] == ["node1", "joined", []]


def test_one_host_cannot_say_for_all_what_a_command_is_like() -> None:
    shipped = CommandDefinition(name="machine.stop", parameters=(Parameter("machine"),))
    listed = CommandDefinition(name="program.note", parameters=(Parameter("line"),))
    core = Core(commands={"machine.stop": shipped})
    for name in ("node1", "node2"):
        kinds(core, joined(name, commands=(shipped, listed)))
    worse = Parameter("more")
    forged = tuple(msgspec.structs.replace(one, parameters=(worse,)) for one in (shipped, listed))
    kinds(core, joined("node3", commands=forged))
    assert core.commands() == {"machine.stop": shipped, "program.note": listed}


def test_what_one_host_makes_known_is_bounded() -> None:
    core = Core()
    for number in range(10):
        names = [f"p{number}_{more}" for more in range(MOST_BROUGHT)]
        definitions = tuple(PropertyDefinition(name=name, command="x") for name in names)
        kinds(core, joined(properties=definitions, groups=(f"group{number}",), readings={}))
    assert len(core.picture.definitions) + len(core.picture.groups) <= MOST_BROUGHT
    kinds(core, joined("node2", groups=("workers",)))
    assert "workers" in core.picture.world.schema.groups
