"""What hold, once, every, cooldown, ticks and on_update_check mean, in virtual time."""

from __future__ import annotations

import msgspec
import pytest

from encamp.core.actions import Judgement, Notify
from encamp.core.world import Unknown
from tests.core.triggers.small_site import SmallSite, parse


def hot(*options: str) -> SmallSite:
    """A trigger that is true above a load of 8, on a site whose host has none."""
    site = SmallSite(
        "hot:\n  when: host.load1 > 8\n  do: log(host.name)\n"
        + "".join(f"  {option}\n" for option in options)
    )
    site.set(load1=0.0)
    return site


def test_fires_when_it_becomes_true_and_once_by_default() -> None:
    site = hot()
    assert site.set(load1=9.0)
    assert not site.set(load1=10.0)
    assert not site.wait(3600)
    assert not site.set(load1=1.0)
    assert site.set(load1=9.0)


@pytest.mark.parametrize(
    "expression",
    [
        "host.load1 > 8",
        "8 < host.load1",
        "9 <= host.load1",
        "host.load1 >= 9",
        "not 8 >= host.load1",
        "host.load1 == 9",
        "host.kernel == '6.1'",
        "host.kernel != '6.2' and host.load1 > 1 + 1",
        "host.load1 > host.cpus",
        "host.load1 > 8 and len(hosts) > 1",
        "host.load1 > mean(h.load1 for h in hosts)",
    ],
)
def test_fires_for_what_is_true_when_it_is_loaded(expression: str) -> None:
    site = SmallSite()
    site.set("node1", load1=9.0, cpus=4, kernel="6.1")
    site.set("node2", load1=1.0, cpus=4, kernel="6.2")
    site.load(f'hot: {{when: "{expression}", do: log(host.name)}}')
    site.step()
    assert site.texts() == ["node1"]


def test_much_that_is_to_be_looked_at_is_looked_at_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("encamp.core.triggers.scanning.SLICE", 7)
    site = SmallSite()
    for number in range(30):
        site.host(f"node{number}", load1=9.0)
    site.load(
        "hot: {when: host.load1 > 8, do: log(host.name)}\n"
        "many: {when: len(hosts) > 3, do: log('many')}"
    )
    first = site.engine.step(site.world.take_changes(), site.now)
    assert sum(isinstance(action, Notify) for action in first) == 7
    assert site.engine.next_look() == 0.0
    site.step()
    assert len(site.texts()) == 30 - 7 + 1
    assert site.engine.next_look() is None


def test_subjects_do_not_disturb_each_other() -> None:
    site = hot()
    site.set("node1", load1=9.0)
    site.set("node2", load1=9.0)
    site.set("node1", load1=1.0)
    site.set("node2", load1=10.0)
    site.set("node1", load1=9.0)
    assert site.texts() == ["node1", "node2", "node1"]


def test_without_once_it_fires_at_every_change_of_what_it_reads() -> None:
    site = hot("once: no")
    site.set(load1=9.0)
    site.set(load1=10.0)
    site.set(memory_free=5)
    site.set(load1=1.0)
    site.set(load1=9.0)
    assert len(site.done) == 3


def test_hold_waits_until_it_was_true_for_so_long() -> None:
    site = hot("hold: 30s")
    assert not site.set(load1=9.0)
    assert not site.wait(29)
    assert site.wait(1)
    assert not site.wait(3600)
    assert site.times() == [30.0]


def test_hold_begins_anew_when_it_was_false_in_between() -> None:
    site = hot("hold: 30s")
    site.set(load1=9.0)
    site.wait(20)
    site.set(load1=1.0)
    site.set(load1=9.0)
    site.wait(29)
    assert site.times() == []
    site.wait(1)
    assert site.times() == [50.0]


def test_hold_goes_on_while_values_change_and_it_stays_true() -> None:
    site = hot("hold: 30s")
    for load in (9.0, 10.0, 11.0):
        site.set(load1=load)
        site.wait(10)
    assert site.times() == [30.0]


def test_every_fires_again_while_it_is_true() -> None:
    site = hot("every: 1m")
    site.set(load1=9.0)
    site.wait(30)
    site.set(load1=10.0)
    site.wait(150)
    site.set(load1=1.0)
    site.wait(600)
    assert site.times() == [0.0, 60.0, 120.0, 180.0]


def test_every_begins_anew_when_it_becomes_true_again() -> None:
    site = hot("every: 1m")
    site.set(load1=9.0)
    site.wait(10)
    site.set(load1=1.0)
    site.wait(10)
    site.set(load1=9.0)
    site.wait(70)
    assert site.times() == [0.0, 20.0, 80.0]


def test_cooldown_silences_each_subject_for_so_long() -> None:
    site = hot("cooldown: 5m")
    site.set("node1", load1=9.0)
    site.set("node1", load1=1.0)
    assert site.wait(299) == []
    site.wait(1)
    site.set("node1", load1=9.0)
    site.set("node2", load1=9.0)
    assert site.texts() == ["node1", "node1", "node2"]


