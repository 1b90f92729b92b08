"""Signals to a job reach those of its processes in the machine that they would have reached
without one."""

from __future__ import annotations

import os
import signal

import pytest

from tests.agent.bait.hosting import Host, Person

pytestmark = pytest.mark.site

SCRIPT = """
    trap 'echo first USR1 >>{log}' USR1
    trap 'echo first USR2 >>{log}' USR2
    (
        trap 'echo child USR1 >>{log}' USR1
        trap 'echo child USR2 >>{log}' USR2
        echo ready >>{log}
        while :; do sleep 0.02; done
    ) &
    while :; do wait; done
"""


def test_a_signal_to_the_first_process_alone_is_not_one_to_all(host: Host, alice: Person) -> None:
    log = alice.directory / "signals"
    log.touch()
    os.chown(log, alice.uid, alice.gid)

    def said() -> list[str]:
        return sorted(log.read_text().splitlines())

    def waits_for(*lines: str) -> None:
        host.wait_for(f"{lines}", lambda: said() == sorted(lines))

    job = host.start(alice, "/bin/sh", "-c", SCRIPT.format(log=log))
    waits_for("ready")
    job.signal(signal.SIGUSR1)
    waits_for("ready", "first USR1")
    os.killpg(job.starter, signal.SIGUSR2)
    waits_for("ready", "first USR1", "first USR2", "child USR2")
    os.killpg(job.starter, signal.SIGTERM)
    assert job.end().returncode == -signal.SIGTERM
