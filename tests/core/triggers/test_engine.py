"""Loading, remembering, telling and testing."""

from __future__ import annotations

import msgspec
import pytest

from encamp.core.actions import Judgement
from encamp.core.triggers import OneTrigger, TriggerMemory
from encamp.core.triggers.journal import BURST
from encamp.core.world import Unknown
from encamp.model.errors import EncampError
from tests.core.triggers.small_site import SmallSite, parse

HOT = "hot: {when: host.load1 > 8, do: log(host.name)}\n"
HOLDING = "hold: {when: host.load1 > 8, do: log('held'), hold: 30s}\n"
FLAPPING = "f: {when: host.load1 > 8, do: log('x')}\n"


def test_a_set_with_mistakes_is_refused_and_the_former_goes_on() -> None:
    site = SmallSite(HOT)
    with pytest.raises(EncampError):
        site.load("a: {when: host.nonsense > 1, do: log('x')}")
    (good,) = parse(HOT)
    wrong = msgspec.structs.replace(
        good, name="b", when=msgspec.structs.replace(good.when, text="?")
    )
    with pytest.raises(EncampError) as caught:
        site.engine.load([good, wrong], {}, site.now)
    assert "triggers.yaml:1:" in caught.value.detail
    site.set(load1=9.0)
    assert site.texts() == ["node1"]


def test_reloading_keeps_what_unchanged_triggers_remember() -> None:
    site = SmallSite(HOT + HOLDING)
    site.set(load1=9.0)
    site.wait(20)
    site.load("# moved down\n\n" + HOT + "new: {when: host.load1 > 8, do: log('new')}\n" + HOLDING)
    site.step()
    site.wait(60)
    assert site.texts() == ["node1", "new", "held"]
    assert site.times() == [0.0, 20.0, 30.0]
    assert {view.name: view.fired for view in site.engine.views()} == {
        "hot": 1,
        "new": 1,
        "hold": 1,
    }


def test_a_trigger_that_was_changed_begins_anew() -> None:
    site = SmallSite(HOT)
    site.set(load1=9.0)
    site.load(HOT.replace("> 8", "> 7"))
    site.step()
    assert site.texts() == ["node1", "node1"]


def test_ticks_keep_their_rhythm_over_a_reload() -> None:
    ticking = "t: {when: len(hosts) >= 0, do: log('x'), ticks: 30}\n"
    site = SmallSite(ticking)
    site.wait(20)
    site.load(ticking + HOT)
    site.wait(20)
    assert site.times() == [30.0]


def test_what_happened_before_a_reload_is_judged_by_the_set_of_then() -> None:
    site = SmallSite("k: {when: changed(host.kernel), do: log(host.kernel)}")
    site.set(kernel="6.1")
    site.host(kernel="6.2")
    site.load(HOT)
    site.step()
    assert site.texts()[-1] == "6.2"


def restarted(site: SmallSite, triggers: str) -> SmallSite:
    """The same triggers in another manager; hosts have not introduced themselves yet."""
    written = msgspec.msgpack.encode(site.engine.memory())
    other = SmallSite(triggers)
    other.now = site.now
    other.engine.restore(msgspec.msgpack.decode(written, type=TriggerMemory), other.now)
    other.step()
    return other


def test_once_and_cooldown_and_counts_survive_a_restart() -> None:
    triggers = HOT + "cool: {when: host.load1 > 8, do: log('cool'), cooldown: 5m, once: no}\n"
    site = SmallSite(triggers)
    site.set(load1=9.0)
    other = restarted(site, triggers)
    other.now += 60
    other.set(load1=9.0)
    assert other.texts() == []
    other.wait(240)
    assert other.texts() == ["cool"]
    assert {view.name: view.fired for view in other.engine.views()} == {"hot": 1, "cool": 2}


