"""Who runs what where: what is known of real jobs in real machines, and who may know it."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from encamp.agent.bait.opening import STOPPED
from tests.agent.bait.hosting import Host, Person
from tests.conftest import ENCAMP

pytestmark = pytest.mark.site


def asked(host: Host, person: Person | None, *words: str) -> subprocess.CompletedProcess[str]:
    """What the command line says on that host, which has no manager, to a user or to root."""
    become = [f"--setuid={person.uid}", f"--setgid={person.gid}"] if person else []
    enter, namespace, *rest = host.inside(ENCAMP, *words)
    variables = {name: value for name, value in host.variables.items() if name != "ENCAMP_HOME"}
    return subprocess.run(
        [enter, namespace, *become, *rest],
        env={**variables, "HOME": "/", "ENCAMP_SYSTEM_HOME": str(host.root / "none")},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def jobs(host: Host, person: Person | None, *words: str) -> list[dict[str, Any]]:
    done = asked(host, person, "jobs", "--batch", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def of(host: Host, person: Person | None, id: str) -> dict[str, Any]:
    (record,) = [one for one in jobs(host, person, "--all") if one["id"] == id]
    return record


def test_a_job_that_runs_is_known_to_its_owner_and_to_root(
    host: Host, alice: Person, bob: Person
) -> None:
    gate = alice.directory / "gate"
    id = host.job(alice, name="analysis", queue="short")
    job = host.start(
        alice,
        *("/bin/sh", "-c", f"echo up; until [ -e {gate} ]; do sleep 0.1; done; exit 3"),
        id=id,
    )
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == b"up\n"
    (mine,) = host.wait_for(
        "a job that runs", lambda: [r for r in jobs(host, alice) if r.get("begun")]
    )
    assert (mine["id"], mine["user"], mine["uid"]) == (id, alice.name, alice.uid)
    assert (mine["environment"], mine["name"], mine["queue"]) == ("mini", "analysis", "short")
    assert mine["outcome"] == "running"
    (machine,) = host.home.owners.glob("*/machines/*")
    assert mine["machine"] == machine.name
    assert jobs(host, bob) == []
    assert jobs(host, None) == [mine]
    told = asked(host, alice, "why", id)
    assert f"it runs in machine {machine.name[:8]}" in told.stdout
    assert "Nobody knows of a job" in asked(host, bob, "why", f"notebook:{id}").stderr
    gate.touch()
    assert job.end().returncode == 3
    host.wait_for("a record of its end", lambda: of(host, alice, id)["outcome"] == "done")
    ended = of(host, alice, id)
    assert (ended["exit_code"], ended["machine"]) == (3, machine.name)
    assert ended["came"] <= ended["begun"] <= ended["ended"]
    assert ended["cpu_seconds"] > 0
    assert ended["peak_memory"] > 16 << 20
    assert jobs(host, alice) == []
    assert jobs(host, bob, "--all") == []


def test_a_record_outlives_the_agent_and_its_end_is_written_by_the_next(
    host: Host, alice: Person
) -> None:
    gate = alice.directory / "gate2"
    id = host.job(alice)
    job = host.start(
        alice, "/bin/sh", "-c", f"echo up; until [ -e {gate} ]; do sleep 0.1; done", id=id
    )
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == b"up\n"
    host.kill_agent()
    assert asked(host, alice, "jobs", "--batch").returncode != 0
    gate.touch()
    assert job.end().returncode == 0
    host.start_agent()
    host.wait_for("a record of its end", lambda: of(host, alice, id)["outcome"] == "done")
    assert of(host, alice, id)["exit_code"] == 0


def test_an_environment_that_fails_is_told_and_closes_the_bait_until_others_come_up(
    host: Host, alice: Person
) -> None:
    # To this agent no machine has come up yet: that would keep the bait open.
    with host.described(""):
        closed = host.notes / "closed"
        id = host.job(alice)
        done = host.run(alice, "/bin/true", id=id, environment="broken")
        assert done.returncode == 99
        sentence = "environment broken failed 3 times"
        host.wait_for("a closed bait", lambda: closed.exists() and sentence in closed.read_text())
        host.wait_for("its record", lambda: of(host, alice, id)["outcome"] == "given back")
        told = asked(host, alice, "why", f"notebook:{id}").stdout
        assert "gave it back to the queue" in told
        assert "its batch system begins it again" in told
        (returned,) = host.returned(id)
        assert not returned.hold

        # While it is left alone, the next job for it is not even tried.
        other = host.job(alice, restarts=3)
        assert host.run(alice, "/bin/true", id=other, environment="broken").returncode == 100
        held = of(host, alice, other)
        assert held["outcome"] == "held"
        assert "is left alone until" in held["reason"]
        assert "machine" not in held
        assert "until it is released" in asked(host, alice, "why", other).stdout

        # The host is well: others' machines come up on it.
        assert host.run(alice, "/bin/true").returncode == 0
        host.wait_for("an open bait", lambda: not closed.exists())


def test_an_agent_that_is_stopped_closes_the_bait_and_the_next_one_opens_it(
    host: Host, alice: Person
) -> None:
    closed = host.notes / "closed"
    host.wait_for("an open bait", lambda: not closed.exists())
    host.stop_agent()
    assert closed.read_text() == STOPPED
    host.start_agent()
    host.wait_for("an open bait", lambda: not closed.exists())
    assert host.run(alice, "/bin/true").returncode == 0


def test_nobody_else_reads_what_is_written_down(host: Host, alice: Person) -> None:
    assert host.run(alice, "/bin/true").returncode == 0
    for path in (host.home.root / "batch").rglob("*"):
        if path.is_dir():
            assert path.stat().st_mode & 0o077 == 0
            assert path.stat().st_uid == os.geteuid()
