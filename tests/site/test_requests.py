"""Jobs through a site of real daemons: whatever is killed, each is run once and its end known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from encamp.door.questions import AskRequests
from encamp.home import Home
from encamp.model.request import RequestRecord
from tests.builds import give_images
from tests.conftest import machine_processes
from tests.site.siting import QUICK, RunningSite, root_only, running_site

pytestmark = [pytest.mark.site, root_only]

SETTINGS = f"""{QUICK}
host: node1
placement:
  pause: 0.5s
  longest_pause: 1s
  limits:
    - {{ name: one at a time, environments: [narrow], per: all, machines: 1 }}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, site_home: Home) -> Iterator[RunningSite]:
    """One host, on which `mini` is there to be booted once."""
    root = tmp_path_factory.mktemp("site")
    give_images(Home(root / "node1-home").prepare(), site_home)
    with running_site(root, (), SETTINGS, start=False) as site:
        site.add_agent("node1")
        for name in ("manager", "node1"):
            environments = site.root / name / "environments.yaml"
            environments.write_text(
                "narrow: { extends: mini }\n"
                "again: { extends: mini, reuse: true, classes: [interactive] }\n"
            )
        (site.root / "shared").mkdir()
        site.start()
        site.wait_for_hosts("node1")
        yield site


def run(site: RunningSite, *options: str, script: str) -> str:
    """A detached job; its id."""
    words = ("--detach", *shared(site), *options, "--", "sh", "-c", script)
    return site("run", *words).stdout.strip()


def shared(site: RunningSite) -> tuple[str, str]:
    """All jobs have it, and so machines cloned from one template."""
    return "--share", f"{site.root / 'shared'}:/shared"


def record(site: RunningSite, job: str) -> Any:
    found = site.at_door(AskRequests(id=job), RequestRecord)
    return found[0] if found else None


def ended(site: RunningSite, job: str) -> Any:
    def over() -> Any:
        found = record(site, job)
        states = ("done", "failed", "cancelled", "lost")
        return found if found and found.get("state") in states else None

    return site.wait_for(f"the end of {job}", over)


def begun(site: RunningSite, name: str) -> int:
    """How often a job has begun."""
    try:
        return len((site.root / "shared" / name).read_text().splitlines())
    except FileNotFoundError:
        return 0


def test_a_job_runs_on_the_host_and_streams_to_its_caller(site: RunningSite) -> None:
    script = "cat; echo bad >&2; exit 3"
    done = site("run", *shared(site), "--", "sh", "-c", script, input="in", check=False)
    assert (done.stderr, done.stdout, done.returncode) == ("bad\n", "in", 3)


@pytest.mark.parametrize("victim", ["manager", "node1", "nats"])
def test_a_job_survives_what_is_killed_while_it_runs(site: RunningSite, victim: str) -> None:
    go = site.root / "shared" / f"go-{victim}"
    script = (
        f"echo x >> /shared/{victim}; until test -e /shared/{go.name}; do sleep 0.1; done; exit 5"
    )
    job = run(site, script=script)
    site.wait_for("its beginning", lambda: begun(site, victim))
    site.daemons[victim].kill()
    go.touch()
    site.start(victim)
    assert ended(site, job)["exit_code"] == 5
    assert begun(site, victim) == 1
    site.wait_for_hosts("node1")


def cut_power(site: RunningSite, host: str = "node1") -> None:
    """Everything on the host dies at once."""
    site.daemons[host].kill()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("ENCAMP_HOME") == str(site.homes[host]):
                process.kill()


@pytest.mark.parametrize("retries", ["0", "1"])
def test_a_job_is_begun_anew_on_a_host_that_was_restarted_if_it_may_be(
    site: RunningSite, retries: str
) -> None:
    name = f"restarted-{retries}"
    script = f"echo x >> /shared/{name}; test $(wc -l < /shared/{name}) = 2 || sleep 1000"
    job = run(site, "--retries", retries, script=script)
    site.wait_for("its beginning", lambda: begun(site, name))
    cut_power(site)
    site.start("node1")
    found = ended(site, job)
    assert (found["state"], begun(site, name)) == (("failed", 1) if retries == "0" else ("done", 2))
    site.wait_for_hosts("node1")


def test_nothing_waits_for_a_host_that_was_removed_from_the_site(site: RunningSite) -> None:
    give_images(Home(site.root / "node2-home").prepare(), Home(site.homes["node1"]))
    site.add_agent("node2")
    site.start("node2")
    site.wait_for_hosts("node2")
    there = "host.name == 'node2'"
    words = ("--requirements", there, "--", "sleep", "1000")
    job = site("run", "--detach", *words).stdout.strip()
    site.wait_for("it to run", lambda: record(site, job)["state"] == "running")
    cut_power(site, "node2")
    site.wait_for_hosts("node2", presence="lost")
    assert record(site, job)["reason"]["cause"] == "host lost"
    site("site", "remove", "node2", "--directory", site.config)
    found = ended(site, job)
    assert (found["state"], found["reason"]["sentence"]) == (
        "lost",
        "node2 is no longer part of the site",
    )
    assert "node2" not in site.hosts()
    site.wait_for(
        "its command to be given up",
        lambda: (
            {one["state"] for one in site.commands().values() if one["host"] == "node2"} == {"lost"}
        ),
    )
    assert record(site, job)["state"] == "lost"


