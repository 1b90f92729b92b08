"""A machine is where its job is: in the control groups that its batch system has made for the job,
which measure, limit and kill it there."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from encamp.agent.bait import grouping
from encamp.agent.bait.choosing import control_groups
from encamp.agent.bait.grouping import Groups
from encamp.machines.standing import Standing
from encamp.model.size import MIB
from tests.agent.bait.hosting import Host, Person, Started, wait_for

pytestmark = pytest.mark.site

MOUNTED = Path("/sys/fs/cgroup")
KINDS = ("memory", "freezer")


class Group:
    """A control group of a batch system's, in two hierarchies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paths = [MOUNTED / kind / name for kind in KINDS]

    @property
    def variables(self) -> dict[str, str]:
        return {"SHEPHERD_GROUPS": ":".join(map(str, self.paths))}

    def members(self) -> list[set[int]]:
        return [set(map(int, (path / "cgroup.procs").read_text().split())) for path in self.paths]

    def holds(self, pid: int) -> bool:
        found = dict(control_groups(pid))
        return all(found[kind] == f"/{self.name}" for kind in KINDS)


@pytest.fixture
def group(host: Host) -> Iterator[Group]:
    made = Group(f"encamp-test-{secrets.token_hex(4)}")
    try:
        for path in made.paths:
            path.mkdir()
            assert (path / "cgroup.procs").exists()
    except (OSError, AssertionError):
        pytest.skip("this host has no control groups that a test can make")
    yield made
    host.end_jobs()
    # As a batch system does: with something in it, this is refused.
    for path in made.paths:
        wait_for("an empty control group", lambda path=path: _removed(path))  # type: ignore[misc]


def _removed(path: Path) -> bool:
    with suppress(OSError):
        path.rmdir()
        return True
    return False


def waiting(
    host: Host, person: Person, group: Group, environment: str, **fields: object
) -> Started:
    """A job that has begun, and waits for a line."""
    return host.start(
        person,
        *("/bin/sh", "-c", "grep MemTotal /proc/meminfo; read line; exit 4"),
        id=host.job(person, **fields),
        environment=environment,
        variables=group.variables,
        stdin=-1,
    )


def said(job: Started) -> bytes:
    assert job.process.stdout is not None
    return job.process.stdout.readline()


def test_machine_is_in_its_jobs_groups_and_within_their_limits(
    host: Host, alice: Person, group: Group
) -> None:
    (group.paths[0] / "memory.limit_in_bytes").write_text(str(320 * MIB))
    job = waiting(host, alice, group, "mini", memory=320 * MIB)
    memory = int(said(job).split()[1]) * 1024
    (machine,) = host.machines()
    assert group.holds(machine)
    # What the process needs beside the guest's memory fits below the limit, too.
    assert 150 * MIB < memory < (320 - 48) * MIB
    job.process.communicate(b"go\n", timeout=90)
    assert job.process.returncode == 4


def test_batch_system_that_kills_the_group_kills_the_machine(
    host: Host, alice: Person, group: Group
) -> None:
    job = waiting(host, alice, group, "mini")
    said(job)
    for pid in group.members()[1]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert job.end().returncode == -signal.SIGKILL
    host.nothing_left()


def test_process_that_is_just_becoming_a_machine_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two programs the kernel shows neither."""
    pid, owner = os.getpid(), 1234
    machine = Standing(pid=pid, owner=owner, name="m", cpus=1, memory=1, used=1, overhead=1)
    looks = iter([[], [], [machine]])
    monkeypatch.setattr(grouping, "standing", lambda: next(looks))
    assert Groups(pid, owner)._is_machine(pid)
    monkeypatch.setattr(grouping, "BECOMING", 0.0)
    monkeypatch.setattr(grouping, "standing", lambda: [machine])
    assert not Groups(pid, owner + 1)._is_machine(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signal_for_all_of_the_group_reaches_the_job_and_ends_no_machine(
    host: Host, alice: Person, group: Group, number: signal.Signals
) -> None:
    """As batch systems send it: to each process that they find there."""
    name = number.name.removeprefix("SIG")
    job = host.start(
        alice,
        *("/bin/sh", "-c", f"trap 'echo caught; exit 6' {name}; echo up; while :; do :; done"),
        variables=group.variables,
    )
    assert said(job) == b"up\n"
    (machine,) = host.machines()
    members = group.members()[1]
    assert {job.starter, machine} <= members
    assert members.isdisjoint((*host.carriers(), *host.workers()))
    for pid in members:
        os.kill(pid, number)
    done = job.end()
    assert (done.stdout, done.returncode) == (b"caught\n", 6), done


def test_idle_machine_has_left_the_groups_and_the_next_job_takes_it_into_its_own(
    host: Host, alice: Person, group: Group
) -> None:
    first = waiting(host, alice, group, "again")
    said(first)
    (machine,) = host.machines()
    assert group.holds(machine)
    first.process.communicate(b"go\n", timeout=90)
    assert (host.machines(), group.holds(machine)) == ([machine], False)
    second = waiting(host, alice, group, "again")
    said(second)
    assert (host.machines(), group.holds(machine)) == ([machine], True)
    second.process.communicate(b"go\n", timeout=90)
    assert not group.holds(machine)
    os.kill(machine, signal.SIGKILL)
