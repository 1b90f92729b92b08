"""What Grid Engine says of jobs and hosts, and what it is told, against its real daemons."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from encamp.batch.gridengine.adapter import GridEngine
from encamp.batch.gridengine.host import wait_until
from encamp.batch.gridengine.shepherd import shepherds
from encamp.model.batch import Bait, BaitState, GivenBack, Task, Waiting
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB
from tests.batch.gridengine.camping import Camp, Person

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("gridengine"),
    pytest.mark.usefixtures("no_agents", "plain_starter"),
]

WAITS = "while [ ! -e go ]; do sleep 0.05; done\n"


@pytest.fixture(scope="module")
def plain_starter(whole_camp: Camp) -> Iterator[None]:
    """Jobs run as they would without Encamp: what it sees of them is what is asked here."""
    site = whole_camp.site
    before = whole_camp.queue_value("starter_method")
    starter = whole_camp.root / "encamp-starter"
    starter.write_text('#!/bin/sh\nexec "$@"\n')
    starter.chmod(0o755)
    site.change("q", site.queue, starter_method=str(starter))
    yield
    site.change("q", site.queue, starter_method=before)


@pytest.fixture
def go(camp: Camp, alice: Person) -> Iterator[None]:
    """Jobs that wait for a sign get it in the end."""
    sign = alice.directory / "go"
    sign.unlink(missing_ok=True)
    yield
    sign.touch()


def adapter_of(camp: Camp, id: str) -> GridEngine:
    """That of the host where a job runs."""
    camp.wait_for_state(id, "r")
    camp.wait_for(f"the shepherd of {id}", lambda: pids_of(camp, id))
    return camp.adapter(camp.host_of(id))


def pids_of(camp: Camp, id: str) -> list[int]:
    """Processes of a job: all below its shepherds."""
    mine = [each.pid for each in shepherds() if each.id == id and each.host in camp.names]
    found: list[int] = []
    for pid in mine:
        with suppress(psutil.NoSuchProcess):
            found += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return found


@pytest.mark.usefixtures("go")
def test_what_was_granted_is_what_the_host_was_told(camp: Camp, alice: Person) -> None:
    asked = ("-pe", "smp", "2", "-l", "h_vmem=300M", "-N", "granted", "-r", "y")
    forged = ("-v", "JOB_ID=7,RESTARTED=5,NSLOTS=99,QUEUE=other")
    id = camp.submit(alice, *asked, *forged, "-cwd", script=WAITS)
    adapter = adapter_of(camp, id)
    job = adapter.describe(id)
    assert (job.id, job.uid, job.name, job.queue) == (id, alice.uid, "granted", "main.q")
    assert (job.cpus, job.memory, job.limit) == (2, 600 * MIB, 600 * MIB)
    assert (job.restarts, job.requeue, job.environment) == (0, True, "")
    assert job.hosts == (camp.host_of(id).name,)


@pytest.mark.usefixtures("go")
def test_memory_that_was_only_asked_for_counts_for_each_slot(camp: Camp, alice: Person) -> None:
    asked = ("-pe", "smp", "2", "-l", "virtual_free=50M", "-r", "n")
    id = camp.submit(alice, *asked, "-cwd", script=WAITS)
    job = adapter_of(camp, id).describe(id)
    assert (job.cpus, job.memory, job.limit, job.requeue) == (2, 100 * MIB, None, False)


@pytest.mark.usefixtures("go")
def test_all_hosts_of_a_parallel_job_are_known(camp: Camp, alice: Person) -> None:
    id = camp.submit(alice, "-pe", "mpi", "4", "-cwd", script=WAITS)
    job = adapter_of(camp, id).describe(id)
    assert sorted(job.hosts) == camp.names
    assert job.hosts[0] == camp.host_of(id).name
    assert job.cpus == 2


@pytest.mark.usefixtures("go")
def test_process_belongs_to_the_job_whose_shepherd_is_above_it(camp: Camp, alice: Person) -> None:
    id = camp.submit(alice, "-t", "3-3", "-cwd", script=WAITS)
    adapter = adapter_of(camp, f"{id}.3")
    jobs = {pid: adapter.job_of(pid) for pid in pids_of(camp, f"{id}.3")}
    # Each `sleep` of its loop ends soon, and then belongs to nobody.
    there = [job for pid, job in jobs.items() if job is not None or psutil.pid_exists(pid)]
    assert set(there) == {f"{id}.3"}
    assert adapter.job_of(os.getpid()) is None
    assert adapter.describe(f"{id}.3").id == f"{id}.3"


def test_shepherd_of_a_users_own_making_is_not_believed(camp: Camp, alice: Person) -> None:
    """The same program, started by a user in a directory that looks like a job's."""
    directory = alice.directory / "active_jobs" / "1.1"
    directory.mkdir(parents=True)
    claimed = f"job_owner=root\nja_task_id=0\nhost={camp.names[0]}\n"
    (directory / "config").write_text(claimed)
    program = alice.directory / "sge_shepherd"
    shutil.copy("/usr/bin/sleep", program)
    process = subprocess.Popen([program, "600"], cwd=directory, user=alice.uid, group=alice.gid)
    try:
        camp.wait_for("its start", lambda: os.readlink(f"/proc/{process.pid}/exe") == str(program))  # noqa: PTH115
        adapter = camp.adapter(camp.site.hosts[0])
        assert adapter.job_of(process.pid) is None
        with pytest.raises(EncampError) as raised:
            adapter.describe("1")
        assert raised.value.code is Code.INPUT_MISSING
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory.parent)
        program.unlink()


