"""A trigger that fires on its own effect without end is stopped and named; others never are."""

from __future__ import annotations

from encamp.core.actions import IssueCommand, Judgement
from encamp.core.triggers.causes import EFFECT_LASTS, MOST_EFFECTS, MOST_PASSED
from tests.core.triggers.small_site import SmallSite

BREEDER = """
breeder:
  when: host.memory_free > 100
  do: start(host, 'mini')
  once: no
"""


def carry_out(site: SmallSite, most: int, seconds: float = 0.5) -> int:
    """Hosts do what they are told, and report: memory is taken. How often were they told?"""
    count = 0
    actions = site.set(load1=0.0, memory_free=1_000_000)
    while actions and count < most:
        for action in actions:
            assert isinstance(action, IssueCommand)
            count += 1
            site.now += seconds
            site.command(f"c{count}", "node1", action.issuer, "running", action.name)
            site.step()
            site.command(f"c{count}", "node1", action.issuer, "done", action.name)
        actions = site.set(memory_free=1_000_000 - count)
    return count


def test_one_that_feeds_itself_is_stopped_and_named() -> None:
    site = SmallSite(BREEDER)
    assert carry_out(site, 100) == 20
    assert site.judgements()[-1] is Judgement.STOPPED
    assert "breeder → breeder" in site.told[-1].reason
    (view,) = site.engine.views()
    assert view.stopped.startswith("Only for node1: It fired 20 times")
    assert view.stopped_for == ("node1",)
    assert not site.set(memory_free=500)


def test_it_may_be_told_how_often_is_fine() -> None:
    assert carry_out(SmallSite(BREEDER + "  repeats: 5\n"), 100) == 5
    assert carry_out(SmallSite(BREEDER + "  repeats: 0\n"), 100) == 100


def test_one_that_comes_to_an_end_by_itself_is_not_stopped() -> None:
    site = SmallSite(BREEDER.replace("100", "999_990"))
    assert carry_out(site, 100) == 10
    assert Judgement.STOPPED not in site.judgements()


def test_effects_that_are_seen_only_at_the_next_reading_count() -> None:
    site = SmallSite(BREEDER)
    actions = site.set(memory_free=1000)
    count = 0
    while actions and count < 100:
        count += 1
        site.command(f"c{count}", "node1", "trigger:breeder", "done", "machine.start")
        assert not site.step()
        site.wait(60)
        actions = site.set(memory_free=1000 - count)
    assert count == 20


def test_changes_long_after_a_command_are_no_effect_of_it() -> None:
    site = SmallSite(BREEDER)
    for count in range(100):
        assert site.set(memory_free=1000 - count)
        site.command(f"c{count}", "node1", "trigger:breeder", "done", "machine.start")
        site.step()
        site.wait(EFFECT_LASTS + 1)


def test_a_command_that_takes_long_has_its_effect_when_it_ends() -> None:
    site = SmallSite(BREEDER)
    count = 0
    while site.set(memory_free=1000 - count) and count < 100:
        count += 1
        site.command(f"c{count}", "node1", "trigger:breeder", "running", "machine.start")
        site.step()
        site.wait(1200)
        site.command(f"c{count}", "node1", "trigger:breeder", "done", "machine.start")
        site.step()
    assert count == 20


def test_two_that_feed_each_other_are_found_out() -> None:
    site = SmallSite(
        """
        full: {when: host.load1 > 5, do: "send(host, 'machine.stop', machine='a')"}
        idle: {when: host.load1 < 3, do: "send(host, 'machine.start', environment='mini')"}
        """
    )
    actions = site.set(load1=9.0)
    count = 0
    while actions and count < 200:
        (action,) = actions
        assert isinstance(action, IssueCommand)
        count += 1
        site.command(f"c{count}", "node1", action.issuer, "done", action.name)
        site.step()
        site.wait(1)
        actions = site.set(load1=1.0 if action.name == "machine.stop" else 9.0)
    assert count == 40
    stopped = [entry for entry in site.told if entry.judgement is Judgement.STOPPED]
    assert [entry.trigger for entry in stopped] == ["full"]
    assert "idle → full → idle → full" in stopped[0].reason


def test_feeding_itself_through_what_all_hosts_have_in_common_is_found_out_too() -> None:
    site = SmallSite(
        """
        t:
          when: host.load1 > mean(h.memory_free for h in hosts)
          do: send('node1', 'agent.ping')
        """
    )
    site.host("node2", load1=50.0)
    count = 0
    while site.set("node1", memory_free=10) and count < 100:
        count += 1
        site.command(f"c{count}", "node1", "trigger:t", "done", "agent.ping")
        site.step()
        site.wait(2)
        site.set("node1", memory_free=100)
        site.wait(2)
    assert count == 20


def test_asking_for_what_it_reads_is_its_own_effect_too() -> None:
    site = SmallSite("curious: {when: changed(host.load1), do: sender.send_get_property()}")
    count = 0
    site.set(load1=-1.0)
    while site.set(load1=float(count)) and count < 100:
        count += 1
        site.wait(1)
    assert count == 20


