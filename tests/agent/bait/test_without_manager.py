"""The manager and the bus of a site are killed under a job of the batch system: the job goes on,
and others come and run as ever. When they are back, they are told of all of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.bait.hosting import Host, Person
from tests.site.siting import RunningSite, running_site

pytestmark = pytest.mark.site

WAITS = "echo begun >>{file}; while [ ! -e {file}.go ]; do sleep 0.02; done; echo ended >>{file}"


@contextmanager
def member(site: RunningSite, host: Host, name: str) -> Iterator[None]:
    """The host's agent is one of the site's; afterwards it is alone again."""
    before = host.root / "alone"
    shutil.copytree(host.configuration, before)
    secret = site("site", "add", name, "--directory", site.config).stdout
    host.stop_agent()
    try:
        site("site", "join", "-", input=secret, ENCAMP_SITE_CONFIG=str(host.configuration))
        site.start()
        host.start_agent("--verbose")
        site.wait_for_hosts(name)
        yield
    finally:
        host.stop_agent()
        shutil.rmtree(host.configuration)
        before.rename(host.configuration)
        host.start_agent()


def told(site: RunningSite) -> dict[str, tuple[Any, ...]]:
    """What the manager tells of the host's jobs."""
    done = site("jobs", "--batch", "--all", "--json", check=False)
    return {
        record["id"]: (record["outcome"], record.get("exit_code"), record["host"])
        for record in (json.loads(done.stdout) if done.returncode == 0 else [])
    }


def test_jobs_run_and_come_while_manager_and_bus_are_dead(
    host: Host, alice: Person, tmp_path: Path
) -> None:
    file = alice.directory / "without-manager"
    ids = [host.job(alice) for _ in range(3)]
    with running_site(tmp_path / "site", (), start=False) as site, member(site, host, "node1"):
        script = f"{WAITS.format(file=file)}; exit 7"
        job = host.start(alice, "/bin/sh", "-c", script, id=ids[0])
        host.wait_for("the job's beginning", file.exists)
        site.wait_for("a job that the manager knows", lambda: told(site).get(ids[0]))
        for id, victim, code in ((ids[1], "manager", 3), (ids[2], "nats", 4)):
            site.daemons[victim].kill()
            done = host.run(alice, "/bin/sh", "-c", f"exit {code}", id=id)
            assert done.returncode == code, done.stderr
        file.with_name(f"{file.name}.go").touch()
        done = job.end()
        assert (done.returncode, done.stderr) == (7, b"")
        assert file.read_text() == "begun\nended\n"
        site.start("nats", "manager")
        site.wait_for_hosts("node1")
        everything = {id: ("done", code, "node1") for id, code in zip(ids, (7, 3, 4), strict=True)}
        site.wait_for(
            "a manager that knows it all", lambda: told(site).items() >= everything.items()
        )
    assert [host.returned(id) for id in ids] == [[], [], []]
