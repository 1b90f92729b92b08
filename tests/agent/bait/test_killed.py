"""Everything that has to do with a job is killed, at every stage: the job is run again on the spot
where that is safe, else given back; it is never run twice to its end, never said to have
succeeded when it has not, and nothing of it is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from encamp.agent.bait.records import found
from encamp.model.batch_record import Outcome
from tests.agent.bait.hosting import Host, Person, Started

pytestmark = pytest.mark.site

CODE = 7
"""What the job ends with if it comes to its end."""

MAKING = ("os.mkdir", "/machines/")
"""It is about to make the machine's directory, before anything of the machine is there."""
ENDING = ("os.rename", "/machines/")
"""It is about to remove the machine's directory: the command has ended, and nobody was told."""


class Counted:
    """A job that tells how often it was begun and ended, and waits in between."""

    def __init__(self, host: Host, person: Person, name: str) -> None:
        self.host = host
        self.person = person
        self.begun = person.directory / f"{name}.begun"
        self.ended = person.directory / f"{name}.ended"
        self.gone = person.directory / f"{name}.gone"
        self.go = person.directory / f"{name}.go"
        self.ready = host.root / "people" / "go"
        """With this, machines of `patient` are ready."""

    def start(self, environment: str, *, watched: bool = False, **fields: object) -> Started:
        self.id = self.host.job(self.person, **fields)
        wait = f"while [ ! -e {self.go} ]; do sleep 0.02; done"
        # Somebody who outlives it, and sees that it is gone.
        watch = f"while [ -e /proc/$$ ]; do sleep 0.1; done; : >{self.gone}"
        watch = f"({watch}) </dev/null >/dev/null 2>&1 &" if watched else ":;"
        script = f"{watch} echo >>{self.begun}; {wait}; echo >>{self.ended}; exit {CODE}"
        return self.host.start(
            self.person, "/bin/sh", "-c", script, id=self.id, environment=environment
        )

    def times(self) -> tuple[int, int]:
        """How often it was begun, and ended."""
        return _size(self.begun), _size(self.ended)

    def wait_until_begun(self) -> None:
        self.host.wait_for("the job's beginning", lambda: _size(self.begun))


@pytest.fixture
def counted(host: Host, alice: Person, request: pytest.FixtureRequest) -> Iterator[Counted]:
    name = "".join(one for one in request.node.name if one.isalnum())
    job = Counted(host, alice, name)
    yield job
    job.ready.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def kill(host: Host, job: Started, victim: str) -> None:
    """The one victim, as the kernel would when it needs memory."""
    match victim:
        case "agent":
            host.kill_agent()
            return
        case "carrier":
            pids = host.carriers()
        case "worker":
            pids = host.workers()
        case "machine":
            pids = host.machines()
        case _:
            pids = [job.starter]
    assert len(pids) == 1, (victim, pids)
    os.kill(pids[0], signal.SIGKILL)


def go_on(host: Host, stopped: int = 0) -> None:
    """With an agent, and the process that was stopped."""
    with suppress(ProcessLookupError):
        if stopped:
            os.kill(stopped, signal.SIGCONT)
    if host.agent is not None and host.agent.poll() is not None:
        host.start_agent()


# ── before its machine is there ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("victim", ["agent", "carrier", "worker"])
def test_job_without_machine_is_run_all_the_same(host: Host, counted: Counted, victim: str) -> None:
    counted.go.touch()
    with host.halting(*MAKING):
        job = counted.start("mini")
        stopped = host.halted()
    kill(host, job, victim)
    go_on(host, stopped)
    assert job.end().returncode == CODE, host.said()
    assert counted.times() == (1, 1)
    assert host.returned(counted.id) == []


# ── before it has begun ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("victim", ["agent", "carrier", "worker", "machine"])
def test_job_that_has_not_begun_is_run_all_the_same(
    host: Host, counted: Counted, victim: str
) -> None:
    job = counted.start("patient")
    host.wait_for("a machine that is not ready", lambda: _is_tested(host))
    kill(host, job, victim)
    go_on(host)
    counted.ready.touch()
    counted.go.touch()
    assert job.end().returncode == CODE, host.said()
    assert counted.times() == (1, 1)
    assert host.returned(counted.id) == []