def test_it_is_known_whether_there_is_something_new_to_write_down() -> None:
    site = SmallSite(HOT)
    found = []
    for load in (1.0, 9.0, 9.5, 1.0, 1.5):
        site.engine.memory()
        site.set(load1=load)
        found.append(site.engine.memory_changed)
    assert found == [False, True, False, True, False]


def test_ticks_survive_a_restart() -> None:
    daily = "t: {when: len(hosts) >= 0, do: log('x'), ticks: 1d}\n"
    site = SmallSite(daily)
    site.wait(43200)
    other = restarted(site, daily)
    other.wait(43200)
    assert other.texts() == ["x"]


def test_a_stop_survives_a_restart() -> None:
    site = SmallSite(HOT)
    site.engine.triggers["hot"].stopped = "It went in circles."
    assert restarted(site, HOT).engine.views()[0].stopped == "It went in circles."


def test_once_survives_a_restart_though_the_host_is_not_there_at_the_first_tick() -> None:
    triggers = "t: {when: host.load1 > 8, do: log('x'), ticks: 10, once: yes}\n"
    site = SmallSite(triggers)
    site.set(load1=9.0)
    site.wait(10)
    other = restarted(site, triggers)
    other.wait(30)
    other.set(load1=9.0)
    other.wait(30)
    assert (site.texts(), other.texts()) == (["x"], [])


def test_what_has_become_false_while_no_manager_ran_is_noticed() -> None:
    site = SmallSite(HOT)
    site.set(load1=9.0)
    written = site.engine.memory()
    other = SmallSite()
    other.host(load1=1.0)
    other.load(HOT)
    other.engine.restore(written, other.now)
    other.step()
    assert other.set(load1=9.0)


@pytest.mark.parametrize("options", ["ticks: 10", "every: 10s", "hold: 10s", "cooldown: 10s"])
def test_a_clock_that_is_set_back_stops_nothing(options: str) -> None:
    site = SmallSite(f"t: {{when: host.load1 > 8, do: log('x'), {options}}}")
    site.set(load1=9.0)
    site.set(load1=1.0)
    site.set(load1=9.0)
    site.now -= 3600
    site.step()
    site.done.clear()
    site.wait(12)
    assert len(site.done) == 1


def test_subjects_that_never_come_back_are_forgotten() -> None:
    site = SmallSite(HOT)
    site.set(load1=9.0)
    other = restarted(site, HOT)
    assert other.engine.triggers["hot"].standings
    other.wait(4000)
    assert not other.engine.triggers["hot"].standings


def test_views_tell_what_is_in_effect() -> None:
    site = SmallSite(HOT)
    site.set(load1=9.0)
    (view,) = site.engine.views()
    assert view.expression == "host.load1 > 8"
    assert view.commands == ("log(host.name)",)
    assert view.place == "triggers.yaml:1"
    assert view.about == "host"
    assert view.options["once"] is True
    assert view.options["on_update_check"] is True
    assert (view.fired, view.last_fired, view.true_for) == (1, site.now, ("node1",))


def test_testing_tells_what_would_be_done_and_does_nothing() -> None:
    site = SmallSite(HOT)
    site.host("node1", load1=9.0)
    site.host("node2", load1=1.0)
    site.host("node3", load1=Unknown("no such file"))
    (new,) = parse("new: {when: host.load1 > 0.5, do: log(host.name)}")
    for _ in range(2):
        found = site.engine.test("hot", site.now)
        assert [(entry.subject, entry.judgement) for entry in found] == [
            ("node1", Judgement.FIRED),
            ("node2", Judgement.FALSE),
            ("node3", Judgement.UNKNOWN),
        ]
        assert found[0].actions == ("log: node1",)
        assert found[1].seen == {"host.load1": 1.0}
        assert "no such file" in found[2].reason
        assert [entry.judgement for entry in site.engine.test(new, site.now)][:2] == [
            Judgement.FIRED,
            Judgement.FIRED,
        ]
    site.step()
    assert site.texts() == ["node1"]
    assert site.engine.test("hot", site.now)[0].judgement is Judgement.ONCE
    with pytest.raises(EncampError, match="no trigger 'cold'"):
        site.engine.test("cold", site.now)