POINTS = (
    "encamp.manager.placing:Placing._claim+after",
    "encamp.manager.dispatching:Dispatcher.issue_prepared+before",
    "encamp.manager.dispatching:Dispatcher.issue_prepared+after",
    "encamp.manager.sending:Sender._send+after",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_job_is_run_once_though_the_manager_is_struck_dead(site: RunningSite, point: str) -> None:
    name = point.partition(":")[2]
    manager = site.daemons["manager"]
    usual = manager.command
    manager.stop()
    manager.command = [sys.executable, "-m", "tests.site.dying", point, "encamp", *usual[1:]]
    manager.start()
    site.wait_for_hosts("node1")
    job = run(site, script=f"echo x >> /shared/{name}")
    assert manager.process is not None
    assert manager.process.wait(60) < 0
    manager.command = usual
    manager.start()
    assert ended(site, job)["state"] == "done"
    assert begun(site, name) == 1
    site.wait_for_hosts("node1")


def test_those_that_wait_say_why_and_have_their_turn_after_a_restart(site: RunningSite) -> None:
    go = site.root / "shared" / "go-narrow"
    wait = f"until test -e /shared/{go.name}; do sleep 0.1; done"
    first = run(site, "-e", "narrow", script=f"echo x >> /shared/narrow; {wait}")
    site.wait_for("its beginning", lambda: begun(site, "narrow"))
    second = run(site, "-e", "narrow", script="echo x >> /shared/narrow")
    why = site.ask("why", second)
    assert why["reason"]["cause"] == "limit"
    assert why["reason"]["limit"] == "one at a time"
    third = run(site, "-e", "narrow", "--wait-at-most", "2s", script="echo x >> /shared/narrow")
    site.daemons["manager"].kill()
    site.start("manager")
    site.wait_for_hosts("node1")
    withdrawn = site("wait", third, check=False)
    assert withdrawn.returncode == 85
    assert "it had not begun after 2 seconds: " in withdrawn.stderr
    assert "one at a time" in withdrawn.stderr
    go.touch()
    assert {ended(site, job)["state"] for job in (first, second)} == {"done"}
    assert begun(site, "narrow") == 2


def test_a_job_is_cancelled_and_its_machine_is_gone(site: RunningSite) -> None:
    job = run(site, script="echo x >> /shared/long; sleep 1000")
    site.wait_for("its beginning", lambda: begun(site, "long"))
    site("cancel", job)
    assert ended(site, job)["state"] == "cancelled"
    site.wait_for("the end of the machine", lambda: not site.hosts()["node1"]["machines"])


def test_a_machine_is_started_used_and_removed(site: RunningSite) -> None:
    """Whoever waits for a command finds at once what it has done."""

    def states() -> list[str]:
        return [machine["state"] for machine in site.hosts()["node1"]["machines"]]

    site("start", "--name", "box", *shared(site))
    assert states() == ["running"]
    assert site("exec", "box", "hostname").stdout == "box\n"
    site("pause", "box")
    assert states() == ["paused"]
    site("resume", "box")
    assert states() == ["running"]
    [request] = site.at_door(AskRequests(under_way=True), RequestRecord)
    site("cancel", request["request"]["id"])
    over = ended(site, request["request"]["id"])
    assert over["state"] == "cancelled"
    assert "wanted it to end" in over["reason"]["sentence"]
    assert states() == []
    site.wait_for("its commands", lambda: "commands.carry" not in " ".join(site.processes()))


def test_a_request_without_a_place_is_refused_with_the_reason(site: RunningSite) -> None:
    done = site("run", "--cpus", "4000", "--", "true", check=False)
    assert done.returncode != 0
    assert "4000" in done.stderr
    done = site("run", "--requirements", "host.nmae == 'x'", "--", "true", check=False)
    assert "nmae" in done.stderr


def test_machines_stand_ready_and_jobs_find_them(site: RunningSite) -> None:
    """With the triggers that are shipped for it."""
    shipped = Path(__file__).parents[2] / "examples" / "on-demand.yaml"
    triggers = site.config / "triggers.yaml"
    triggers.write_text(shipped.read_text().replace("idle < 2", "idle < 1").replace("2 -", "1 -"))
    site("trigger", "reload")

    def idle() -> list[str]:
        machines = site.hosts()["node1"]["machines"]
        return [machine["id"] for machine in machines if machine["idle"]]

    [ready] = site.wait_for("a machine that stands ready", idle)
    done = site("run", "--reuse", "--json", "-e", "again", "--", "true")
    assert msgspec.json.decode(done.stderr.splitlines()[-1])["machine"] == ready
    triggers.unlink()
    site("trigger", "reload")

    def over() -> bool:
        """While the job had it, another may have been made ready."""
        return not site.at_door(AskRequests(under_way=True), RequestRecord)

    site.wait_for("the end of what was wanted", over)
    home = Home(site.homes["node1"])
    assert machine_processes(home)
    assert site.daemons["node1"].stop() == 0
    assert machine_processes(home) == []
    assert list(home.machines.iterdir()) == []
    site.start("node1")
    site.wait_for_hosts("node1")
