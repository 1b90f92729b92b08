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


STRICT = "tries: 3\nfailures: 3\npause: 100s\nrestarts: 99\n"
"""A host that soon leaves alone what fails, and for long. Jobs wait for a second of that."""


@pytest.fixture(scope="module", autouse=True)
def strict(camp: tuple[Host, list[Person]]) -> Iterator[None]:
    host, _ = camp
    with host.described(STRICT):
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
    with host.described(STRICT):
        before = len(host.said())
        assert host.run(alice, "/bin/true", environment="broken").returncode == AGAIN
        host.wait_for("the agent's trial", lambda: "Nor does the agent" in host.said()[before:])
        id = host.job(bob)
        assert host.run(bob, "/bin/true", id=id, environment="broken").returncode == AGAIN
        assert "left alone" in host.returned(id)[0].reason
        host.wait_for("a closed bait", lambda: not is_open(host))


def test_job_waits_out_the_rest_of_a_pause_on_a_host_that_takes_others(
    host: Host, alice: Person
) -> None:
    with host.described("tries: 1\nfailures: 1\npause: 6s\nrestarts: 0\n"):
        assert host.run(alice, "/bin/true", environment="broken").returncode != 0
        assert host.run(alice, "/bin/true").returncode == 0
        described = host.configuration / "environments.yaml"
        text = described.read_text()
        before = len(host.said())
        try:
            described.write_text(text.replace("exit 3", "exit 0"))
            assert host.run(alice, "/bin/true", environment="broken").returncode == 0
        finally:
            described.write_text(text)
        assert "is queued again" not in host.said()[before:]


def test_mistake_in_the_descriptions_of_a_host_is_no_fault_of_its_jobs(
    host: Host, alice: Person, bob: Person
) -> None:
    described = host.configuration / "environments.yaml"
    text = described.read_text()
    with host.described(STRICT):
        try:
            described.write_text(f"{text}\nextra: {{extends: mini, descripton: new}}\n")
            for person in (alice, bob):
                id = host.job(person)
                done = host.run(person, "/bin/true", id=id, environment="patient")
                assert done.returncode == AGAIN
                assert "environments.yaml:" in host.returned(id)[0].reason
            host.wait_for("a closed bait", lambda: not is_open(host))
        finally:
            described.write_text(text)


def test_image_that_was_missing_for_a_while_is_nobodys_fault(
    host: Host, alice: Person, bob: Person
) -> None:
    environments = host.configuration / "environments.yaml"
    settings = host.configuration / "settings.yaml"
    text = environments.read_text()
    try:
        with host.described("failures: 1\npause: 30s\n"):
            before = len(host.said())
            settings.write_text("repositories: ['http://127.0.0.1:1/']\n")
            environments.write_text(f"{text}\nrestored: {{extends: mini, image: 'nowhere:1'}}\n")
            assert host.run(alice, "/bin/true", environment="restored").returncode == AGAIN
            id = host.job(bob)
            assert host.run(bob, "/bin/true", id=id, environment="restored").returncode == AGAIN
            assert "has failed once on this host" in host.returned(id)[0].reason
            environments.write_text(f"{text}\nrestored: {{extends: mini}}\n")
            host.wait_for("a trial", lambda: "'restored' is all right" in host.said()[before:])
            assert host.run(alice, "/bin/true", environment="restored").returncode == 0
    finally:
        settings.unlink(missing_ok=True)
        environments.write_text(text)