def test_one_that_waits_for_hold_before_it_feeds_itself_is_stopped_too() -> None:
    site = SmallSite("slow: {when: host.load1 > 5, do: \"send(host, 'agent.ping')\", hold: 10s}")
    count = 0
    site.set(load1=9.0)
    while site.wait(10) and count < 100:
        count += 1
        site.command(f"c{count}", "node1", "trigger:slow", "done", "agent.ping")
        site.set(load1=1.0)
        site.set(load1=9.0)
    assert count == 20


def test_periodic_ones_are_never_stopped() -> None:
    for options in (
        "ticks: 1",
        "every: 1s",
        "ticks: 1, on_update_check: no",
        "once: no, cooldown: 1s",
    ):
        site = SmallSite(
            f"periodic: {{when: host.load1 > 5, do: \"start(host, 'mini')\", {options}}}"
        )
        site.set(load1=9.0)
        for count in range(300):
            site.set(load1=9.0 + count)
            site.wait(1)
        assert len(site.done) >= 299, options
        assert Judgement.STOPPED not in site.judgements()


def test_hosts_do_not_count_for_each_other() -> None:
    site = SmallSite(BREEDER)
    for number in range(100):
        assert site.set(f"node{number}", memory_free=1000)
    assert Judgement.STOPPED not in site.judgements()


def test_what_a_trigger_only_tells_people_has_no_effect() -> None:
    site = SmallSite("chatty: {when: host.load1 > 5, do: log('x'), once: no}")
    for number in range(100):
        assert site.set(load1=9.0 + number)


def test_an_operator_lets_it_go_again() -> None:
    site = SmallSite(BREEDER)
    carry_out(site, 100)
    site.load(BREEDER)
    site.step()
    assert site.engine.views()[0].stopped
    site.engine.release("breeder")
    assert not site.engine.views()[0].stopped
    assert len(site.step()) == 1


CLEANER = """
clean:
  when: machine.state == 'failed'
  do: stop(machine)
"""


def fail(site: SmallSite, host: str, machine: str) -> int:
    """A machine runs and fails, and what is done about it works. How much was done?"""
    site.machine(host, machine, state="running")
    site.step()
    site.wait(10)
    site.machine(host, machine, state="failed")
    actions = site.step()
    for action in actions:
        assert isinstance(action, IssueCommand)
        command = f"c{len(site.done)}"
        site.command(command, host, action.issuer, "waiting", action.name)
        site.step()
        site.command(command, host, action.issuer, "done", action.name)
        site.step()
    site.wait(10)
    return len(actions)


def test_many_machines_that_fail_on_one_host_are_many_reasons() -> None:
    for command in ("stop(machine)", "send(machine.host, 'agent.ping')"):
        site = SmallSite(CLEANER.replace("stop(machine)", command))
        site.host("node1")
        assert sum(fail(site, "node1", f"m{number}") for number in range(60)) == 60
        assert Judgement.STOPPED not in site.judgements()


def test_one_host_cannot_stop_a_trigger_for_the_others() -> None:
    site = SmallSite(CLEANER)
    for name in ("good", "evil"):
        site.host(name)
    assert sum(fail(site, "evil", "m") for _ in range(40)) == 20
    assert site.told[-1].subject == "evil/m"
    assert site.engine.views()[0].stopped_for == ("evil/m",)
    assert fail(site, "evil", "other")
    assert fail(site, "good", "m")


def test_a_host_of_which_many_are_stopped_is_stopped_as_a_whole() -> None:
    site = SmallSite(CLEANER + "  repeats: 2\n")
    for number in range(11):
        assert sum(fail(site, "evil", f"m{number}") for _ in range(4)) == 2
    assert site.engine.views()[0].stopped_for == ("evil",)
    assert not fail(site, "evil", "m99")
    assert fail(site, "good", "m0")


def test_what_is_stopped_for_a_machine_is_forgotten_with_it() -> None:
    site = SmallSite(CLEANER)
    for _ in range(21):
        fail(site, "node1", "m")
    site.world.drop("machine", "node1/m")
    site.step()
    assert not site.engine.views()[0].stopped_for


def test_a_machine_for_every_machine_is_found_out() -> None:
    """Each is another subject, but one that the trigger has made itself."""
    site = SmallSite(
        "breed: {when: machine.state == 'running', do: \"start(machine.host, 'mini')\"}"
    )
    site.host("node1")
    site.machine("node1", "m0", state="running")
    actions, count = site.step(), 0
    while actions and count < 100:
        (action,) = actions
        assert isinstance(action, IssueCommand)
        count += 1
        site.command(f"c{count}", "node1", action.issuer, "waiting", action.name)
        site.step()
        site.machine("node1", f"m{count}", state="starting")
        # Somebody else's comes too, and is none of its business.
        site.machine("node1", f"x{count}", state="stopped")
        site.step()
        site.wait(5)
        site.command(f"c{count}", "node1", action.issuer, "done", action.name)
        site.step()
        site.wait(5)
        site.machine("node1", f"m{count}", state="running")
        actions = site.step()
    assert count == 20
    assert site.engine.views()[0].stopped_for == ("node1",)
    site.machine("node2", "m0", state="running")
    assert site.step()


