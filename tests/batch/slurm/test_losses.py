"""No job is lost, run twice to its end, or called a success that was none, whatever is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from encamp.batch.slurm import keeper
from encamp.batch.slurm.ancestry import step_of
from encamp.home import Home
from encamp.model.batch import BaitState
from encamp.model.batch_record import Outcome
from tests.batch.slurm.camping import Camp, a_camp
from tests.batch.slurm.private import User, root_only

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(900)]

MINI = "--comment=env:mini"
JOB = """#!/bin/sh
echo "begin ${SLURM_RESTART_COUNT:-0}" >> story
while [ ! -e go ]; do sleep 0.05; done
echo "end ${SLURM_RESTART_COUNT:-0}" >> story
exit 5
"""
"""Waits for a word, and ends in a way that nothing else does."""


@pytest.fixture(scope="module")
def shared(site_home: Home) -> Iterator[Camp]:
    settings = "restarts: 1\ntries: 1\nfailures: 2\npause: 1s\n"
    with a_camp(site_home, nodes=2, settings=settings) as camp:
        yield camp


@pytest.fixture
def camp(shared: Camp) -> Iterator[Camp]:
    yield shared
    for at, node in enumerate(shared.site.nodes):
        if not node.daemon.alive():
            node.start_daemon()
        if not shared.agents[at].alive():
            shared.start_agent(at)
    shared.site.wait_until_up()
    shared.clear()


@pytest.fixture
def user(camp: Camp) -> User:
    camp.users[0].write("job", JOB)
    return camp.users[0]


def story(user: User) -> list[str]:
    path = user.directory / "story"
    return path.read_text().splitlines() if path.exists() else []


def begun(camp: Camp, user: User, *words: str, count: int = 0) -> str:
    job = camp.submit(MINI, "-w", "n1", *words, "job")
    camp.wait_for_text(user.directory / "story", f"begin {count}\n")
    return job


def go(user: User) -> None:
    user.write("go", "")


def ends_well(camp: Camp, job: str, user: User, run: int = 0) -> None:
    """Its end is the job's own, and came once."""
    go(user)
    camp.done(job, "FAILED")
    assert camp.exit_code(job) == "5:0", camp.output(job)
    assert story(user)[-1] == f"end {run}"
    assert [line for line in story(user) if line.startswith("end")] == [f"end {run}"]


def starter_of(camp: Camp, job: str, name: str = "slurm_script") -> int:
    """The process that Slurm takes for the job; or another one beside it."""
    for pid in camp.site.members():
        with suppress(OSError):
            step = step_of(pid)
            program = Path(f"/proc/{pid}/exe").readlink().name
            called = Path(f"/proc/{pid}/comm").read_text().strip()
            if step and step.job == job and (program, called) == ("encamp-starter", name):
                return pid
    raise AssertionError(f"job {job} has no {name}")


def test_a_job_outlives_slurms_daemon_on_its_node(camp: Camp, user: User) -> None:
    job = begun(camp, user)
    node = camp.site.nodes[0]
    node.daemon.kill()
    node.start_daemon()
    ends_well(camp, job, user)


def test_a_job_that_may_begin_only_once_waits_for_a_machine_that_comes_up(
    camp: Camp, user: User
) -> None:
    """It is queued again, since it has not begun."""
    job = camp.submit("--comment=env:broken", "--no-requeue", "job")
    camp.wait_for("a held job", lambda: camp.slurm().standing(job).held)  # type: ignore[union-attr]
    assert camp.field(job, "Requeue") == "0"
    assert int(camp.field(job, "RestartCnt")) > 1
    assert story(user) == []


def test_a_job_whose_step_daemon_is_killed_runs_once_to_its_end(camp: Camp, user: User) -> None:
    """Slurm would begin it again some minutes later, and leave alone what runs."""
    job = begun(camp, user)
    (machine,) = camp.machines()
    starter = starter_of(camp, job)
    os.kill(int(Path(f"/proc/{starter}/stat").read_text().split()[3]), signal.SIGKILL)
    camp.wait_for("the end of its machine", lambda: machine not in camp.machines())
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    ends_well(camp, job, user, run=1)
    assert story(user) == ["begin 0", "begin 1", "end 1"]


def test_a_job_outlives_slurms_controller(camp: Camp, user: User) -> None:
    job = begun(camp, user)
    camp.site.slurmctld.stop()
    go(user)
    camp.wait_for_text(user.directory / "story", "end 0")
    camp.site.start_controller()
    camp.site.wait_until_up()
    ends_well(camp, job, user)


def test_a_job_outlives_the_agent_of_its_node(camp: Camp, user: User) -> None:
    job = begun(camp, user)
    camp.agents[0].kill()
    go(user)
    camp.done(job, "FAILED")
    camp.start_agent(0)
    ends_well(camp, job, user)