def test_what_a_cooldown_kept_back_follows_if_it_is_still_true() -> None:
    site = hot("cooldown: 5m")
    site.set(load1=9.0)
    site.wait(60)
    site.set(load1=1.0)
    site.wait(60)
    site.set(load1=9.0)
    site.wait(1000)
    assert site.times() == [0.0, 300.0]


def test_what_a_cooldown_kept_back_is_dropped_if_it_is_false_by_then() -> None:
    site = hot("cooldown: 5m")
    site.set(load1=9.0)
    site.set(load1=1.0)
    site.wait(60)
    site.set(load1=9.0)
    site.wait(60)
    site.set(load1=1.0)
    site.wait(1000)
    assert site.times() == [0.0]


def test_cooldown_without_once_keeps_a_rhythm_only_as_long_as_there_is_news() -> None:
    site = hot("once: no", "cooldown: 60s")
    site.set(load1=9.0)
    site.wait(10)
    site.set(load1=10.0)
    site.wait(1000)
    assert site.times() == [0.0, 60.0]


def test_every_and_cooldown_the_longer_counts() -> None:
    site = hot("every: 1m", "cooldown: 90s")
    site.set(load1=9.0)
    site.wait(200)
    assert site.times() == [0.0, 90.0, 180.0]


def test_hold_and_every_and_once_true_it_repeats() -> None:
    site = hot("hold: 30s", "every: 1m")
    site.set(load1=9.0)
    site.wait(200)
    assert site.times() == [30.0, 90.0, 150.0]


def test_ticks_fire_at_every_look_that_is_true_and_at_no_other_time() -> None:
    site = hot("ticks: 30")
    site.wait(10)
    site.set(load1=9.0)
    site.wait(75)
    site.set(load1=1.0)
    site.wait(600)
    assert site.times() == [30.0, 60.0]


def test_ticks_with_once_fire_at_the_first_look_that_is_true() -> None:
    site = hot("ticks: 30", "once: yes")
    site.set(load1=9.0)
    site.wait(100)
    site.set(load1=1.0)
    site.wait(5)
    site.set(load1=9.0)
    site.wait(100)
    # It was false in between, but nobody looked.
    assert site.times() == [30.0]
    site.set(load1=1.0)
    site.wait(30)
    site.set(load1=9.0)
    site.wait(30)
    assert len(site.done) == 2


def test_ticks_with_updates_fire_at_both() -> None:
    site = hot("ticks: 30", "on_update_check: yes")
    site.set(load1=9.0)
    site.wait(40)
    site.set(load1=10.0)
    site.wait(25)
    assert site.times() == [0.0, 30.0, 40.0, 60.0]


def test_ticks_with_hold_count_from_the_first_look() -> None:
    site = hot("ticks: 30", "hold: 45s", "once: yes")
    site.set(load1=9.0)
    site.wait(300)
    assert site.times() == [90.0]


def test_ticks_that_come_late_keep_their_rhythm_and_are_not_made_up_for() -> None:
    site = hot("ticks: 30")
    site.set(load1=9.0)
    site.now += 100.0
    assert len(site.step()) == 1
    site.wait(25)
    assert site.times() == [100.0, 120.0]


def test_ticks_and_cooldown_of_the_same_length_do_not_miss_a_tick_for_being_late() -> None:
    site = hot("ticks: 30", "cooldown: 30s")
    site.set(load1=9.0)
    for late in (0.4, 0.1, 0.3, 0.0):
        site.now = 1_000_000.0 + 30 * (len(site.done) + 1) + late
        site.step()
    assert len(site.done) == 4


def test_an_expression_about_the_time_is_looked_at_every_minute() -> None:
    site = SmallSite("lost: {when: now - host.since > 300, do: log(host.name)}")
    site.set(since=site.now)
    site.wait(1000)
    assert site.times() == [360.0]


def test_without_updates_and_ticks_it_is_looked_at_every_minute() -> None:
    site = hot("on_update_check: no")
    site.set(load1=9.0)
    site.wait(200)
    assert site.times() == [60.0]


def test_changed_fires_at_every_change() -> None:
    site = SmallSite("kernel: {when: changed(host.kernel), do: log(host.kernel)}")
    site.set(kernel="6.1")
    site.done.clear()
    site.set(kernel="6.2")
    site.set(load1=1.0)
    site.wait(600)
    site.set(kernel="6.3")
    assert site.texts() == ["6.2", "6.3"]


def test_changed_with_a_cooldown_drops_what_happens_in_it() -> None:
    site = SmallSite("kernel: {when: changed(host.kernel), do: log(host.kernel), cooldown: 1m}")
    site.set(kernel="6.1")
    site.wait(100)
    site.done.clear()
    for kernel in ("6.2", "6.3"):
        site.set(kernel=kernel)
    site.wait(600)
    site.set(kernel="6.4")
    assert site.texts() == ["6.2", "6.4"]