def _is_tested(host: Host) -> bool:
    """There is a machine, and it is waited for."""
    records = [path.read_text() for path in host.home.owners.glob("*/machines/*/machine.json")]
    return any("tested until it is ready" in record for record in records)


# ── after that ───────────────────────────────────────────────────────────────────────────────────


def test_job_goes_on_without_the_agent(host: Host, counted: Counted) -> None:
    job = counted.start("mini")
    counted.wait_until_begun()
    host.kill_agent()
    counted.go.touch()
    assert job.end().returncode == CODE
    assert counted.times() == (1, 1)
    host.start_agent()


@pytest.mark.parametrize("victim", ["carrier", "worker", "machine"])
def test_job_that_is_lost_goes_back_to_its_batch_system(
    host: Host, counted: Counted, victim: str
) -> None:
    job = counted.start("mini")
    counted.wait_until_begun()
    kill(host, job, victim)
    done = job.end()
    assert done.returncode == 99, (done, host.said())
    assert b"queued again" in done.stderr
    (back,) = host.returned(counted.id)
    assert (back.hold, counted.times()) == (False, (1, 0))
    assert "lost" in back.reason


def test_job_that_is_lost_with_the_agent_goes_back(host: Host, counted: Counted) -> None:
    job = counted.start("mini")
    counted.wait_until_begun()
    host.kill_agent()
    kill(host, job, "carrier")
    host.start_agent()
    assert job.end().returncode == 99
    assert (len(host.returned(counted.id)), counted.times()) == (1, (1, 0))


@pytest.mark.parametrize("victim", ["carrier", "worker"])
@pytest.mark.parametrize("taken", [False, True], ids=["a new machine", "one that was idle"])
def test_lost_job_does_not_go_on_in_a_machine_that_could_have_stayed(
    host: Host, alice: Person, counted: Counted, victim: str, taken: bool
) -> None:
    """Nobody would hear how it ended, and it is begun again."""
    if taken:
        assert host.run(alice, "/bin/true", environment="again").returncode == 0
        assert len(host.machines()) == 1
    job = counted.start("again")
    counted.wait_until_begun()
    assert len(host.machines()) == 1
    host.kill_agent()
    kill(host, job, victim)
    host.wait_for("the end of its machine", lambda: host.machines() == [])
    counted.go.touch()
    host.start_agent()
    assert job.end().returncode == 99, host.said()
    assert (len(host.returned(counted.id)), counted.times()) == (1, (1, 0))
    host.nothing_left()


def test_lost_job_that_may_not_be_begun_again_fails(host: Host, counted: Counted) -> None:
    job = counted.start("mini", requeue=False)
    counted.wait_until_begun()
    kill(host, job, "machine")
    done = job.end()
    assert done.returncode not in (0, 99, 100)
    assert b"may not be begun a second time" in done.stderr
    assert (host.returned(counted.id), counted.times()) == ([], (1, 0))


def test_job_that_is_lost_again_and_again_is_held(host: Host, counted: Counted) -> None:
    job = counted.start("mini", restarts=3)
    counted.wait_until_begun()
    kill(host, job, "machine")
    assert job.end().returncode == 100
    assert [back.hold for back in host.returned(counted.id)] == [True]


# ── at its end ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("victim", ["agent", "carrier", "worker"])
def test_job_that_has_ended_is_not_run_again(host: Host, counted: Counted, victim: str) -> None:
    job = counted.start("mini")
    counted.wait_until_begun()
    with host.halting(*ENDING):
        counted.go.touch()
        stopped = host.halted()
    kill(host, job, victim)
    go_on(host, stopped)
    assert job.end().returncode == CODE, host.said()
    assert counted.times() == (1, 1)
    assert host.returned(counted.id) == []
    host.nothing_left()
    (record,) = found(host.home, id=counted.id)
    assert (record.outcome, record.exit_code, record.reason) == (Outcome.DONE, CODE, "")