def test_a_job_waits_for_an_agent_that_is_not_there(camp: Camp, user: User) -> None:
    camp.agents[0].kill()
    job = camp.submit(MINI, "-w", "n1", "job")
    camp.wait_for_text(user.directory / f"slurm-{job}.out", "encamp: ")
    assert story(user) == []
    camp.start_agent(0)
    ends_well(camp, job, user)


def test_a_job_whose_machine_dies_is_given_back_and_runs_again(camp: Camp, user: User) -> None:
    job = begun(camp, user)
    (machine,) = camp.machines()
    os.kill(machine, signal.SIGKILL)
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    assert "; encamp: " in camp.field(job, "admin_comment")
    ends_well(camp, job, user, run=1)
    assert story(user) == ["begin 0", "begin 1", "end 1"]


def test_a_job_of_several_components_comes_back_as_a_whole(camp: Camp, user: User) -> None:
    """It is named in the first, with which it counts for all."""
    lines = f"#SBATCH {MINI} -w n1\n#SBATCH hetjob\n#SBATCH -w n2"
    user.write("job", JOB.replace("#!/bin/sh", f"#!/bin/sh\n{lines}"))
    job = camp.submit("job")
    camp.wait_for_text(user.directory / "story", "begin 0\n")
    (machine,) = camp.machines()
    os.kill(machine, signal.SIGKILL)
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    ends_well(camp, job, user, run=1)
    assert story(user) == ["begin 0", "begin 1", "end 1"]


def test_a_job_that_may_not_run_again_fails_with_a_sentence(camp: Camp, user: User) -> None:
    job = begun(camp, user, "--no-requeue")
    (machine,) = camp.machines()
    os.kill(machine, signal.SIGKILL)
    said = camp.done(job, "FAILED")
    assert "encamp: " in said
    assert camp.exit_code(job) not in ("0:0", "5:0")
    assert story(user) == ["begin 0"]


def test_a_job_whose_starter_is_killed_runs_again_and_is_held_after_a_bound(
    camp: Camp, user: User
) -> None:
    job = begun(camp, user)
    os.kill(starter_of(camp, job), signal.SIGKILL)
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    assert "; encamp: its starter was killed" in camp.field(job, "admin_comment")
    os.kill(starter_of(camp, job), signal.SIGKILL)
    camp.wait_for("a held job", lambda: camp.slurm().standing(job).held)  # type: ignore[union-attr]
    assert "its starter was killed" in camp.slurm().standing(job).reason  # type: ignore[union-attr]
    assert camp.settled(job).outcome is Outcome.HELD
    assert camp.records(job)[1].outcome is Outcome.GIVEN_BACK
    assert story(user) == ["begin 0", "begin 1"]


def test_a_job_whose_starter_was_killed_with_the_agent_runs_again(camp: Camp, user: User) -> None:
    job = begun(camp, user)
    starter = starter_of(camp, job)
    camp.agents[0].kill()
    os.kill(starter, signal.SIGKILL)
    camp.start_agent(0)
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    ends_well(camp, job, user, run=1)
    assert story(user) == ["begin 0", "begin 1", "end 1"]


def test_a_job_runs_again_though_slurm_has_seen_its_starters_end(camp: Camp, user: User) -> None:
    """If nobody is left to keep it from Slurm."""
    job = begun(camp, user)
    camp.agents[0].kill()
    guard, starter = starter_of(camp, job, "encamp-guard"), starter_of(camp, job)
    os.kill(starter, signal.SIGKILL)  # First: else it has another guard.
    os.kill(guard, signal.SIGKILL)
    camp.wait_for_state(job, "FAILED")
    camp.start_agent(0)
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    ends_well(camp, job, user, run=1)
    assert story(user) == ["begin 0", "begin 1", "end 1"]


@pytest.mark.parametrize("seconds", [0.08, 0.1, 0.12])
def test_a_job_runs_again_though_slurm_sees_its_starters_end_meanwhile(
    camp: Camp, user: User, seconds: float
) -> None:
    """Whoever keeps that from it is killed while the job is being queued again."""
    job = begun(camp, user)
    guard, starter = starter_of(camp, job, "encamp-guard"), starter_of(camp, job)
    os.kill(starter, signal.SIGKILL)
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(guard, signal.SIGKILL)
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    ends_well(camp, job, user, run=1)
    assert story(user) == ["begin 0", "begin 1", "end 1"]
    assert camp.settled(job).outcome is Outcome.DONE
    assert [record.outcome for record in camp.records(job)[1:]] == [Outcome.GIVEN_BACK]


