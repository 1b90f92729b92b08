"""What the adapter asks of a real Slurm about jobs, and does with them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from encamp.batch.slurm import queue
from encamp.batch.slurm.adapter import Slurm
from encamp.batch.slurm.names import ONCE
from encamp.batch.slurm.queue import Entry
from encamp.model.batch import BatchJob, Rule, Task
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB
from tests.batch.slurm.private import Cluster, User, private_cluster, root_only

pytestmark = [pytest.mark.site, root_only]

SLEEPER = "#!/bin/sh\necho $$ > pid.$SLURM_JOB_ID.$SLURMD_NODENAME\nexec sleep 1000\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with private_cluster(
        users=2,
        nodes=2,
        share_memory=True,
        partitions=("main", "vm"),
        features="intel,debian12",
        lines=("DefMemPerCPU=100",),
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    yield shared
    shared.clear()


@pytest.fixture
def user(cluster: Cluster) -> User:
    cluster.users[0].write("sleeper", SLEEPER)
    return cluster.users[0]


def begun(cluster: Cluster, job: str, user: User, node: str = "n1") -> int:
    """The process of a job that has begun."""
    return int(cluster.wait_for_text(user.directory / f"pid.{job}.{node}"))


# ── whose a process is ───────────────────────────────────────────────────────────────────────────


def test_a_process_is_known_by_its_job(cluster: Cluster, user: User) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    pid = begun(cluster, job, user)
    assert cluster.slurm().job_of(pid) == job
    assert cluster.slurm().job_of(os.getpid()) is None
    assert cluster.slurm().job_of(1) is None
    assert cluster.slurm().job_of(2**22 + 1) is None


def test_a_process_that_calls_itself_a_jobs_daemon_is_none(cluster: Cluster, user: User) -> None:
    """Neither a user's, nor another program of root's."""
    title = "slurmstepd: [1.batch]"
    for uid in (user.uid, 0):
        process = subprocess.Popen(["bash", "-c", f"exec -a '{title}' sleep 1000"], user=uid)
        shown = Path(f"/proc/{process.pid}/cmdline")
        try:
            cluster.wait_for_text(shown, title)
            assert cluster.slurm().job_of(process.pid) is None
        finally:
            process.kill()
            process.wait()


def test_each_task_of_a_step_is_told_apart(cluster: Cluster, user: User) -> None:
    user.write("tasks", "#!/bin/sh\nsrun -N1 -n2 ./task\n")
    user.write(
        "task",
        "#!/bin/sh\nenv > variables.$SLURM_LOCALID\n"
        "echo $$ > task.$SLURM_LOCALID\nexec sleep 1000\n",
    )
    job = cluster.submit("-w", "n1", "-n2", "tasks")
    slurm = cluster.slurm()
    for number in (0, 1):
        pid = int(cluster.wait_for_text(user.directory / f"task.{number}"))
        text = (user.directory / f"variables.{number}").read_text()
        variables = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        assert slurm.job_of(pid) == job
        task = slurm.task_of(pid, variables)
        assert (task.step, task.number, task.count) == ("0", number, 2)


# ── what a job was granted ───────────────────────────────────────────────────────────────────────


def test_a_job_is_described_as_slurm_knows_it(cluster: Cluster, user: User) -> None:
    job = cluster.submit(
        *("-p", "vm", "-c2", "--mem=300", "-J", "a name", "-A", "an account", "--no-requeue"),
        *("-w", "n1", "sleeper"),
    )
    begun(cluster, job, user)
    found = cluster.slurm().describe(job)
    assert (found.system, found.id, found.uid) == ("slurm", job, user.uid)
    assert (found.name, found.queue, found.account) == ("a name", "vm", "an account")
    assert (found.cpus, found.memory) == (2, 300 * MIB)
    assert (found.restarts, found.requeue, found.hosts) == (0, False, ("n1",))


def test_what_users_write_is_not_believed(cluster: Cluster, user: User) -> None:
    lies = (
        "x UserId=root(0) GroupId=root(0) Account=a QOS=b JOB_GRES=(null)   Nodes=n1 CPU_IDs=0-63"
    )
    name = f"{lies} Mem=99999 GRES=\nJobId=1 JobName=x"
    job = cluster.submit("-N2", "-J", name, f"--comment={lies}", "-A", lies, "sleeper")
    begun(cluster, job, user)
    found = cluster.slurm().describe(job)
    assert (found.uid, found.name, found.account) == (user.uid, name, lies.lower())
    assert (found.cpus, found.memory) == (1, 100 * MIB)


def test_of_a_job_on_several_nodes_this_ones_share_counts(cluster: Cluster, user: User) -> None:
    filler = cluster.submit("-w", "n1", "--mem=50", "sleeper")
    begun(cluster, filler, user)
    job = cluster.submit("-N2", "-n3", "--mem-per-cpu=70", "sleeper")
    begun(cluster, job, user)
    first, second = (cluster.slurm(node).describe(job) for node in (0, 1))
    assert (first.cpus, first.memory) == (1, 70 * MIB)
    assert (second.cpus, second.memory) == (2, 140 * MIB)
    assert first.hosts == second.hosts == ("n1", "n2")


def test_tasks_of_an_array_are_called_as_users_call_them(cluster: Cluster, user: User) -> None:
    array = cluster.submit("-a", "3-9:3", "sleeper")
    slurm = cluster.slurm()
    cluster.wait_for(
        "its tasks", lambda: cluster.run("squeue", "-h", "-t", "R", "-r").count("\n") == 3
    )
    lines = cluster.run("squeue", "-h", "-o", "%A %F_%K %N").splitlines()
    for number, name, node in (line.split() for line in lines):
        pid = begun(cluster, number, user, node)
        assert slurm.job_of(pid) == number
        assert cluster.slurm(int(node[1]) - 1).describe(number).id == name
        assert name.startswith(f"{array}_")


def test_a_job_that_is_elsewhere_or_unknown_is_refused(cluster: Cluster, user: User) -> None:
    job = cluster.submit("-w", "n2", "sleeper")
    begun(cluster, job, user, "n2")
    with pytest.raises(EncampError, match="not on n1"):
        cluster.slurm().describe(job)
    for id in ("4000000", "1;reboot", "--help", "../1"):
        with pytest.raises(EncampError, match="knows no job") as caught:
            cluster.slurm().describe(id)
        assert not caught.value.transient


def test_many_who_ask_at_once_are_answered_by_few_questions(
    cluster: Cluster, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [cluster.submit("-w", "n1", "sleeper") for _ in range(2)]
    for job in jobs:
        begun(cluster, job, user)
    slurm = cluster.slurm()
    slurm.describe(jobs[0])
    asked = []
    squeue = slurm._squeue

    def counting(*words: str, purpose: str) -> list[Entry]:
        asked.append(words)
        return squeue(*words, purpose=purpose)

    monkeypatch.setattr(slurm, "_squeue", counting)
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(slurm.describe, jobs * 20))
    assert [job.id for job in found] == jobs * 20
    assert len(asked) < 20


# ── giving back ──────────────────────────────────────────────────────────────────────────────────


def described(cluster: Cluster, slurm: Slurm, job: str, user: User) -> BatchJob:
    begun(cluster, job, user)
    return slurm.describe(job)


def test_a_job_given_back_begins_again_at_once(cluster: Cluster, user: User) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    slurm = cluster.slurm()
    found = described(cluster, slurm, job, user)
    given = slurm.give_back(found, Task(), 'The machine "died".', hold=False)
    assert (given.exit_code, given.wait) == (75, True)
    cluster.wait_for(
        "its second run",
        lambda: cluster.field(job, "RestartCnt") == "1" and cluster.state(job) == "RUNNING",
    )
    assert "encamp: The machine 'died'; given back 1 time" in cluster.run(
        "scontrol", "show", "job", job, user=user
    )
    assert slurm.describe(job).restarts == 1
    standing = slurm.standing(job)
    assert standing is not None
    assert standing.reason == "The machine 'died'; given back 1 time"


def test_of_an_array_only_the_task_is_given_back(cluster: Cluster, user: User) -> None:
    array = cluster.submit("-w", "n1", "-a", "1-2", "sleeper")
    slurm = cluster.slurm()
    cluster.wait_for(
        "both tasks",
        lambda: cluster.run("squeue", "-h", "-t", "R", "-r", "-j", array).count("\n") == 2,
    )
    (number,) = cluster.run("squeue", "-h", "-j", f"{array}_1", "-o", "%A").split()
    found = described(cluster, slurm, number, user)
    assert found.id == f"{array}_1"
    slurm.give_back(found, Task(), "the machine died", hold=True)
    cluster.wait_for_state(f"{array}_1", "PENDING")
    assert slurm.standing(f"{array}_1").held  # type: ignore[union-attr]
    assert cluster.state(f"{array}_2") == "RUNNING"


def test_a_job_that_comes_back_again_and_again_waits_for_a_while(
    cluster: Cluster, user: User
) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    slurm = cluster.slurm()
    found = described(cluster, slurm, job, user)
    cluster.run("scontrol", "requeue", job)
    cluster.wait_for_state(job, "PENDING")
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    cluster.wait_for_state(job, "RUNNING")
    again = slurm.describe(job)
    assert again.restarts == found.restarts + 1
    assert again.returns == 0, "somebody else has queued it again"
    slurm.give_back(again, Task(), "no machine", hold=False)
    cluster.wait_for_state(job, "PENDING")
    assert cluster.field(job, "Reason") == "BeginTime"
    assert slurm.returning._beginning._jobs == {}


def test_a_job_given_back_and_held_waits_until_it_is_released(cluster: Cluster, user: User) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    slurm = cluster.slurm()
    slurm.give_back(
        described(cluster, slurm, job, user), Task(), "three times no machine", hold=True
    )
    cluster.wait_for_state(job, "PENDING")
    standing = slurm.standing(job)
    assert standing is not None
    assert standing.waits
    assert standing.held
    assert standing.user == user.name
    assert "three times no machine" in standing.reason
    cluster.run("scontrol", "release", job)
    cluster.wait_for("its release", lambda: not slurm.standing(job).held)  # type: ignore[union-attr]


def test_a_job_that_was_cancelled_meanwhile_does_not_come_back(
    cluster: Cluster, user: User
) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    slurm = cluster.slurm()
    found = described(cluster, slurm, job, user)
    cluster.run("scancel", job, user=user)
    cluster.wait_for_state(job, "CANCELLED", "COMPLETING")
    slurm.give_back(found, Task(), "the machine died", hold=False)
    cluster.wait_for_state(job, "CANCELLED")
    assert cluster.field(job, "RestartCnt") == "0"


def test_a_job_that_is_back_already_is_given_back_no_second_time(
    cluster: Cluster, user: User
) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    slurm = cluster.slurm()
    found = described(cluster, slurm, job, user)
    cluster.run("scontrol", "requeue", job)
    cluster.wait_for_state(job, "PENDING")
    slurm.give_back(found, Task(), "the machine died", hold=True)
    assert cluster.field(job, "RestartCnt") == "1"
    assert cluster.slurm().standing(job).held  # type: ignore[union-attr]


def test_a_job_whose_starter_was_killed_meanwhile_is_given_back(
    cluster: Cluster, user: User
) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    slurm = cluster.slurm()
    found = described(cluster, slurm, job, user)
    os.kill(begun(cluster, job, user), signal.SIGKILL)
    cluster.wait_for_state(job, "FAILED")
    slurm.give_back(found, Task(), "no machine", hold=False)
    assert cluster.field(job, "RestartCnt") == "1"
    assert "encamp: no machine" in cluster.field(job, "admin_comment")


def test_a_job_that_may_begin_only_once_is_given_back_before_it_has(
    cluster: Cluster, user: User
) -> None:
    job = cluster.submit("--no-requeue", "-w", "n1", "sleeper")
    slurm = cluster.slurm()
    found = described(cluster, slurm, job, user)
    cluster.run("scontrol", "update", f"JobId={job}", "AdminComment=env=mini; project 5")
    slurm.give_back(found, Task(), "no machine came up", hold=False)
    cluster.wait_for_state(job, "PENDING")
    assert cluster.field(job, "Requeue") == "0"
    said = cluster.field(job, "admin_comment")
    assert said == f"env=mini; project 5; encamp: no machine came up; given back 1 time; {ONCE}"
    assert slurm.standing(job).reason.endswith(ONCE)  # type: ignore[union-attr]


def test_a_job_that_may_not_be_begun_again_is_not(cluster: Cluster, user: User) -> None:
    """A step of it cannot be run, and its script runs."""
    job = cluster.submit("--no-requeue", "-w", "n1", "sleeper")
    slurm = cluster.slurm()
    found = described(cluster, slurm, job, user)
    with pytest.raises(EncampError) as caught:
        slurm.give_back(found, Task(step="0"), "no machine came up", hold=False)
    assert caught.value.code is Code.WRONG_STATE
    assert not caught.value.transient
    assert cluster.state(job) == "RUNNING"


def test_a_job_of_which_slurm_says_odd_things_is_given_back(
    cluster: Cluster, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    slurm = cluster.slurm()
    described(cluster, slurm, job, user)
    known = BatchJob(system="slurm", id=job, uid=user.uid, requeue=None)
    monkeypatch.setattr(queue, "status", lambda value: int("odd"))
    slurm.give_back(known, Task(), "odd", hold=False)
    monkeypatch.undo()
    cluster.wait_for_state(job, "PENDING")


def test_a_job_is_given_back_to_a_controller_that_comes_back(cluster: Cluster, user: User) -> None:
    job = cluster.submit("-w", "n1", "sleeper")
    slurm = cluster.slurm()
    found = described(cluster, slurm, job, user)
    cluster.site.slurmctld.stop()
    with ThreadPoolExecutor(1) as thread:
        giving = thread.submit(slurm.give_back, found, Task(), "the machine died", hold=True)
        cluster.site.start_controller()
        giving.result()
    cluster.wait_for_state(job, "PENDING")
    assert slurm.standing(job).held  # type: ignore[union-attr]
    cluster.run("scancel", job)
    cluster.site.wait_until_up()


# ── what waits ───────────────────────────────────────────────────────────────────────────────────


def test_what_waits_is_counted_by_environment(cluster: Cluster, user: User) -> None:
    other = cluster.users[1]
    for name in ("n1", "n2"):
        cluster.run("scontrol", "update", f"NodeName={name}", "State=drain", "Reason=test")
    rules = (
        Rule(environment="", queue="vm", user=user.name, account="Plain"),
        Rule(environment="sl7", queue="vm"),
        Rule(environment="camp", user=other.name),
    )
    first = cluster.submit("--comment=env:mini", "sleeper")
    cluster.submit("--comment=fast,env:mini", "-c2", "-a", "1-10:3%2,50", "sleeper")
    cluster.submit("-C", "intel&debian12", "sleeper")
    cluster.submit("-p", "vm", "sleeper")
    cluster.submit("-p", "vm", "-A", "plain", "sleeper")
    cluster.submit("--comment=env:none", "-p", "vm", "sleeper")
    cluster.submit("--wrap", "true", user=other)
    noted = cluster.submit("sleeper")
    cluster.run("scontrol", "update", f"JobId={noted}", "AdminComment=env=noted; more")
    cluster.submit("--hold", "--comment=env:held", "sleeper")
    cluster.submit(f"--dependency=afterok:{first}", "--comment=env:later", "sleeper")
    cluster.submit("--begin=now+1hour", "--comment=env:later", "sleeper")
    found = {one.environment: one for one in cluster.slurm(rules=rules).waiting()}
    assert {name: (one.jobs, one.cpus) for name, one in found.items()} == {
        "": (2, 2),
        "mini": (6, 11),
        "intel": (1, 1),
        "debian12": (1, 1),
        "sl7": (1, 1),
        "camp": (1, 1),
        "noted": (1, 1),
    }
    submitted = cluster.run(
        "squeue", "-h", "-j", first, "-o", "%V", variables={"SLURM_TIME_FORMAT": "%s"}
    )
    assert found["mini"].oldest == float(submitted)
    assert {name: found[name].owner for name in ("mini", "camp")} == {
        "mini": user.name,
        "camp": other.name,
    }
