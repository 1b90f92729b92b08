"""Tasks of a job's steps on the host of its script: they run in the script's machine, each as it
would have in one of its own, and neither ends the other but with the machine itself."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from encamp.agent.bait.records import found
from encamp.batch.ancestors import parent_of
from encamp.machines.hardware import PORTS
from encamp.model.batch_record import Outcome
from tests.agent.bait.hosting import OPEN_FILES, UMASK, Host, Person, Started
from tests.agent.bait.notebook import COUNT, NUMBER, STEP

pytestmark = pytest.mark.site

LOST = 72


class Job:
    """One whose script is in a machine, and waits to be told to end."""

    def __init__(self, host: Host, person: Person, environment: str, **fields: Any) -> None:
        self.host = host
        self.person = person
        self.environment = environment
        self.id = host.job(person, **fields)
        self.go = person.directory / f"{self.id}.go"
        wait = f"while [ ! -e {self.go} ]; do sleep 0.05; done"
        self.script = host.start(
            person,
            *("/bin/sh", "-c", f"echo $ENCAMP_MACHINE; {wait}; cat /tmp/from-a-task; exit 4"),
            id=self.id,
            environment=environment,
        )
        self.machine = line(self.script)

    def start(self, script: str, *, step: str = "0", number: int = 0, **more: Any) -> Started:
        """A task of one of its steps."""
        more.setdefault("environment", self.environment)
        own = {STEP: step, NUMBER: str(number)}
        more["variables"] = {**own, **more.get("variables", {})}
        return self.host.start(self.person, "/bin/sh", "-c", script, id=self.id, **more)

    def run(self, script: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self.start(script, **more).end()

    def end(self) -> subprocess.CompletedProcess[bytes]:
        self.go.touch()
        return self.script.end()

    def outcomes(self) -> list[Outcome]:
        return [record.outcome for record in found(self.host.home, id=self.id)]


def line(started: Started) -> str:
    assert started.process.stdout is not None
    return str(started.process.stdout.readline().decode().strip())


@pytest.fixture
def job(host: Host, alice: Person) -> Job:
    return Job(host, alice, "mini", cpus=1)


def test_task_runs_in_the_machine_of_its_jobs_script(job: Job) -> None:
    place = job.person.directory / "elsewhere"
    place.mkdir()
    os.chown(place, job.person.uid, job.person.gid)
    task = job.start(
        "echo $ENCAMP_MACHINE; pwd; umask; ulimit -Sn; echo $WORD; cat; "
        "echo met >/tmp/from-a-task; echo bad >&2; exit 5",
        directory=place,
        variables={"WORD": "its own"},
        stdin=subprocess.PIPE,
    )
    out, err = task.process.communicate(b"what it reads\n", timeout=90)
    assert (task.process.returncode, err) == (5, b"bad\n")
    own = [job.machine, str(place), f"{UMASK:04o}", str(OPEN_FILES[0]), "its own", "what it reads"]
    assert out.decode().splitlines() == own
    assert len(job.host.machines()) == 1
    ended = job.end()
    assert (ended.returncode, ended.stdout) == (4, b"met\n")
    job.host.nothing_left()
    assert job.outcomes() == [Outcome.DONE, Outcome.DONE]


def test_task_is_told_that_its_directory_is_not_in_the_machine(job: Job) -> None:
    place = job.host.root / "elsewhere"
    place.mkdir()
    done = job.run("pwd", directory=place)
    assert (done.returncode, done.stdout) == (0, b"/\n")
    assert f"{place} cannot be entered".encode() in done.stderr
    assert job.end().returncode == 4


def test_mistake_in_the_descriptions_of_a_host_fails_a_task_and_not_its_job(
    host: Host, alice: Person
) -> None:
    described = host.configuration / "environments.yaml"
    text = described.read_text()
    mistaken = f"{text}\nplain: {{extends: mini, descripton: new}}\n"
    with host.described("tries: 1\n"):
        try:
            described.write_text(f"{text}\nplain: {{extends: mini}}\n")
            job = Job(host, alice, "plain", cpus=1)
            described.write_text(mistaken)
            done = job.run("true")
            described.write_text(f"{text}\nplain: {{extends: mini}}\n")
            again = job.run("exit 5", step="1")
        finally:
            described.write_text(text)
        assert done.returncode == LOST
        assert b"environments.yaml" in done.stderr
        assert again.returncode == 5
        assert job.end().returncode == 4
        assert host.returned(job.id) == []


def test_task_that_is_ended_leaves_the_script_alone(job: Job) -> None:
    told = job.start("trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.02; done")
    killed = job.start("echo $$ >/tmp/killed; echo ready; sleep 1000", step="1")
    assert (line(told), line(killed)) == ("ready", "ready")
    told.signal(signal.SIGUSR1)
    ended = told.end()
    assert (ended.returncode, ended.stdout) == (9, b"caught\n")
    killed.signal(signal.SIGKILL)
    assert killed.end().returncode == -signal.SIGKILL
    # Nothing of it goes on in the machine either.
    gone = job.run("read pid </tmp/killed; while kill -0 $pid; do sleep 0.1; done", step="2")
    assert gone.returncode == 0
    assert job.end().returncode == 4


def test_task_that_is_stopped_stands_still_alone(job: Job) -> None:
    beats = job.person.directory / "beats"
    beats.unlink(missing_ok=True)
    task = job.start(f"while :; do echo >>{beats}; sleep 0.05; done")
    job.host.wait_for("a beat", beats.exists)
    task.signal(signal.SIGSTOP)

    def is_still() -> bool:
        before = beats.stat().st_size
        # Asked of the machine, which goes on: time passes there, too.
        assert job.run("sleep 0.5; exit 3", step="1").returncode == 3
        return beats.stat().st_size == before

    job.host.wait_for("a task that stands still", is_still)
    seen = beats.stat().st_size
    task.signal(signal.SIGCONT)
    job.host.wait_for("another beat", lambda: beats.stat().st_size > seen)
    task.signal(signal.SIGTERM)
    assert task.end().returncode == -signal.SIGTERM
    assert job.end().returncode == 4


def test_task_is_lost_with_the_machine_and_the_job_given_back_once(job: Job) -> None:
    begun = job.person.directory / "begun"
    task = job.start(f"echo >>{begun}; echo ready; sleep 1000")
    assert line(task) == "ready"
    (machine,) = job.host.machines()
    os.kill(machine, signal.SIGKILL)
    ended = task.end()
    assert (ended.returncode, begun.stat().st_size) == (LOST, 1), ended
    assert b"was lost" in ended.stderr
    assert job.script.end().returncode == 99
    assert len(job.host.returned(job.id)) == 1
    begun.unlink()


def test_task_ends_when_the_script_of_its_job_does(job: Job) -> None:
    task = job.start("echo ready; sleep 1000")
    assert line(task) == "ready"
    assert job.end().returncode == 4
    ended = task.end()
    assert ended.returncode == LOST, ended
    assert b"what the machine was made for has ended" in ended.stderr
    assert job.host.returned(job.id) == []
    job.host.nothing_left()
    assert sorted(one.value for one in job.outcomes()) == ["done", "failed"]


def test_task_whose_carrier_is_killed_is_lost_alone(job: Job) -> None:
    script = job.host.carriers()
    task = job.start("echo ready; sleep 1000")
    assert line(task) == "ready"
    (carrier,) = set(job.host.carriers()) - set(script)
    os.kill(carrier, signal.SIGKILL)
    assert task.end().returncode == LOST
    assert job.host.returned(job.id) == []
    assert job.end().returncode == 4


def test_task_comes_to_another_agent_and_joins_nevertheless(job: Job) -> None:
    task = job.start("echo ready; read line; exit 8", stdin=subprocess.PIPE)
    assert line(task) == "ready"
    job.host.kill_agent()
    job.host.start_agent()
    assert job.run("echo $ENCAMP_MACHINE", step="1").stdout.decode().strip() == job.machine
    task.process.communicate(b"go on\n", timeout=90)
    assert task.process.returncode == 8
    assert job.end().returncode == 4


def test_many_tasks_run_at_a_time(job: Job) -> None:
    """More than a machine has channels: each begins, though none ends before all have begun."""
    count = PORTS + 1
    wait = f"while [ $(ls /tmp/met | wc -l) -lt {count} ]; do sleep 0.1; done"
    tasks = [
        job.start(f"mkdir -p /tmp/met/{number}; {wait}; exit {number}", number=number)
        for number in range(count)
    ]
    assert [task.end().returncode for task in tasks] == list(range(count))
    assert len(job.host.machines()) == 1
    assert job.end().returncode == 4


def test_what_a_task_reads_and_prints_is_complete(job: Job) -> None:
    data = os.urandom(3_000_000)
    task = job.start("cat", stdin=subprocess.PIPE)
    out, _ = task.process.communicate(data, timeout=90)
    assert (task.process.returncode, out == data) == (0, True)
    # One that nobody reads waits, and holds up nobody else.
    full = job.start("echo ready; yes", step="1")
    assert line(full) == "ready"
    assert job.run("head -c 1000000 /dev/zero | wc -c", step="2").stdout == b"1000000\n"
    full.signal(signal.SIGTERM)
    assert full.end().returncode == -signal.SIGTERM
    assert job.end().returncode == 4


def test_others_do_not_join(job: Job, bob: Person) -> None:
    """Another job of the same user, a task that wants another environment, another's task."""
    show = "echo $ENCAMP_MACHINE"
    other = job.host.run(
        job.person, *("/bin/sh", "-c", show), id=job.host.job(job.person), variables={STEP: "0"}
    )
    assert (other.returncode, other.stdout.decode().strip() != job.machine) == (0, True)
    refused = job.run(show, environment="again")
    assert b"as many machines on this host as processors" in refused.stderr
    forged = job.host.start(bob, *("/bin/sh", "-c", show), id=job.id, variables={STEP: "0"}).end()
    assert (forged.returncode, forged.stdout) == (77, b"")
    assert job.end().returncode == 4


