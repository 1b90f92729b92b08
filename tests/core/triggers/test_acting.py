"""What triggers do: commands to any set of agents, in order, queries and notifications."""

from __future__ import annotations

import pytest

from encamp.core.actions import (
    AskProperties,
    InOrder,
    IssueCommand,
    Judgement,
    Notify,
    Way,
)
from encamp.core.world import Unknown
from encamp.model.errors import EncampError
from encamp.model.property import Value
from tests.core.triggers.small_site import SmallSite, parse
from tests.core.triggers.test_files import PERUGIA


def one_of(call: str, when: str = "host.load1 > 8") -> SmallSite:
    site = SmallSite(f"t:\n  when: {when}\n  do: |\n    {call}\n")
    site.host("node1", load1=1.0)
    site.host("node2", load1=1.0)
    site.world.put("host", "node3", {"name": "node3", "presence": "joined", "groups": []})
    site.machine("node2", "b3", state="running", environment="mini")
    site.machine("node2", "b4", state="running", environment="mini")
    site.machine("node1", "b5", state="paused", environment="mini")
    site.step()
    assert site.done == []
    return site


def issued(hosts: tuple[str, ...], name: str, **arguments: Value) -> IssueCommand:
    return IssueCommand(hosts, name, arguments, "trigger:t")


def test_the_first_system_s_example_works_as_it_is() -> None:
    site = SmallSite(PERUGIA, name="triggers.ini")
    site.wait(65)
    assert site.done == []
    site.set(load1=1.0)
    site.wait(60)
    assert site.done == [(90.0, AskProperties(None)), (120.0, AskProperties(None))]
    site.world.put("host", "node1", {"presence": "lost"})
    assert site.wait(60) == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("send(host, 'agent.ping')", [issued(("node1",), "agent.ping")]),
        ("send('node2', 'agent.ping')", [issued(("node2",), "agent.ping")]),
        ("send(hosts, 'agent.ping')", [issued(("node1", "node2", "node3"), "agent.ping")]),
        ("send(group('workers'), 'agent.ping')", [issued(("node1", "node2"), "agent.ping")]),
        (
            "send([h for h in hosts if h.load1 < 5], 'agent.ping')",
            [issued(("node2",), "agent.ping")],
        ),
        (
            "send(host, 'image.pull', image='mini', timeout=30)",
            [IssueCommand(("node1",), "image.pull", {"image": "mini"}, "trigger:t", 30)],
        ),
        ("start(host, 'mini')", [issued(("node1",), "machine.start", environment="mini")]),
        (
            "start(host, 'mini', memory=2 * GiB)",
            [issued(("node1",), "machine.start", environment="mini", memory=2 << 30)],
        ),
        (
            "stop([m for m in machines if m.state == 'running'])",
            [
                issued(("node2",), "machine.stop", machine="b3"),
                issued(("node2",), "machine.stop", machine="b4"),
            ],
        ),
        (
            "pause([m for m in machines if m.host == host.name])",
            [issued(("node1",), "machine.pause", machine="b5")],
        ),
        ("query(host, 'load1', 'cpus')", [AskProperties(("node1",), ("load1", "cpus"))]),
        ("query(hosts)", [AskProperties(("node1", "node2", "node3"))]),
        ("sender.send_get_property(['load1'])", [AskProperties(None, ("load1",))]),
        ("log(f'{host.name}: {host.load1:.1f}')", [Notify(Way.LOG, "node1: 9.0", "t", owner="")]),
        (
            "webhook('https://example.org/hook', 'hot')",
            [
                Notify(
                    Way.WEBHOOK,
                    "hot",
                    "t",
                    "https://example.org/hook",
                    {"host.load1": 9.0},
                    owner="",
                )
            ],
        ),
        (
            "mail('admin@example.org', host.name, 'hot')",
            [Notify(Way.MAIL, "hot", "t", "admin@example.org", {"subject": "node1"}, owner="")],
        ),
    ],
)
def test_what_can_be_done(call: str, expected: list[object]) -> None:
    assert one_of(call).set(load1=9.0) == expected


