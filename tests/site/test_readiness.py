"""Machines that are given work only when they are ready for it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.agent.keeper import Keeper
from encamp.agent.phases import Phases
from encamp.cli.options import caller
from encamp.describe.environments import find_environment
from encamp.home import Home
from encamp.model.environment import Readiness
from encamp.model.errors import Code
from encamp.model.job import MachineRequest
from encamp.progress import Silent
from tests.cli.driving import Start, starter
from tests.conftest import Encamp
from tests.site.describing import Describe, describer

pytestmark = pytest.mark.site

NEVER = """
never:
  extends: mini
  ready:
    port: 8080
    file: /srv/sign
    command: [sh, -c, "echo nobody is in >&2; exit 2"]
    timeout: 8
    interval: 0.1
"""


@pytest.fixture
def describe(tmp_path: Path) -> Describe:
    return describer(tmp_path)


def failed(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode == Code.NOT_READY.value, done.stderr.decode()
    return done.stderr.decode()


def test_command_begins_when_all_that_was_asked_for_holds(
    encamp: Encamp, describe: Describe
) -> None:
    variables = describe("""
    service:
      extends: mini
      context:
        run:
          - mkdir /srv && echo hello >/srv/index.html
          - (sleep 0.4; httpd -p 8080 -h /srv; sleep 0.4; echo >/srv/sign) &
      ready:
        port: 8080
        file: /srv/sign
        command: [wget, -q, -O, /srv/fetched, "http://127.0.0.1:8080/"]
        interval: 0.05
    """)
    words = ("run", "-e", "service", "--json", "--", "cat", "/srv/sign", "/srv/fetched")
    done = encamp(*words, variables=variables)
    assert done.stdout == b"\nhello\n"
    phases = {phase["phase"]: phase["how"] for phase in json.loads(done.stderr)["phases"]}
    assert phases["activation"] == "context handed over, ready"


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "10.0.2.15"])
def test_port_answers_on_whatever_address_it_is_open(
    encamp: Encamp, describe: Describe, address: str
) -> None:
    variables = describe(f"""
    service:
      extends: mini
      network: user
      context:
        run: ["httpd -p {address}:8080"]
      ready: {{port: 8080, timeout: 20}}
    """)
    encamp("run", "-e", "service", "--", "true", variables=variables)


def test_what_keeps_a_machine_from_being_ready_is_told_and_nothing_is_left(
    encamp: Encamp, describe: Describe
) -> None:
    said = failed(
        encamp("run", "-e", "never", "--", "true", check=False, variables=describe(NEVER))
    )
    assert "'never' was not ready after 8 s" in said
    assert "file /srv/sign does not exist" in said
    assert "port 8080 refuses connections" in said
    assert "exited with 2, saying: nobody is in" in said


def test_machine_that_did_not_become_ready_stays_to_be_looked_at(
    encamp: Encamp, describe: Describe
) -> None:
    variables = describe(NEVER)
    words = ("start", "-e", "never", "--name", "late")
    said = failed(encamp(*words, check=False, variables=variables))
    machine = json.loads(encamp("show", "late", "--json").stdout)
    assert machine["state"] == "failed"
    assert machine["reason"] in said
    assert encamp("console", "late").stdout
    encamp("rm", "late")


def test_machine_says_why_it_is_not_ready_while_it_is_waited_for(
    encamp: Encamp, encamp_environment: dict[str, str], describe: Describe, tmp_path: Path
) -> None:
    variables = describe("""
    patient:
      extends: mini
      ready: {file: /srv/sign, interval: 0.1}
    """)
    start: Start = starter({**encamp_environment, **variables}, tmp_path)
    with start("run", "-e", "patient", "--", "true") as waiting:
        deadline = time.monotonic() + 60
        reason, machines = "", []
        while "/srv/sign" not in reason and time.monotonic() < deadline:
            machines = json.loads(encamp("ps", "--json").stdout)
            reason = machines[0]["reason"] if machines else ""
        assert machines[0]["state"] == "starting"
        assert reason.endswith("it is tested until it is ready: file /srv/sign does not exist")
        waiting.process.terminate()
        assert waiting.process.wait() == 143


def test_test_that_does_not_end_is_told_from_one_that_fails(
    encamp: Encamp, describe: Describe
) -> None:
    variables = describe("""
    stuck:
      extends: mini
      ready: {command: [sleep, "1000"], timeout: 8}
    """)
    said = failed(encamp("run", "-e", "stuck", "--", "true", check=False, variables=variables))
    assert "command 'sleep 1000' has not ended" in said


def test_machine_that_dies_before_it_is_ready_is_lost(encamp: Encamp, describe: Describe) -> None:
    variables = describe("""
    dying:
      extends: mini
      context:
        run: ["(sleep 0.5; echo b >/proc/sysrq-trigger) &"]
      ready: {file: /srv/sign}
    """)
    done = encamp("run", "-e", "dying", "--", "true", check=False, variables=variables)
    assert done.returncode == Code.MACHINE_LOST.value, done.stderr.decode()


async def test_answering_and_becoming_ready_have_one_time_limit(
    site_home: Home, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []

    async def make_ready(*args: Any) -> str:
        left.append(args[3])
        return "ready"

    monkeypatch.setattr("encamp.agent.activation.make_ready", make_ready)
    environment = msgspec.structs.replace(
        find_environment("mini"), ready=Readiness(file="/srv/sign", timeout=60)
    )
    live = await Keeper.open(site_home).maker.make(
        MachineRequest(environment="mini", owner=caller()),
        environment,
        tied=True,
        outlives=False,
        phases=Phases(),
        progress=Silent(),
    )
    await live.destroy()
    assert len(left) == 1
    assert 0 < left[0] < 60, "what the guest took to answer is not given again"