def test_machine_with_a_task_in_it_is_not_left_to_the_next_job(host: Host, alice: Person) -> None:
    job = Job(host, alice, "again", cpus=1)
    task = job.start("echo ready; sleep 1000")
    assert line(task) == "ready"
    assert job.end().returncode == 4
    assert task.end().returncode == LOST
    host.nothing_left()


def test_idle_machine_can_be_joined_again(host: Host, alice: Person) -> None:
    first, words = Job(host, alice, "again", cpus=1), "echo $ENCAMP_MACHINE"
    assert first.run(words).stdout.decode().strip() == first.machine
    first.end()
    second = Job(host, alice, "again", cpus=1)
    assert second.machine == first.machine
    assert second.run(words).stdout.decode().strip() == first.machine
    second.end()
    (machine,) = host.machines()
    os.kill(machine, signal.SIGKILL)


# ── a script without a machine ───────────────────────────────────────────────────────────────────


class Step:
    """Of a job whose script has no machine here. Its tasks begin together."""

    def __init__(
        self, host: Host, person: Person, *scripts: str, environment: str = "mini"
    ) -> None:
        self.host = host
        self.id = host.job(person, cpus=1)
        self.tasks = [
            host.start(
                person,
                *("/bin/sh", "-c", script),
                id=self.id,
                environment=environment,
                variables={STEP: "0", NUMBER: str(number), COUNT: str(len(scripts))},
            )
            for number, script in enumerate(scripts)
        ]