def test_the_log_tells_why_it_did_not_fire_and_repeats_nothing() -> None:
    site = SmallSite("t: {when: host.load1 > 8, do: log('x'), hold: 10s, cooldown: 5m}")
    site.set(load1=1.0)
    site.set(load1=9.0)
    site.set(load1=9.5)
    site.wait(10)
    site.set(load1=10.0)
    site.set(load1=1.0)
    site.set(load1=2.0)
    site.set(load1=Unknown("no such file"))
    site.set(load1=Unknown("no such thing"))
    site.set(load1=9.0)
    site.wait(20)
    assert site.judgements() == [
        Judgement.HOLDING,
        Judgement.FIRED,
        Judgement.FALSE,
        Judgement.UNKNOWN,
        Judgement.HOLDING,
        Judgement.COOLING,
    ]
    assert "10 s to go" in site.told[0].reason
    assert site.told[3].reason.endswith("no such file")


def test_a_trigger_that_flaps_does_not_flood_the_log() -> None:
    site = SmallSite(FLAPPING)
    for _ in range(1000):
        site.set(load1=9.0)
        site.set(load1=1.0)
    assert len(site.done) == 1000
    assert len(site.told) <= sum(BURST.values())
    site.wait(100)
    site.set(load1=9.0)
    assert "entries before this were left out" in site.told[-1].reason


def test_many_hosts_that_do_not_know_do_not_flood_the_log() -> None:
    site = SmallSite(FLAPPING)
    for number in range(500):
        site.host(f"node{number}", load1=Unknown("no such file"))
    site.step()
    assert len(site.told) <= BURST[False]


COOL = "cool: {when: host.load1 > 5, do: log(host.name), cooldown: 1d}\n"
OTHER = "other: {when: len(machines) > 3, do: log('many')}\n"


def test_only_what_has_changed_is_written_down() -> None:
    site = SmallSite(COOL + OTHER)
    assert site.engine.memory_changes() == {"cool": None, "other": None}
    site.set(load1=9.0)
    changes = site.engine.memory_changes()
    assert list(changes) == ["cool"]
    assert changes["cool"] is not None
    assert list(changes["cool"].subjects) == ["node1"]
    assert site.engine.memory_changes() == {}
    site.engine.write_again(changes)
    assert site.engine.memory_changes() == changes
    site.load(OTHER)
    assert site.engine.memory_changes() == {"cool": None}


def test_parts_that_were_written_one_by_one_make_a_whole() -> None:
    site = SmallSite(COOL + OTHER)
    kept: dict[str, OneTrigger] = {}
    for name in ("node1", "node2"):
        site.set(name, load1=9.0)
        changes = site.engine.memory_changes()
        kept |= {trigger: part for trigger, part in changes.items() if part is not None}
    assert TriggerMemory(triggers=tuple(kept.values())) == site.engine.memory()
    again = SmallSite(COOL + OTHER)
    again.engine.restore(TriggerMemory(triggers=tuple(kept.values())), again.now)
    again.host("node1", load1=9.0)
    assert again.set("node2", load1=9.0) == []


def test_what_is_remembered_waits_until_its_trigger_can_be_loaded() -> None:
    ping = "t: {when: host.load1 > 5, do: \"send(host, 'agent.ping')\", cooldown: 1d}\n"
    site = SmallSite(ping)
    site.set(load1=9.0)
    again = SmallSite()
    with pytest.raises(EncampError):
        again.load(ping, commands={})
    again.engine.restore(site.engine.memory(), again.now)
    assert again.engine.memory() == site.engine.memory()
    again.set(load1=9.0)
    again.wait(7200)
    again.load(ping)
    assert again.step() == []
    assert again.wait(3600) == []
    assert again.engine.views()[0].fired == 1
    assert again.engine.memory_changes()["t"] is not None
