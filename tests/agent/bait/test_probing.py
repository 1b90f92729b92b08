"""What a user does to machines of his own is nobody else's affair."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from encamp.agent.bait.watching import read_told
from encamp.model.batch import BaitState
from tests.agent.bait.hosting import Host, Person

pytestmark = pytest.mark.site

AGAIN = 99
"""Exit code of what was given back, in this batch system."""


@pytest.fixture(scope="module", autouse=True)
def strict(camp: tuple[Host, list[Person]]) -> Iterator[None]:
    """A host that soon leaves alone what fails, and for long."""
    host, _ = camp
    with host.described("tries: 3\nfailures: 3\npause: 3600s\n"):
        yield


@contextmanager
def killing(host: Host, person: Person) -> Iterator[None]:
    """Whatever machine that person has is killed at once."""
    stopped = threading.Event()

    def kill() -> None:
        while not stopped.wait(0.005):
            for pid in host.machines():
                with suppress(OSError):
                    if Path(f"/proc/{pid}").stat().st_uid == person.uid:
                        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def is_open(host: Host) -> bool:
    told = read_told(host.home)
    return told is not None and told.state is BaitState.OPEN


def test_user_who_kills_his_machines_harms_nobody_else(
    host: Host, alice: Person, bob: Person
) -> None:
    host.wait_for("an open bait", lambda: is_open(host))
    before = len(host.said())
    go = host.root / "people" / "go"
    try:
        with killing(host, alice):
            assert host.run(alice, "/bin/true", environment="patient").returncode == AGAIN
        # With this, machines of that environment are ready: until then they were killed.
        go.touch()
        host.wait_for("the agent's trial", lambda: "'patient' is all right" in host.said()[before:])
        done = host.run(bob, "/bin/sh", "-c", "exit 6", environment="patient")
        assert done.returncode == 6
        id = host.job(alice)
        assert host.run(alice, "/bin/true", id=id, environment="patient").returncode == AGAIN
        assert "where others do" in host.returned(id)[0].reason
        assert host.run(alice, "/bin/true").returncode == 0
    finally:
        go.unlink(missing_ok=True)
    assert is_open(host)
    assert "The bait is closed" not in host.said()[before:]


def test_environment_that_fails_for_the_agent_too_is_left_alone_by_all(
    host: Host, alice: Person, bob: Person
) -> None:
    before = len(host.said())
    assert host.run(alice, "/bin/true", environment="broken").returncode == AGAIN
    host.wait_for("the agent's trial", lambda: "Nor does the agent" in host.said()[before:])
    id = host.job(bob)
    assert host.run(bob, "/bin/true", id=id, environment="broken").returncode == AGAIN
    assert "left alone" in host.returned(id)[0].reason
    host.wait_for("a closed bait", lambda: not is_open(host))
