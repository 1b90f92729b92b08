"""Whatever is killed, commands are carried out once, their output is whole, machines go on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encamp.home import Home
from tests.manager.store.postgres import PostgreSQL, postgresql
from tests.site.siting import QUICK, RunningSite, root_only, running_site

pytestmark = [pytest.mark.site, root_only]

LINES = 40

COMMANDS = f"""
count:
  run:
    - /bin/sh
    - -c
    - 'echo begun >> "$0"; for i in $(seq {LINES}); do echo line $i; sleep 0.1; done'
    - BEGUN
  returns: str
last:
  run:
    - /bin/sh
    - -c
    - 'echo begun >> "$0"; echo up; while :; do sleep 0.1; done'
    - BEGUN
"""
EXPECTED = "".join(f"line {number}\n" for number in range(1, LINES + 1))


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgreSQL]:
    with postgresql(fsync=True) as server:
        yield server


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, postgres: PostgreSQL) -> Iterator[RunningSite]:
    """One host, which can count slowly; the store is in PostgreSQL."""
    root = tmp_path_factory.mktemp("site")
    with (
        postgres.database() as url,
        running_site(root, (), f"{QUICK}\nstore: {url}\n", start=False) as site,
    ):
        prepare(site)
        yield site


def prepare(site: RunningSite, home: Path | None = None) -> None:
    site.add_agent("node1", home)
    commands = COMMANDS.replace("BEGUN", str(site.root / "begun"))
    (site.root / "node1" / "commands.yaml").write_text(commands)
    site.start()
    site.wait_for_hosts("node1")


def begin(site: RunningSite, name: str = "count") -> str:
    """A command that counts, or only lasts, of which some lines have arrived."""
    (site.root / "begun").unlink(missing_ok=True)
    record = site.ask("command", "send", "node1", f"program.{name}", "--detach")
    [record] = record if isinstance(record, list) else [record]
    command_id: str = record["id"]
    site.wait_for("its first output", lambda: site.commands()[command_id]["output"] > 0)
    return command_id


def finish(site: RunningSite, command_id: str) -> None:
    """It ends as if nothing had happened: once, with all it printed."""

    def over() -> Any:
        record = site.commands().get(command_id)
        return record if record and record["state"] not in ("waiting", "running") else None

    record = site.wait_for("its end", over)
    assert record["state"] == "done", record["reason"]
    assert site("command", "output", command_id).stdout == EXPECTED
    assert (site.root / "begun").read_text() == "begun\n"
    site.wait_for_hosts("node1")


def test_a_command_survives_the_death_of_the_manager(site: RunningSite) -> None:
    command_id = begin(site)
    site.daemons["manager"].kill()
    time.sleep(0.5)
    site.start("manager")
    finish(site, command_id)


def test_a_command_survives_the_death_of_its_agent(site: RunningSite) -> None:
    command_id = begin(site)
    site.daemons["node1"].kill()
    site.wait_for_hosts("node1", presence="lost")
    site.start("node1")
    finish(site, command_id)


def test_a_command_that_ends_while_its_agent_is_dead_is_known_afterwards(
    site: RunningSite,
) -> None:
    command_id = begin(site)
    site.daemons["node1"].kill()
    results = site.homes["node1"] / "commands"
    site.wait_for("the result", lambda: list(results.rglob(f"{command_id}/result*")))
    site.start("node1")
    finish(site, command_id)


def test_a_command_survives_the_death_of_the_bus(site: RunningSite) -> None:
    command_id = begin(site)
    site.daemons["nats"].kill()
    time.sleep(0.5)
    site.start("nats")
    finish(site, command_id)
    assert not site.events("host left")


def test_a_command_survives_the_death_of_the_database(
    site: RunningSite, postgres: PostgreSQL
) -> None:
    command_id = begin(site)
    postgres.kill()
    # Who is there is known all the same.
    assert site.hosts()["node1"]["presence"] == "joined"
    postgres.start()
    finish(site, command_id)


def test_a_command_survives_the_death_of_everything_at_once(
    site: RunningSite, postgres: PostgreSQL
) -> None:
    command_id = begin(site)
    for name in ("manager", "node1", "nats"):
        site.daemons[name].kill()
    postgres.kill()
    postgres.start()
    site.start("node1", "manager", "nats")
    finish(site, command_id)


def test_a_command_whose_process_is_killed_is_lost_and_not_begun_again(site: RunningSite) -> None:
    command_id = begin(site, "last")
    carriers = [
        line
        for line in site.processes()
        if command_id in line and "encamp.agent.commands.carry" in line
    ]
    [carrier] = carriers
    os.kill(int(carrier.split(":")[0]), signal.SIGKILL)
    site.wait_for("its end", lambda: site.commands()[command_id]["state"] == "lost")
    assert (site.root / "begun").read_text() == "begun\n"
    site.wait_for("what it started", lambda: "begun" not in " ".join(site.processes()))


def test_no_event_is_lost_or_told_twice_by_all_that(site: RunningSite) -> None:
    numbers = [event["number"] for event in site.events()]
    assert numbers == sorted(set(numbers))


def test_machines_outlive_manager_and_agent(
    tmp_path: Path, site_home: Home, nothing_left: None
) -> None:
    with running_site(tmp_path, (), start=False) as site:
        prepare(site, site_home.root)
        site("command", "send", "node1", "machine.start", "environment=mini", "name=box")
        site.wait_for("the machine", lambda: len(site.hosts()["node1"]["machines"]) == 1)
        for name in ("manager", "node1"):
            site.daemons[name].kill()
        site.start("manager", "node1")
        site.wait_for_hosts("node1")
        [machine] = site.ask("ps", "--site")
        assert machine["machine"]["state"] == "running"
        site("command", "send", "node1", "machine.kill", "machine=box")
        site("command", "send", "node1", "machine.remove", "machine=box")
        site.wait_for("its end", lambda: not site.hosts()["node1"]["machines"])
        kinds = [event["kind"] for event in site.events() if event["kind"].startswith("machine")]
        # The manager that was started anew told only what was new.
        assert kinds.count("machine appeared") == 1
        assert kinds[-1] == "machine gone"
        # The suite's home is used by others; what the agent kept there goes with it.
    shutil.rmtree(site_home.root / "commands")
    (site_home.root / "agent.id").unlink()