@pytest.mark.usefixtures("go")
def test_why_a_job_goes_back_can_be_read_with_qstat(camp: Camp, alice: Person) -> None:
    id = camp.submit(alice, "-cwd", script=WAITS)
    adapter = adapter_of(camp, id)
    job = adapter.describe(id)
    back = adapter.give_back(job, Task(), "no 'room', x=1\nencamp_restarts=0", hold=False)
    assert back == GivenBack(exit_code=99)
    shown = camp.site.run_as(alice.name, ["qstat", "-j", id]).stdout
    assert "encamp=no room; x:1 encamp restarts:0" in shown
    assert "encamp_restarts=1" in shown
    assert adapter.give_back(job, Task(), "enough", hold=True) == GivenBack(exit_code=100)
    standing = adapter.standing(id)
    assert standing is not None
    assert (standing.state, standing.user, standing.reason) == ("r", alice.name, "enough")
    assert adapter.describe(id).restarts == 0


def test_jobs_that_wait_are_counted_by_environment(camp: Camp, alice: Person, bob: Person) -> None:
    adapter = camp.adapter(camp.site.hosts[0])
    camp.site.run(["qmod", "-d", camp.site.queue])
    ids = [
        camp.submit(alice, "-l", "env=mini", "-t", "1-9:2", script="true\n"),
        camp.submit(bob, "-l", "env=other", "-pe", "smp", "2", "-N", "a<b&c", script="true\n"),
        camp.submit(bob, "-l", "env=other", "-h", script="true\n"),
        camp.submit(bob, script="true\n"),
    ]
    try:
        found = {each.environment: each for each in adapter.waiting()}
        oldest = found["mini"].oldest
        assert found["mini"] == Waiting(
            environment="mini", jobs=5, cpus=5, oldest=oldest, owner=alice.name
        )
        assert oldest > 0
        assert (found["other"].jobs, found["other"].cpus) == (1, 2)
        assert (found[""].jobs, found[""].owner) == (1, bob.name)
        standing = adapter.standing(ids[2])
        assert standing is not None
        assert (standing.waits, standing.held, standing.environment) == (True, True, "other")
        assert standing.release == f"qrls {ids[2]}"
        camp.site.run(["qalter", "-h", "s", ids[2]])
        both = adapter.standing(ids[2])
        assert both is not None
        assert both.release.startswith(f"qalter -h S {ids[2]}, by an administrator")
        free = adapter.standing(ids[3])
        assert free is not None
        assert (free.held, free.release) == (False, "")
        assert adapter.standing("999999") is None
    finally:
        camp.site.run(["qdel", *ids])
        camp.site.run(["qmod", "-e", camp.site.queue])


def test_jobs_that_may_not_begin_yet_wait_for_no_host(camp: Camp, alice: Person) -> None:
    adapter = camp.adapter(camp.site.hosts[0])
    camp.site.run(["qmod", "-d", camp.site.queue])

    def submit(*words: str) -> str:
        return camp.submit(alice, "-l", "env=mini", *words, script="true\n")

    def waiting() -> int:
        return sum(each.jobs for each in adapter.waiting() if each.environment == "mini")

    ids = [submit("-a", "203001010000"), submit("-a", "203001010000", "-t", "1-3")]
    try:
        assert waiting() == 0
        ids.append(submit("-a", "202001010000", "-t", "1-3"))
        ids.append(submit("-hold_jid", ids[0]))
        ids.append(submit("-hold_jid_ad", ids[-2], "-t", "1-3"))
        assert waiting() == 3
        # Somebody puts one off that may begin, as an agent does with a job that was lost.
        camp.site.run(["qalter", "-a", "203001010000", ids[2]])
        assert waiting() == 0
        soon = int(time.time()) + 5
        ids.append(submit("-a", time.strftime("%Y%m%d%H%M.%S", time.localtime(soon))))
        wait_until(lambda: waiting() == 1, "the job whose time has come")
        assert time.time() >= soon
    finally:
        camp.site.run(["qdel", *ids])
        camp.site.run(["qmod", "-e", camp.site.queue])


