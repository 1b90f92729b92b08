"""A site of real daemons: joining, watching, commanding, deciding."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.site.siting import RunningSite, root_only, running_site

pytestmark = [pytest.mark.site, root_only]

TRIGGERS = """
many:
  when: count(h for h in hosts if h.mood == 'good') >= 2
  do:
    - send(hosts, 'program.note', line='first')
    - send(hosts['node1'], 'program.note', line='second')
    - log('both are in a good mood')
"""

PERUGIA = """
[client_query]
expr = { len(manager.clients) != 0 }
cmd = { sender.send_get_property() }
ticks = 1
on_update_check = no
"""

PROPERTIES = """
mood:
  command: program
  parameters: [cat, MOOD]
  return_type: str
  ticks: 0.2s
"""

PERUGIA_PROPERTIES = """
[ram_free]
command = ram
parameters = MemFree
return_type = int
ticks = 60
"""

COMMANDS = """
note:
  run: [/bin/sh, -c, 'echo "$1" >> "$0"', NOTES, "{line}"]
  parameters: line
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSite]:
    """Two hosts, that read a file for a property, and have a program to write to one."""
    root = tmp_path_factory.mktemp("site")
    with running_site(root, ("node1", "node2"), start=False) as site:
        for name in ("node1", "node2"):
            (root / f"{name}.mood").write_text("bad\n")
            mood, notes = str(root / f"{name}.mood"), str(root / f"{name}.notes")
            config = root / name
            (config / "properties.yaml").write_text(PROPERTIES.replace("MOOD", mood))
            (config / "properties.ini").write_text(PERUGIA_PROPERTIES)
            (config / "commands.yaml").write_text(COMMANDS.replace("NOTES", notes))
        (site.config / "triggers.yaml").write_text(TRIGGERS)
        (site.config / "triggers.ini").write_text(PERUGIA)
        site.start()
        site.wait_for_hosts("node1", "node2")
        yield site


def test_hosts_are_known_with_their_properties(site: RunningSite) -> None:
    hosts = site.hosts()
    assert set(hosts) == {"node1", "node2"}
    assert hosts["node1"]["groups"] == ("workers",)
    site.wait_for("ram_free", lambda: "ram_free" in site.hosts()["node1"]["readings"])
    free = site.hosts()["node1"]["readings"]["ram_free"]["value"]
    assert 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_triggers_that_use_what_only_agents_define_are_watched_once_these_have_joined(
    site: RunningSite,
) -> None:
    # `mood` and `program.note` are in no file of the manager's.
    triggers = site.wait_for("triggers", lambda: site.ask("trigger", "ls"))
    assert {trigger["name"] for trigger in triggers} == {"many", "client_query"}


def test_perugias_trigger_has_all_hosts_queried_again_and_again(site: RunningSite) -> None:
    def answers() -> int:
        return len(
            [entry for entry in site.judged("client_query") if entry["judgement"] == "fired"]
        )

    first = site.wait_for("the first query", answers)
    site.wait_for("another query", lambda: answers() > first)
    age = time.time() - site.hosts()["node1"]["readings"]["ram_free"]["at"]
    # It is read once a minute; what was read is told each time it is asked for.
    assert age < 120


def test_a_change_on_hosts_makes_a_trigger_send_commands_in_order(site: RunningSite) -> None:
    for name in ("node1", "node2"):
        (site.root / f"{name}.mood").write_text("good\n")
    notes, others = site.root / "node1.notes", site.root / "node2.notes"
    site.wait_for("the second command", lambda: notes.exists() and "second\n" in notes.read_text())
    assert notes.read_text().splitlines() == ["first", "second"]
    site.wait_for("that of the other", lambda: others.exists() and "first\n" in others.read_text())
    assert others.read_text().splitlines() == ["first"]
    site.wait_for(
        "the notification",
        lambda: any("good mood" in event["sentence"] for event in site.events("notification")),
    )
    issuers = {record["issuer"] for record in site.commands().values()}
    assert issuers == {"trigger:many"}