def test_a_trigger_about_machines_acts_on_its_machine() -> None:
    site = one_of("stop(machine)", "machine.state == 'failed' and machine.host.load1 > 0")
    site.machine("node2", "b4", state="failed")
    assert site.step() == [issued(("node2",), "machine.stop", machine="b4")]


def test_aggregates_over_groups_and_machines() -> None:
    site = SmallSite(
        "idle:\n  when: sum(h.load1 for h in group('workers')) < 1 and len(machines) == 0\n"
        "  do: log('idle')\n"
    )
    site.host("node1", load1=3.0)
    site.host("node2", load1=0.2)
    site.step()
    site.machine("node1", "b1", state="running")
    site.set("node1", load1=0.2)
    assert site.texts() == []
    site.world.drop("machine", "node1/b1")
    site.step()
    assert site.texts() == ["idle"]


def test_several_commands_go_out_as_one_sequence_in_order() -> None:
    site = SmallSite(
        """
        t:
          when: host.load1 > 8
          do:
            - send(host, 'image.pull', image='mini')
            - start(host, 'mini'); log('started')
          ignore_errors: yes
        """
    )
    (action,) = site.set(load1=9.0)
    assert action == InOrder(
        "t",
        (
            (issued(("node1",), "image.pull", image="mini"),),
            (issued(("node1",), "machine.start", environment="mini"),),
            (Notify(Way.LOG, "started", "t", owner=""),),
        ),
        "node1",
        ignore_errors=True,
    )
    assert site.told[-1].actions == (
        "image.pull(image='mini') on node1",
        "machine.start(environment='mini') on node1",
        "log: started",
    )


def test_nobody_is_told_anything_if_there_is_nobody() -> None:
    site = one_of("stop([m for m in machines if m.state == 'failed'])")
    assert site.set(load1=9.0) == []
    assert site.told[-1].judgement is Judgement.FAILED
    assert site.told[-1].reason == "there is nobody to tell"
    site.machine("node1", "b3", state="failed")
    site.step()
    assert len(site.wait(60)) == 1


def test_a_command_that_cannot_be_worked_out_is_told_and_tried_again() -> None:
    site = one_of("log(host.kernel)")
    site.host("node1", kernel=Unknown("uname is missing"))
    assert site.set(load1=9.0) == []
    assert site.told[-1].judgement is Judgement.FAILED
    assert "uname is missing" in site.told[-1].reason
    site.set(kernel="6.1")
    assert site.texts() == []
    site.wait(60)
    assert site.texts() == ["6.1"]


def test_the_values_that_were_seen_are_in_the_log() -> None:
    site = one_of("log('x')", "host.load1 > 2 * host.cpus")
    site.set(cpus=4)
    site.set(load1=9.5)
    entry = site.told[-1]
    assert (entry.trigger, entry.subject, entry.judgement) == ("t", "node1", Judgement.FIRED)
    assert entry.seen["host.load1"] == 9.5
    assert entry.seen["host.cpus"] == 4
    assert entry.at == site.now


def test_commands_of_triggers_are_issued_in_their_names() -> None:
    (action,) = one_of("send(host, 'agent.ping')").set(load1=9.0)
    assert isinstance(action, IssueCommand)
    assert action.issuer == "trigger:t"


def test_a_machine_is_no_text() -> None:
    for call in ("stop(machine.id)", "stop(machine.name)", "stop('b3')", "stop(['b3'])"):
        text = f'a:\n  when: machine.state == "failed"\n  do: "{call}"\n'
        with pytest.raises(EncampError) as caught:
            parse(text)
        assert caught.value.detail.startswith("triggers.yaml:3:13: 'machine' is a machine, not ")
        assert "write 'machine', or choose some" in caught.value.detail


def test_a_machine_that_is_not_there_is_told() -> None:
    site = one_of("stop(machines['node1/b3'])")
    assert site.set(load1=9.0) == []
    assert site.told[-1].judgement is Judgement.FAILED
    assert "there is no machine 'node1/b3'" in site.told[-1].reason
    site.machine("node1", "b3")
    site.step()
    assert site.wait(60) == [issued(("node1",), "machine.stop", machine="b3")]
