"""Machines on a bridge of their host: real ones, each with an address of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encamp.home import Home
from encamp.model.errors import Code
from tests.conftest import ENCAMP, Encamp, machine_processes
from tests.site.bridging import HOST, SETTINGS, Wire, wire
from tests.site.siting import root_only

pytestmark = [pytest.mark.site, root_only]

ADDRESSES = ["10.97.3.100", "10.97.3.101"]
TAPS = ["encamp-0a610364", "encamp-0a610365"]
MACS = ["52:54:0a:61:03:64", "52:54:0a:61:03:65"]
PATIENCE = 60.0


@pytest.fixture(scope="module")
def net() -> Iterator[Wire]:
    with wire() as made:
        yield made


class Bridged:
    """The command line of a host with a bridge."""

    def __init__(self, net: Wire, variables: dict[str, str], directory: Path) -> None:
        self.net = net
        self.site = directory / "site"
        self.site.mkdir()
        (self.site / "settings.yaml").write_text(SETTINGS)
        self._variables = {**variables, "ENCAMP_SITE_CONFIG": str(self.site)}

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.net.inside([ENCAMP, *words]),
            env={**os.environ, **self._variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr}"
        return done

    def inside(self, machine: str, script: str) -> list[str]:
        return self("exec", machine, "--", "sh", "-c", script).stdout.split()

    def record(self, machine: str) -> Any:
        return json.loads(self("show", "--json", machine).stdout)


@pytest.fixture
def encamp_there(
    encamp: Encamp, net: Wire, encamp_environment: dict[str, str], tmp_path: Path
) -> Iterator[Bridged]:
    bridged = Bridged(net, encamp_environment, tmp_path)
    yield bridged
    bridged("kill-all")
    assert net.taps() == []


def test_machines_on_a_bridge_have_addresses_of_their_own(encamp_there: Bridged) -> None:
    seen = []
    for name in ("first", "second"):
        encamp_there("start", "--network", "bridge", "--name", name)
        record = encamp_there.record(name)
        assert record["template"], "both are clones"
        seen.append(
            [
                record["link"]["address"],
                *encamp_there.inside(name, "cat /sys/class/net/eth0/address; hostname -i"),
            ]
        )
    assert seen == [[ADDRESSES[at], MACS[at], ADDRESSES[at]] for at in range(2)]
    assert encamp_there.net.taps() == TAPS
    # They reach each other, and the host by the name that it was given.
    reached = f"ping -c 1 -w 30 {ADDRESSES[0]} >&2 && ping -c 1 -w 30 controller >&2 && echo yes"
    assert encamp_there.inside("second", reached) == ["yes"]
    assert encamp_there.inside("second", "ip route")[:3] == ["default", "via", HOST]
    # Nobody is left an address to take.
    refused = encamp_there("run", "--network", "bridge", "--", "true", check=False)
    assert refused.returncode == Code.NO_ROOM.value
    assert "All addresses of bridge wire0 (10.97.3.100-10.97.3.101/24) are taken." in refused.stderr
    encamp_there("rm", "--force", "first")
    assert encamp_there.net.taps() == TAPS[1:]
    again = encamp_there("run", "--network", "bridge", "--", "hostname", "-i")
    assert again.stdout.split() == ADDRESSES[:1]


def test_wire_of_a_machine_goes_with_its_process_whatever_ended_it(
    encamp_there: Bridged, site_home: Home
) -> None:
    encamp_there("start", "--network", "bridge", "--name", "victim")
    (pid,) = machine_processes(site_home)
    assert Path(f"/proc/{pid}").stat().st_uid != 0, "whoever has the wire is not root"
    os.kill(pid, signal.SIGKILL)
    # Nobody of ours has to clear it away.
    deadline = time.monotonic() + PATIENCE
    while encamp_there.net.taps() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert encamp_there.net.taps() == []


def test_suspended_machine_keeps_its_address(encamp_there: Bridged) -> None:
    encamp_there("start", "--network", "bridge", "--name", "sleeper")
    encamp_there("suspend", "sleeper")
    assert encamp_there.net.taps() == []
    other = encamp_there("run", "--network", "bridge", "--", "hostname", "-i")
    assert other.stdout.split() == ADDRESSES[1:], "an address that is kept is nobody else's"
    encamp_there("restore", "sleeper")
    assert encamp_there.net.taps() == TAPS[:1]
    reached = "hostname -i; ping -c 1 -w 30 controller >&2 && echo yes"
    assert encamp_there.inside("sleeper", reached) == [ADDRESSES[0], "yes"]


def test_host_without_a_bridge_says_so(encamp_there: Bridged) -> None:
    settings = encamp_there.site / "settings.yaml"
    settings.write_text(SETTINGS.replace("wire0", "nowhere0"))
    refused = encamp_there("run", "--network", "bridge", "--", "true", check=False)
    assert refused.returncode == Code.CONFIGURATION.value
    assert "bridge nowhere0: There is no such bridge." in refused.stderr
    settings.unlink()
    refused = encamp_there("run", "--network", "bridge", "--", "true", check=False)
    assert refused.returncode == Code.CONFIGURATION.value
    assert "This host has no bridge for machines." in refused.stderr