def test_a_new_set_of_triggers_with_a_mistake_is_refused_and_the_old_one_goes_on(
    site: RunningSite,
) -> None:
    (site.config / "triggers.yaml").write_text("hot:\n  when: host.load9 > 1\n  do: log('x')\n")
    refused = site("trigger", "reload", check=False)
    assert refused.returncode != 0
    assert "triggers.yaml:2" in refused.stderr
    assert "did you mean" in refused.stderr
    assert {trigger["name"] for trigger in site.ask("trigger", "ls")} == {"many", "client_query"}
    site.daemons["manager"].signal(signal.SIGHUP)
    site.wait_for("the refusal", lambda: len(site.events("triggers refused")) >= 2)
    (site.config / "triggers.yaml").write_text(TRIGGERS)
    site("trigger", "reload")


def test_asking_for_what_no_host_has_is_refused_and_hurts_nobody(site: RunningSite) -> None:
    wrong = site("properties", "node1", "mod", "--refresh", check=False)
    assert wrong.returncode != 0
    assert "mood" in wrong.stderr
    site("properties", "node1", "mood", "--refresh")
    site("command", "send", "node1", "agent.ping")


def test_a_definition_with_a_mistake_leaves_the_agent_with_what_it_had(site: RunningSite) -> None:
    path = site.root / "node2" / "properties.yaml"
    before = path.read_text()
    path.write_text(before + "broken:\n  command: nosuch\n  tick: 3\n")
    agent = site.daemons["node2"]
    agent.signal(signal.SIGHUP)
    site.wait_for(
        "the complaint",
        lambda: any("properties.yaml:" in e["sentence"] for e in site.events("host trouble")),
    )
    assert "nosuch" in agent.said()
    (site.root / "node2.mood").write_text("fair\n")
    site.wait_for(
        "the property", lambda: site.hosts()["node2"]["readings"]["mood"]["value"] == "fair"
    )
    path.write_text(before)


def test_a_property_that_is_far_too_large_is_an_error_and_hurts_nobody(site: RunningSite) -> None:
    mood = site.root / "node1.mood"
    with open(mood, "wb") as file:
        file.truncate(100_000_000)
    reading = site.wait_for(
        "the error", lambda: site.hosts()["node1"]["readings"]["mood"].get("error")
    )
    assert "100" in reading or "MB" in reading or "bytes" in reading
    (site.root / "node2.mood").write_text("fine\n")
    site.wait_for(
        "the other host", lambda: site.hosts()["node2"]["readings"]["mood"].get("value") == "fine"
    )
    mood.write_text("good\n")
    site.wait_for(
        "the recovery", lambda: site.hosts()["node1"]["readings"]["mood"].get("value") == "good"
    )


def test_an_agent_that_is_killed_is_lost_and_one_that_is_stopped_has_left(
    site: RunningSite,
) -> None:
    site.daemons["node1"].kill()
    site.wait_for_hosts("node1", presence="lost")
    assert site.daemons["node2"].stop() == 0
    site.wait_for_hosts("node2", presence="left")
    refused = site("command", "send", "node1", "agent.ping", check=False)
    assert refused.returncode != 0
    assert "lost" in refused.stderr
    site.start("node1", "node2")
    site.wait_for_hosts("node1", "node2")
    assert [event["host"] for event in site.events("host lost")] == ["node1"]
    assert [event["host"] for event in site.events("host left")] == ["node2"]


def test_a_host_that_is_gone_for_good_can_be_forgotten(site: RunningSite) -> None:
    refused = site("site", "forget", "node2", check=False)
    assert refused.returncode != 0
    assert "is joined" in refused.stderr
    site.daemons["node2"].stop()
    site.wait_for_hosts("node2", presence="left")
    site("site", "forget", "node2")
    assert "node2" not in site.hosts()
    site.start("node2")
    site.wait_for_hosts("node2")


def test_a_second_agent_with_the_same_name_is_refused_and_the_first_goes_on(
    site: RunningSite,
) -> None:
    first = site.daemons["node1"]
    twin = site.add_daemon(
        "twin", first.command, {**first.environment, "ENCAMP_HOME": str(site.root / "twin-home")}
    )
    twin.start()
    try:
        site.wait_for("the refusal", lambda: "node1" in twin.said())
        site("command", "send", "node1", "agent.ping")
        assert site.hosts()["node1"]["presence"] == "joined"
    finally:
        twin.end()
        del site.daemons["twin"]
    site("command", "send", "node1", "agent.ping")
