"""A private Grid Engine leaves the machine that it stands on as it was, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from encamp.batch.gridengine.site import GridEngineSite

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("gridengine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces"),
]

KEEPS = """
import sys, time
from pathlib import Path
from encamp.batch.gridengine.site import GridEngineSite
with GridEngineSite(Path(sys.argv[1]), hosts=1) as site:
    print([site.qmaster.pid, *(each.pid for each in site.execds.values())], flush=True)
    time.sleep(600)
"""
OUTSIDE = ("/var/lib/gridengine/default", "/var/spool/gridengine")


def seen_outside() -> object:
    """What a site would change if it were not for itself alone."""
    listed = [sorted(path.name for path in Path(each).iterdir()) for each in OUTSIDE]
    mounts = Path("/proc/self/mountinfo").read_text().count("gridengine")
    return listed, mounts, "encamp" in psutil.net_if_addrs(), socket.gethostname()


def test_site_is_gone_when_its_process_is_killed_and_stands_again(tmp_path: Path) -> None:
    before = seen_outside()
    directory = tmp_path / "site"
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPS, directory], stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdout is not None
    pids = [int(word) for word in keeper.stdout.readline().strip("[]\n").split(", ")]
    assert seen_outside() == before
    assert len(pids) == 2
    keeper.send_signal(signal.SIGKILL)
    keeper.wait()
    keeper.stdout.close()
    end = time.monotonic() + 60
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < end, "its daemons are still there"
        time.sleep(0.05)
    assert (directory / "cell").exists()
    with GridEngineSite(directory, hosts=1) as site:
        [host] = site.hosts
        assert host.run(["hostname"]).stdout == f"{host.name}\n"
        assert host.run(["ls", "-A", "/run/encamp"]).stdout == ""
        first = host.start(["sleep", "600"])
        assert seen_outside() == before
    assert not psutil.pid_exists(first.pid)
    assert list(directory.iterdir()) == []
    assert seen_outside() == before