def test_a_job_whose_starter_was_killed_before_any_agent_heard_of_it_runs(
    camp: Camp, user: User
) -> None:
    camp.agents[0].kill()
    job = camp.submit(MINI, "-w", "n1", "job")
    camp.wait_for_text(user.directory / f"slurm-{job}.out", "encamp: ")
    os.kill(starter_of(camp, job), signal.SIGKILL)
    camp.start_agent(0)
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    assert "; encamp: its starter was killed" in camp.field(job, "admin_comment")
    ends_well(camp, job, user, run=1)
    assert camp.settled(job).outcome is Outcome.DONE
    assert [one.outcome for one in camp.records(job)[1:]] == [Outcome.GIVEN_BACK]


def test_a_job_stays_as_it_is_if_it_may_not_run_again(camp: Camp, user: User) -> None:
    job = begun(camp, user, "--no-requeue")
    os.kill(starter_of(camp, job), signal.SIGKILL)
    camp.done(job, "FAILED")
    assert camp.exit_code(job) == "0:9"
    record = camp.settled(job)
    assert (record.outcome, camp.state(job)) == (Outcome.KILLED, "FAILED")
    assert "--no-requeue" in record.reason
    assert story(user) == ["begin 0"]


def test_a_cancelled_job_whose_starter_is_killed_does_not_come_back(camp: Camp, user: User) -> None:
    user.write("job", JOB.replace("\n", "\ntrap '' TERM\n", 1))
    job = begun(camp, user)
    starter = starter_of(camp, job)
    camp.run("scancel", job, user=user)
    os.kill(starter, signal.SIGKILL)
    record = camp.settled(job)
    assert record.outcome is Outcome.KILLED
    assert "CANCELLED" in record.reason
    assert camp.state(job) == "CANCELLED"
    assert story(user) == ["begin 0"]


def test_a_job_on_a_node_that_is_lost_runs_again_elsewhere(camp: Camp, user: User) -> None:
    job = camp.submit(MINI, "job")
    camp.wait_for_text(user.directory / "story", "begin 0\n")
    assert camp.field(job, "NodeList") == "n1"
    lost = Path(f"/proc/{camp.agents[0].pid}/ns/uts").readlink()
    for pid in keeper.members(str(camp.site.directory)):
        with suppress(OSError):
            if Path(f"/proc/{pid}/ns/uts").readlink() == lost:
                os.kill(pid, signal.SIGKILL)
    camp.run("scontrol", "update", "NodeName=n1", "State=down", "Reason=lost")
    camp.wait_for_state(job, "PENDING")
    camp.run("scontrol", "update", f"JobId={job}", "StartTime=now+1")
    camp.wait_for_text(user.directory / "story", "begin 1\n")
    assert camp.field(job, "NodeList") == "n2"
    ends_well(camp, job, user, run=1)
    assert story(user) == ["begin 0", "begin 1", "end 1"]
    assert camp.slurm().bait().state is BaitState.CLOSED


def test_a_job_for_a_broken_environment_is_held_after_a_bound(camp: Camp, user: User) -> None:
    job = camp.submit("--comment=env:broken", "job")
    camp.wait_for("a held job", lambda: camp.slurm().standing(job).held)  # type: ignore[union-attr]
    standing = camp.slurm().standing(job)
    assert standing is not None
    assert standing.reason
    assert "broken" in camp.field(job, "admin_comment")
    assert story(user) == []


def test_a_node_without_room_closes_itself_and_opens_again(camp: Camp, user: User) -> None:
    slurm = camp.slurm()
    camp.agents[0].stop()
    # A host whose agent has said goodbye takes no jobs for machines.
    assert slurm.bait().state is BaitState.FULL
    camp.require("1000T")
    camp.start_agent(0)
    camp.wait_for("a node that says why", lambda: "memory" in slurm.bait().reason)
    assert slurm.bait().state is BaitState.FULL
    go(user)
    job = camp.submit(MINI, "-w", "n1", "job")
    camp.wait_for("a job that waits", lambda: "ReqNode" in camp.field(job, "Reason"))
    camp.agents[0].stop()
    camp.require("0")
    camp.start_agent(0)
    ends_well(camp, job, user)
    assert slurm.bait().state is BaitState.OPEN


def test_a_node_that_an_administrator_has_closed_is_left_alone(camp: Camp, user: User) -> None:
    slurm = camp.slurm()
    camp.run("scontrol", "update", "NodeName=n1", "State=drain", "Reason=broken disk")
    camp.agents[0].stop()
    assert (slurm.bait().state, slurm.bait().reason) == (BaitState.CLOSED, "broken disk")
    camp.start_agent(0)
    camp.run("scontrol", "update", "NodeName=n1", "State=resume")
    job = begun(camp, user)
    camp.run("scontrol", "update", "NodeName=n1", "State=drain", "Reason=broken disk")
    ends_well(camp, job, user)
    assert (slurm.bait().state, slurm.bait().reason) == (BaitState.CLOSED, "broken disk")