# ── its starter ──────────────────────────────────────────────────────────────────────────────────


def test_nobody_keeps_room_for_a_job_that_is_over(host: Host, counted: Counted) -> None:
    """What carries it out is its owner's, who can stop it."""
    job = counted.start("mini")
    counted.wait_until_begun()
    (worker,) = host.workers()
    os.kill(worker, signal.SIGSTOP)
    kill(host, job, "starter")
    assert job.end().returncode == -signal.SIGKILL
    host.nothing_left()


def test_job_that_ended_before_its_starter_was_killed_is_done(host: Host, counted: Counted) -> None:
    """Which the machine alone knew then."""
    job = counted.start("mini", watched=True)
    counted.wait_until_begun()
    (worker,) = host.workers()
    os.kill(worker, signal.SIGSTOP)
    counted.go.touch()
    host.wait_for("its end", counted.gone.exists)
    assert counted.times() == (1, 1)
    kill(host, job, "starter")
    os.kill(worker, signal.SIGCONT)
    assert job.end().returncode == -signal.SIGKILL
    host.nothing_left()
    (record,) = found(host.home, id=counted.id)
    assert (record.outcome, record.exit_code) == (Outcome.DONE, CODE)
    assert (host.returned(counted.id), counted.times()) == ([], (1, 1))


@pytest.mark.parametrize("known", [True, False])
def test_end_of_a_killed_starter_is_not_kept_for_longer_than_it_takes_to_decide(
    host: Host, counted: Counted, known: bool
) -> None:
    """Whoever keeps it back learns that, also of a job which its batch system has forgotten."""
    script = counted.person.directory / f"{known}.sh"
    line = f"echo >>{counted.begun}; sleep 600"
    script.write_text(f"#!{host.starter} pbs:mini\n#!/bin/sh\n{line}\n")
    script.chmod(0o755)
    id = host.job(counted.person)
    job = host.start(counted.person, id=id, program=(script,))
    counted.wait_until_begun()
    assert any("encamp-guard" in each.name() for each in psutil.Process(job.starter).children())
    if not known:
        (host.notes / f"{id}.forgotten").touch()
    kill(host, job, "starter")
    assert job.end().returncode == -signal.SIGKILL
    host.nothing_left()
    (record,) = found(host.home, id=id)
    assert record.outcome is Outcome.KILLED


def test_end_of_a_killed_starter_is_kept_while_only_odd_things_are_said_of_its_job(
    host: Host, counted: Counted
) -> None:
    """What the batch system says of it is needed to tell whether it may come back."""
    script = counted.person.directory / "odd.sh"
    script.write_text(f"#!{host.starter} pbs:mini\n#!/bin/sh\necho >>{counted.begun}; sleep 600\n")
    script.chmod(0o755)
    id = host.job(counted.person)
    job = host.start(counted.person, id=id, program=(script,))
    counted.wait_until_begun()
    odd = host.notes / f"{id}.odd"
    odd.touch()
    before = len(host.said())
    kill(host, job, "starter")
    host.wait_for("an odd answer", lambda: "what nobody can read" in host.said()[before:])
    assert job.process.poll() is None
    odd.unlink()
    assert job.end().returncode == -signal.SIGKILL


@pytest.mark.parametrize("stage", ["making", "waiting", "running", "ending"])
def test_nothing_is_left_when_the_starter_is_killed(
    host: Host, counted: Counted, stage: str
) -> None:
    stopped = 0
    if stage == "making":
        with host.halting(*MAKING):
            job = counted.start("mini")
            stopped = host.halted()
    elif stage == "waiting":
        job = counted.start("patient")
        host.wait_for("a machine that is not ready", lambda: _is_tested(host))
    else:
        job = counted.start("mini")
        counted.wait_until_begun()
        if stage == "ending":
            with host.halting(*ENDING):
                counted.go.touch()
                stopped = host.halted()
    kill(host, job, "starter")
    go_on(host, stopped)
    assert job.end().returncode == -signal.SIGKILL
    host.nothing_left()
    assert counted.times()[0] <= 1