def test_closed_host_says_why_and_takes_no_job_until_it_is_open(camp: Camp, alice: Person) -> None:
    first, second = camp.site.hosts
    adapter = camp.adapter(first)
    assert adapter.bait().state is BaitState.OPEN
    adapter.close("128 MiB of memory free, 512 MiB wanted")
    try:
        bait = adapter.bait()
        assert bait.state is BaitState.FULL
        assert bait.reason == "128 MiB of memory free 512 MiB wanted"
        adapter.close("another reason")
        assert adapter.bait().reason == "another reason"
        assert "another_reason" in camp.site.run(["qhost", "-F", "bait", "-h", first.name]).stdout
        assert camp.adapter(second).bait().state is BaitState.OPEN
        here = camp.submit(alice, "-q", f"*@{first.name}", script="hostname\n")
        there = camp.submit(alice, "-q", f"*@{second.name}", script="hostname\n")
        camp.ended(there)
        assert camp.state(here) == "qw"
    finally:
        adapter.open()
    assert adapter.bait().state is BaitState.OPEN
    camp.ended(here)
    assert camp.output(alice, here) == f"{first.name}\n"


def test_what_an_administrator_has_closed_stays_closed(camp: Camp) -> None:
    host = camp.site.hosts[0]
    adapter = camp.adapter(host)
    instance = f"{camp.site.queue}@{host.name}"
    adapter.close("full")
    camp.site.run(["qmod", "-d", instance])
    assert adapter.bait().state is BaitState.CLOSED
    adapter.open()
    assert adapter.bait().state is BaitState.CLOSED
    adapter.close("full again")
    assert (
        camp.site.run(["qconf", "-sq", instance]).stdout.split("calendar")[1].split()[0] == "NONE"
    )
    camp.site.run(["qmod", "-e", instance])
    assert adapter.bait().state is BaitState.OPEN
    adapter.close_for_good("new disks")
    assert adapter.bait().state is BaitState.CLOSED
    assert adapter.bait().reason == "new disks"
    adapter.open_for_good()
    assert adapter.bait().state is BaitState.OPEN


def test_queue_that_stayed_closed_is_seen_and_opened(camp: Camp) -> None:
    """Hosts that open one at the same time can undo each other's change."""
    host = camp.site.hosts[0]
    adapter = camp.adapter(host)
    text = camp.site.run(["qconf", "-sq", camp.site.queue]).stdout
    second = camp.root / "second.q"
    second.write_text(text.replace(camp.site.queue, "second.q", 1))
    camp.site.run(["qconf", "-Aq", str(second)])
    try:
        adapter.close("full")
        assert adapter.bait().state is BaitState.FULL
        camp.site.run(["qconf", "-purge", "queue", "calendar", f"second.q@{host.name}"])
        assert adapter.bait() == Bait(state=BaitState.OPEN, partly=True)
        adapter.open()
        assert adapter.bait() == Bait(state=BaitState.OPEN)
    finally:
        adapter.open()
        camp.site.run(["qconf", "-dq", "second.q"])


def test_host_in_no_queue_is_told_as_such(camp: Camp) -> None:
    adapter = camp.adapter(camp.site.hosts[0], host="elsewhere")
    bait = adapter.bait()
    assert (bait.state, "No queue of elsewhere" in bait.reason) == (BaitState.UNKNOWN, True)
    for change in (adapter.open_for_good, lambda: adapter.close_for_good("new disks")):
        with pytest.raises(EncampError, match="No queue of elsewhere"):
            change()


def test_master_that_does_not_answer_is_a_passing_trouble(camp: Camp) -> None:
    adapter = camp.adapter(camp.site.hosts[0], qmaster_port="1")
    with pytest.raises(EncampError) as raised:
        adapter.bait()
    assert raised.value.transient
    assert raised.value.code is Code.UNREACHABLE