def test_unknown_ends_hold() -> None:
    site = hot("hold: 30s")
    site.set(load1=9.0)
    site.wait(20)
    site.set(load1=Unknown("its plug-in failed"))
    site.set(load1=9.0)
    site.wait(29)
    assert site.times() == []
    site.wait(1)
    assert site.times() == [50.0]


def test_what_a_cooldown_kept_back_is_dropped_if_it_was_unknown_in_between() -> None:
    site = hot("once: no", "cooldown: 20s", "hold: 15s")
    site.set(load1=9.0)
    site.wait(15)
    site.set(load1=10.0)
    site.set(load1=Unknown("its plug-in failed"))
    site.wait(10)
    site.set(load1=11.0)
    site.wait(100)
    assert site.times() == [15.0]


def test_unknown_does_not_end_once() -> None:
    site = hot()
    site.set(load1=9.0)
    site.set(load1=Unknown("its plug-in failed"))
    site.set(load1=9.0)
    assert site.times() == [0.0]
    assert Judgement.UNKNOWN in site.judgements()


def test_a_subject_that_is_gone_is_forgotten() -> None:
    site = hot()
    site.set(load1=9.0)
    site.world.drop("host", "node1")
    site.step()
    assert site.engine.views()[0].true_for == ()
    site.set(load1=9.0)
    assert site.texts() == ["node1", "node1"]


@pytest.mark.parametrize("many", [0, 5000])
def test_a_subject_that_is_gone_is_forgotten_though_no_tick_saw_it(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encamp.core.triggers.engine.MANY", many)
    site = hot("ticks: 10", "once: yes")
    site.set(load1=9.0)
    site.wait(12)
    site.world.drop("host", "node1")
    site.step()
    site.set(load1=9.0)
    site.wait(10)
    assert site.times() == [10.0, 20.0]


def test_a_trigger_that_is_not_enabled_is_checked_and_not_looked_at() -> None:
    site = hot("enabled: no")
    site.set(load1=9.0)
    site.wait(100)
    assert site.done == []
    (view,) = site.engine.views()
    assert view.options["enabled"] is False


@pytest.mark.parametrize("count", [1, 7])
def test_nothing_is_remembered_of_what_is_not_true(count: int) -> None:
    site = hot("hold: 10s", "cooldown: 1m")
    for number in range(count):
        site.set(f"node{number}", load1=9.0)
    site.wait(20)
    for number in range(count):
        site.set(f"node{number}", load1=1.0)
    assert len(site.engine.triggers["hot"].standings) == count
    site.wait(120)
    assert site.engine.triggers["hot"].standings == {}
    assert site.engine.next_look() is None


def test_hold_ends_on_time_whatever_the_clock_says() -> None:
    """Times of today have so many digits that sums and differences of them disagree."""
    for number in range(300):
        hold = (0.1, 0.3, 1.1, 2.7)[number % 4]
        site = hot(f"hold: {hold}s")
        site.now = 1.7e9 + number * 3.3333333
        site.set(load1=9.0)
        assert len(site.wait(5)) == 1, (hold, site.now)


def test_a_clock_that_is_set_back_a_little_loses_nothing() -> None:
    site = hot("once: no")
    site.now += 10
    assert site.set(load1=9.0)
    site.now -= 0.5
    assert site.set(load1=10.0)
    assert site.judgements() == [Judgement.FIRED, Judgement.FIRED]


def test_ticks_shorter_than_the_clock_can_tell_do_not_last_for_ever() -> None:
    (definition,) = parse("t: {when: len(hosts) >= 0, do: log('x'), ticks: 5}")
    site = SmallSite()
    site.now = 1.7e9
    site.engine.load([definition], {}, site.now)
    trigger = site.engine.triggers["t"]
    trigger.timing = msgspec.structs.replace(trigger.timing, ticks=1e-9)
    site.now += 6
    assert len(site.step()) == 1


def test_what_went_and_came_again_at_once_is_something_new() -> None:
    site = hot()
    assert site.set(load1=9.0)
    site.world.drop("host", "node1")
    assert site.set(load1=9.0)


def test_looks_that_cannot_be_made_in_time_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("encamp.core.triggers.scanning.SLICE", 10)
    site = SmallSite(
        "".join(
            f"t{number}: {{when: now - host.since > {number}000, do: log('{number}'), ticks: 1}}\n"
            for number in range(1, 6)
        )
    )
    for number in range(50):
        site.host(f"node{number}", since=site.now)
    for _ in range(100):
        site.now += 1
        site.engine.step(site.world.take_changes(), site.now)
        # One that has begun, and one that waits, for each; and those of what has just joined.
        assert len(site.engine._scans) <= 15
    site.now += 1500
    site.step()
    assert site.texts().count("1") == 50