def test_tasks_of_a_step_have_one_machine_until_the_last_has_ended(
    host: Host, alice: Person
) -> None:
    go = alice.directory / "step.go"
    go.unlink(missing_ok=True)
    show, wait = "echo $ENCAMP_MACHINE", f"while [ ! -e {go} ]; do sleep 0.05; done"
    step = Step(host, alice, f"{show}; exit 3", f"{show}; sleep 1000", f"{show}; {wait}; exit 5")
    first, killed, last = step.tasks
    (machine,) = {line(task) for task in step.tasks}
    assert first.end().returncode == 3
    killed.signal(signal.SIGKILL)
    assert killed.end().returncode == -signal.SIGKILL
    assert len(host.machines()) == 1
    go.touch()
    assert last.end().returncode == 5
    host.nothing_left()
    records = found(host.home, id=step.id)
    assert {record.machine for record in records} == {machine}
    assert sorted(record.exit_code for record in records if record.exit_code is not None) == [3, 5]
    assert host.returned(step.id) == []


def test_tasks_of_a_step_are_lost_with_their_machine(host: Host, alice: Person) -> None:
    step = Step(host, alice, *["echo ready; sleep 1000"] * 2)
    assert [line(task) for task in step.tasks] == ["ready"] * 2
    (machine,) = host.machines()
    os.kill(machine, signal.SIGKILL)
    assert [task.end().returncode for task in step.tasks] == [99, 99]


def test_tasks_of_a_step_are_lost_with_whoever_has_their_machine(host: Host, alice: Person) -> None:
    step = Step(host, alice, *["echo ready; sleep 1000"] * 2)
    assert [line(task) for task in step.tasks] == ["ready"] * 2
    (machine,) = host.machines()
    whose = parent_of(Path(f"/proc/{machine}"))
    assert whose in host.workers()
    os.kill(whose, signal.SIGKILL)
    assert [task.end().returncode for task in step.tasks] == [99, 99]
    host.nothing_left()


def test_step_whose_machine_does_not_come_up_is_tried_again(host: Host, alice: Person) -> None:
    ready, begun = host.root / "people" / "go", alice.directory / "step.begun"
    begun.unlink(missing_ok=True)
    step = Step(host, alice, *[f"echo >>{begun}; exit 6"] * 2, environment="patient")
    (machine,) = host.wait_for("a machine", host.machines)
    os.kill(machine, signal.SIGKILL)
    ready.touch()
    try:
        assert [task.end().returncode for task in step.tasks] == [6, 6]
    finally:
        ready.unlink()
    assert begun.stat().st_size == 2
    assert host.returned(step.id) == []


def test_machine_that_nobody_waits_for_any_more_is_not_made(host: Host, alice: Person) -> None:
    step = Step(host, alice, *["true"] * 2, environment="patient")
    host.wait_for("a machine", host.machines)
    for task in step.tasks:
        task.signal(signal.SIGKILL)
    # Nobody holds on to what they had open.
    assert [task.end().returncode for task in step.tasks] == [-signal.SIGKILL] * 2
    host.nothing_left()