def test_machines_that_another_trigger_starts_are_many_reasons_too() -> None:
    site = SmallSite(
        """
        more: {when: host.load1 < 1, do: "start(host, 'mini')", cooldown: 1s}
        tune: {when: machine.state == 'running', do: "send(machine.host, 'agent.ping')"}
        """
    )
    for count in range(60):
        (start,) = site.set(load1=0.0)
        assert isinstance(start, IssueCommand)
        site.command(f"s{count}", "node1", start.issuer, "waiting", start.name)
        site.set(load1=2.0)
        site.machine("node1", f"m{count}", state="running")
        (tune,) = site.step()
        assert isinstance(tune, IssueCommand)
        site.command(f"t{count}", "node1", tune.issuer, "waiting", tune.name)
        site.step()
        site.command(f"s{count}", "node1", start.issuer, "done", start.name)
        site.command(f"t{count}", "node1", tune.issuer, "done", tune.name)
        site.step()
        site.wait(10)
    assert Judgement.STOPPED not in site.judgements()


def test_a_command_for_every_command_that_failed_is_found_out() -> None:
    site = SmallSite(
        "again: {when: command.state == 'failed', do: \"send(command.host, 'agent.ping')\"}"
    )
    site.host("node1")
    site.command("c0", "node1", "alice", "failed", "agent.ping")
    count = 0
    while site.step() and count < 100:
        count += 1
        site.command(f"c{count}", "node1", "trigger:again", "waiting", "agent.ping")
        assert not site.step()
        site.wait(20)
        site.command(f"c{count}", "node1", "trigger:again", "failed", "agent.ping")
    assert count == 20


TWICE = """
twice:
  when: host.load1 > 5
  do:
    - send(host, 'agent.ping')
    - send(host, 'agent.ping')
"""


def test_a_command_that_was_left_out_has_no_effect() -> None:
    site = SmallSite(TWICE)
    for count in range(40):
        assert site.set(load1=9.0)
        for state in ("waiting", "failed"):
            site.command(f"c{count}", "node1", "trigger:twice", state, "agent.ping")
            site.step()
        site.wait(1000)
        site.set(load1=1.0)
        site.wait(1000)


def test_a_command_that_could_not_be_issued_has_no_effect_for_long() -> None:
    site = SmallSite(TWICE)
    for _ in range(40):
        assert site.set(load1=9.0)
        site.wait(100)
        site.set(load1=1.0)
        site.wait(100)


def test_what_is_asked_for_comes_soon_or_is_no_answer() -> None:
    site = SmallSite("t: {when: host.load1 > 5, do: \"query(host, 'load1')\"}")
    for _ in range(40):
        assert site.set(load1=9.0)
        site.wait(20)
        site.set(load1=1.0)
        site.wait(20)


def test_very_many_firings_on_one_host_cost_no_more_each() -> None:
    site = SmallSite(CLEANER)
    for number in range(600):
        site.machine("node1", f"m{number}", state="failed")
        assert len(site.step()) == 1
    (effects,) = site.engine._judge.causes._effects.values()
    assert len(effects) <= MOST_EFFECTS
    assert all(len(effect.firing.passed) <= MOST_PASSED for effect in effects.values())


def test_stops_survive_a_restart() -> None:
    site = SmallSite(CLEANER)
    for _ in range(21):
        fail(site, "evil", "m")
    again = SmallSite(CLEANER)
    again.machine("evil", "m", state="running")
    again.engine.restore(site.engine.memory(), again.now)
    again.step()
    assert not fail(again, "evil", "m")
    assert fail(again, "good", "m")
    again.engine.release()
    assert fail(again, "evil", "m")


def test_a_circle_is_found_among_many_other_firings() -> None:
    site = SmallSite(BREEDER + CLEANER)
    site.host("node1")
    count = 0
    while site.set(memory_free=1_000_000 - count) and count < 100:
        count += 1
        site.command(f"c{count}", "node1", "trigger:breeder", "running", "machine.start")
        site.step()
        for number in range(30):
            fail_at_once(site, f"m{count}-{number}")
        site.command(f"c{count}", "node1", "trigger:breeder", "done", "machine.start")
        site.step()
    assert count == 20
    assert [entry.trigger for entry in site.told if entry.judgement is Judgement.STOPPED] == [
        "breeder"
    ]


def fail_at_once(site: SmallSite, machine: str) -> None:
    site.machine("node1", machine, state="failed")
    assert len(site.step()) == 1
