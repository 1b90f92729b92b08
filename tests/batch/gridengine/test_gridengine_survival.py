"""No job of Grid Engine is lost, none is run twice to its end, and none succeeds that did not: each
time the real thing is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from encamp.agent.bait.records import found
from encamp.batch.gridengine.host import Host, Process
from encamp.batch.gridengine.shepherd import shepherds
from encamp.model.batch_record import UNDER_WAY, BatchRecord, Outcome
from tests.batch.gridengine.camping import Camp, Person

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("gridengine"),
    pytest.mark.usefixtures("agents"),
]

MINI = ("-l", "env=mini", "-cwd")
COUNTS = "echo run $RESTARTED >>{file}\n"
WAITS = "while [ ! -e {file}.go ]; do sleep 0.1; done; echo done >>{file}; exit 6\n"


def kill_machine(camp: Camp) -> None:
    [machine] = camp.wait_for("a machine", camp.machines)
    os.kill(machine, signal.SIGKILL)


def file_of(alice: Person, name: str) -> Path:
    path = alice.directory / name
    path.write_text("")
    path.chmod(0o666)
    return path


def test_job_whose_machine_dies_is_begun_again_and_held_after_its_bound(
    camp: Camp, alice: Person
) -> None:
    file = file_of(alice, "dies")
    script = COUNTS.format(file=file) + "sleep 600\n"
    id = camp.submit(alice, *MINI, script=script)
    camp.wait_for("its first run", lambda: file.read_text() == "run 0\n")
    kill_machine(camp)
    camp.wait_for("its second run", lambda: file.read_text() == "run 0\nrun 1\n")
    kill_machine(camp)
    camp.wait_for_state(id, "Eqw", "ERq")
    shown = camp.site.run_as(alice.name, ["qstat", "-j", id]).stdout
    assert "encamp_restarts=2" in shown
    assert "died while the job was in it" in shown
    standing = camp.adapter(camp.site.hosts[0]).standing(id)
    assert standing is not None
    assert standing.held
    assert standing.release == f"qmod -cj {id}"
    assert "died while the job was in it" in standing.reason
    camp.site.run_as(alice.name, ["qdel", id])


@pytest.fixture
def strict(camp: Camp) -> Iterator[None]:
    """Exit codes mean nothing to Grid Engine here."""
    shown = camp.site.run(["qconf", "-sconf"]).stdout.splitlines()
    [before] = [line.split(maxsplit=1)[1] for line in shown if line.startswith("qmaster_params")]
    forbidden = "FORBID_RESCHEDULE=TRUE,FORBID_APPERROR=TRUE"
    for params, code in ((forbidden, "1"), (before, "0")):
        camp.site.change("conf", "global", qmaster_params=params)
        for host in camp.site.hosts:
            camp.wait_for("what it says", partial(is_told, camp, host, f"forbid_apperror={code}"))
        if code == "1":
            yield


def is_told(camp: Camp, host: Host, line: str) -> bool:
    """Do jobs of a host begin with this?"""
    looks = f"grep -qx {line} $SGE_JOB_SPOOL_DIR/config"
    words = ["qsub", "-sync", "y", "-o", "/dev/null", "-j", "y", "-q", f"*@{host.name}"]
    person = camp.people[0].name
    return camp.site.run_as(person, words, input=looks, check=False).returncode == 0


@pytest.mark.usefixtures("strict")
def test_job_is_begun_again_and_held_where_exit_codes_mean_nothing(
    camp: Camp, alice: Person
) -> None:
    file = file_of(alice, "strict")
    id = camp.submit(alice, *MINI, script=COUNTS.format(file=file) + "sleep 600\n")
    camp.wait_for("its first run", lambda: file.read_text() == "run 0\n")
    kill_machine(camp)
    camp.wait_for("its second run", lambda: is_run_again(file))
    kill_machine(camp)
    camp.wait_for_state(id, "hRq")
    assert outcomes_of(camp, id) == [Outcome.HELD, Outcome.GIVEN_BACK]
    camp.site.run_as(alice.name, ["qdel", id])


def test_job_that_may_not_be_begun_again_fails_with_a_sentence(camp: Camp, alice: Person) -> None:
    file = file_of(alice, "once")
    script = COUNTS.format(file=file) + "sleep 600\n"
    id = camp.submit(alice, *MINI, "-r", "n", script=script)
    camp.wait_for("its run", file.read_text)
    kill_machine(camp)
    assert camp.ended(id)["exit_status"] == "72"
    assert "may not be begun a second time" in camp.output(alice, id, stream="e")
    assert file.read_text() == "run 0\n"


def test_job_goes_on_and_ends_while_agent_and_daemons_are_dead(camp: Camp, alice: Person) -> None:
    file = file_of(alice, "goes-on")
    script = COUNTS.format(file=file) + WAITS.format(file=file)
    id = camp.submit(alice, *MINI, script=script)
    camp.wait_for("its run", file.read_text)
    host = camp.host_of(id)
    camp.agents[host.name].kill()
    camp.kill_daemons()
    file.with_name("goes-on.go").touch()
    camp.wait_for("its end", lambda: file.read_text() == "run 0\ndone\n")
    camp.wait_for("the end of its machine", lambda: not camp.machines())
    camp.start_daemons()
    camp.start_agent(host)
    assert camp.ended(id)["exit_status"] == "6"
    assert file.read_text() == "run 0\ndone\n"
    assert len(camp.accounts(id)) == 1


def test_job_whose_machine_dies_while_the_master_is_away_is_begun_again(
    camp: Camp, alice: Person
) -> None:
    """Nobody else knows whether it may be."""
    file = file_of(alice, "away")
    script = COUNTS.format(file=file) + "[ $RESTARTED = 1 ] || sleep 600\nexit 5\n"
    id = camp.submit(alice, *MINI, script=script)
    camp.wait_for("its first run", file.read_text)
    log = camp.log(camp.host_of(id))
    assert camp.site.qmaster is not None
    camp.site.qmaster.kill()
    kill_machine(camp)
    camp.wait_for("a question", lambda: f"whether job {id} may be begun" in log.read_text())
    camp.site.start_qmaster()
    camp.wait_for("its end", lambda: is_run_again(file))
    assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]


def test_job_that_was_queued_again_runs_after_a_restart_of_the_master(
    camp: Camp, alice: Person
) -> None:
    """Its description is no longer what it was: the master has read it from its disk."""
    file = file_of(alice, "reread")
    script = COUNTS.format(file=file) + "[ $RESTARTED = 1 ] || exit 99\nexit 5\n"
    id = camp.submit(alice, *MINI, script=script)
    camp.wait_for("its first run", file.read_text)
    camp.site.run(["qmod", "-d", camp.site.queue])
    camp.wait_for("its way back", lambda: camp.state(id) == "Rq" or "run 1" in file.read_text())
    camp.restart_daemons()
    camp.site.run(["qmod", "-e", camp.site.queue])
    # The account of a run may come after the job has left the queue.
    camp.wait_for(
        "its end", lambda: [one["exit_status"] for one in camp.accounts(id)][-1:] == ["5"]
    )
    assert file.read_text() == "run 0\nrun 1\n"


def test_job_waits_for_an_agent_that_is_not_there(camp: Camp, alice: Person) -> None:
    for host in camp.site.hosts:
        camp.stop_agent(host)
    # An agent that ends closes its bait; somebody opens it by mistake.
    for host in camp.site.hosts:
        camp.adapter(host).open()
    id = camp.submit(alice, *MINI, script="uname -n; exit 2\n")
    camp.wait_for("a note", lambda: "encamp:" in camp.output(alice, id, stream="e"))
    for host in camp.site.hosts:
        camp.start_agent(host)
    assert camp.ended(id)["exit_status"] == "2"
    assert camp.output(alice, id).startswith("mini-")


def starter_of(camp: Camp, id: str) -> psutil.Process:
    [shepherd] = [each for each in shepherds() if each.id == id and each.host in camp.names]
    [starter] = psutil.Process(shepherd.pid).children()
    assert "encamp-starter" in starter.exe()
    return starter


def kill_starter(camp: Camp, id: str) -> None:
    starter_of(camp, id).kill()


def kill_starter_under(shepherd: int) -> None:
    """The starter of a job that has others, too."""
    below = psutil.Process(shepherd).children(recursive=True)
    [starter] = [each for each in below if each.name() == "encamp-starter"]
    starter.kill()


def kill_guard(camp: Camp, id: str) -> None:
    [guard] = [each for each in starter_of(camp, id).children() if each.name() == "encamp-guard"]
    guard.kill()


def is_over(pid: int) -> bool:
    """Whoever has begun it may not look for its end at the moment."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def outcomes_of(camp: Camp, id: str) -> list[Outcome]:
    """Once each is known."""

    def known() -> list[Outcome]:
        outcomes = [record.outcome for record in records_of(camp, id)]
        return [] if UNDER_WAY & set(outcomes) else outcomes

    outcomes: list[Outcome] = camp.wait_for(f"what became of job {id}", known)
    return outcomes


def is_run_again(file: Path) -> bool:
    return file.read_text() == "run 0\nrun 1\n"


def is_gone(camp: Camp, id: str) -> bool:
    return not camp.state(id)


def records_of(camp: Camp, id: str) -> list[BatchRecord]:
    """On all hosts, the latest first."""
    records = [one for host in camp.site.hosts for one in found(camp.home(host), id=id)]
    return sorted(records, key=lambda one: -one.came)


def test_job_whose_starter_is_killed_runs_again_and_is_held_after_its_bound(
    camp: Camp, alice: Person
) -> None:
    files = [file_of(alice, name) for name in ("killed", "poison")]
    scripts = [COUNTS.format(file=file) + WAITS.format(file=file) for file in files]
    killed, poison = ids = [camp.submit(alice, *MINI, script=script) for script in scripts]
    for id, file in zip(ids, files, strict=True):
        camp.wait_for("a first run", file.read_text)
        kill_starter(camp, id)
    for id, file in zip(ids, files, strict=True):
        camp.wait_for("a second run", partial(is_run_again, file))
        shown = camp.site.run_as(alice.name, ["qstat", "-j", id]).stdout
        assert "encamp=Encamp: its starter was killed,encamp_restarts=1" in shown
    kill_starter(camp, poison)
    camp.wait_for_state(poison, "hRq")
    standing = camp.adapter(camp.site.hosts[0]).standing(poison)
    assert standing is not None
    assert (standing.held, "its starter was killed" in standing.reason) == (True, True)
    assert outcomes_of(camp, poison) == [Outcome.HELD, Outcome.GIVEN_BACK]
    camp.site.run_as(alice.name, ["qdel", poison])
    files[0].with_name("killed.go").touch()
    camp.wait_for("its end", lambda: [one["exit_status"] for one in camp.accounts(killed)][1:])
    assert camp.accounts(killed)[1]["exit_status"] == "6"
    assert files[0].read_text() == "run 0\nrun 1\ndone\n"
    assert files[1].read_text() == "run 0\nrun 1\n"
    assert outcomes_of(camp, killed) == [Outcome.DONE, Outcome.GIVEN_BACK]


@pytest.fixture
def busy(camp: Camp, bob: Person) -> Iterator[None]:
    """Jobs of somebody else end on the hosts all the time."""
    noise = ("-b", "y", "-t", "1-2000", "-tc", "2", "-o", "/dev/null", "-j", "y", "sleep", "0.3")
    id = camp.submit(bob, *noise)
    camp.wait_for("some of them", lambda: len(camp.accounts(id)) > 4)
    yield
    camp.site.run_as(bob.name, ["qdel", id])


@pytest.mark.usefixtures("busy")
def test_jobs_whose_starters_are_killed_on_busy_hosts_run_again(camp: Camp, alice: Person) -> None:
    """Grid Engine hears of such hosts more often than it takes for a job to end."""
    files = [file_of(alice, name) for name in ("busy-1", "busy-2")]
    # A second run that was taken for the first would be ended within that time.
    script = COUNTS + "[ $RESTARTED = 1 ] || sleep 600\nsleep 6\necho done >>{file}\n"
    ids = [camp.submit(alice, *MINI, script=script.format(file=file)) for file in files]
    for id, file in zip(ids, files, strict=True):
        camp.wait_for("a first run", file.read_text)
        kill_starter(camp, id)
    for id, file in zip(ids, files, strict=True):
        camp.wait_for(f"the end of job {id}", partial(is_gone, camp, id))
        assert file.read_text() == "run 0\nrun 1\ndone\n"
        assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]


@contextmanager
def standing_still(daemon: Process) -> Iterator[None]:
    daemon.kill(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.kill(signal.SIGCONT)
        # What leads into its namespaces stands still as long as it does.
        daemon.outer.send_signal(signal.SIGCONT)


def test_job_whose_starter_is_killed_runs_again_before_grid_engine_has_noticed(
    camp: Camp, alice: Person
) -> None:
    file = file_of(alice, "noticed")
    id = camp.submit(alice, *MINI, script=COUNTS.format(file=file) + WAITS.format(file=file))
    camp.wait_for("a first run", file.read_text)
    daemon = camp.site.execds[camp.host_of(id).name]
    with standing_still(daemon):
        kill_guard(camp, id)
        kill_starter(camp, id)
        camp.wait_for_state(id, "Rq")
    camp.wait_for("a second run", partial(is_run_again, file))
    file.with_name("noticed.go").touch()
    camp.wait_for("its end", lambda: outcomes_of(camp, id)[0] is Outcome.DONE)
    assert file.read_text() == "run 0\nrun 1\ndone\n"
    assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]


def test_job_that_a_killed_agent_has_put_off_is_let_go_by_the_next_and_no_sooner(
    camp: Camp, alice: Person
) -> None:
    file = file_of(alice, "next")
    id = camp.submit(alice, *MINI, script=COUNTS.format(file=file) + WAITS.format(file=file))
    camp.wait_for("a first run", file.read_text)
    host = camp.host_of(id)
    with standing_still(camp.site.execds[host.name]):
        kill_starter(camp, id)
        camp.wait_for_state(id, "Rq")
        standing = camp.adapter(camp.site.hosts[0]).standing(id)
        assert standing is not None
        assert (standing.held, "it does not begin before" in standing.reason) == (False, True)
        shown = camp.site.run_as(alice.name, ["qstat", "-j", id]).stdout
        assert f"encamp_back={host.name}," in shown
        camp.agents[host.name].kill()
        camp.start_agent(host)
        log = camp.log(host)
        camp.wait_for("a question", lambda: "cleared away the lost run" in log.read_text())
        assert camp.state(id) == "Rq"
    camp.wait_for("a second run", partial(is_run_again, file))
    file.with_name("next.go").touch()
    assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]
    assert file.read_text() == "run 0\nrun 1\ndone\n"


def test_job_whose_starter_is_killed_while_the_master_is_away_runs_again(
    camp: Camp, alice: Person
) -> None:
    file = file_of(alice, "masterless")
    id = camp.submit(alice, *MINI, script=COUNTS.format(file=file) + WAITS.format(file=file))
    camp.wait_for("a first run", file.read_text)
    host = camp.host_of(id)
    with master_away(camp):
        before = len(camp.log(host).read_text())
        kill_starter(camp, id)
        camp.wait_for(
            "a question", lambda: "master does not answer" in camp.log(host).read_text()[before:]
        )
    camp.wait_for("a second run", partial(is_run_again, file))
    file.with_name("masterless.go").touch()
    assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]


def test_job_on_its_way_back_is_let_go_after_a_restart_of_the_master(
    camp: Camp, alice: Person
) -> None:
    file = file_of(alice, "way")
    id = camp.submit(alice, *MINI, script=COUNTS.format(file=file) + WAITS.format(file=file))
    camp.wait_for("a first run", file.read_text)
    host = camp.host_of(id)
    with standing_still(camp.site.execds[host.name]):
        kill_starter(camp, id)
        camp.wait_for_state(id, "Rq")
        # Whatever its user makes of what is noted there.
        camp.site.run_as(alice.name, ["qalter", "-sc", "mine=1", id])
        with master_away(camp):
            before = len(camp.log(host).read_text())
            camp.wait_for(
                "a question",
                lambda: "master does not answer" in camp.log(host).read_text()[before:],
            )
    camp.wait_for("a second run", partial(is_run_again, file))
    file.with_name("way.go").touch()
    assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]


def noted(camp: Camp, id: str) -> str:
    """What a job's context says."""
    shown = camp.site.run(["qstat", "-j", id], check=False).stdout
    return next((line for line in shown.splitlines() if line.startswith("context:")), "")


def test_job_that_is_back_and_waits_runs_after_a_restart_of_the_master(
    camp: Camp, alice: Person
) -> None:
    file = file_of(alice, "waits")
    script = COUNTS.format(file=file) + "[ $RESTARTED = 1 ] || sleep 600\nexit 5\n"
    id = camp.submit(alice, *MINI, script=script)
    camp.wait_for("a first run", file.read_text)
    camp.site.run(["qmod", "-d", camp.site.queue])
    kill_starter(camp, id)
    camp.wait_for("its way back", lambda: "encamp_back=over" in noted(camp, id))
    assert outcomes_of(camp, id) == [Outcome.GIVEN_BACK]
    with master_away(camp):
        pass
    camp.site.run(["qmod", "-e", camp.site.queue])
    camp.wait_for("a second run", partial(is_run_again, file))
    assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]
    camp.wait_for("its account", lambda: camp.accounts(id)[-1]["exit_status"] == "5")


def test_array_of_which_several_tasks_are_lost_waits_for_all_their_hosts(
    camp: Camp, alice: Person
) -> None:
    """Three tasks are on two hosts with two slots each."""
    file = file_of(alice, "array")
    script = COUNTS.format(file=file) + "[ $RESTARTED = 1 ] || sleep 600\n"
    id = camp.submit(alice, *MINI, "-t", "1-3", script=script)
    tasks = [f"{id}.{number}" for number in (1, 2, 3)]
    camp.wait_for("three runs", lambda: file.read_text() == "run 0\n" * 3)
    where = {each.id: each.host for each in shepherds() if each.id in tasks}
    late, early = camp.names
    assert set(where.values()) == {late, early}
    with standing_still(camp.site.execds[late]):
        for task in tasks:
            kill_starter(camp, task)
        camp.wait_for_state(f"{id}.1-3:1", "Rq")
        for task in tasks:
            if where[task] == early:
                assert outcomes_of(camp, task) == [Outcome.GIVEN_BACK]
        standing = camp.adapter(camp.site.hosts[0]).standing(id)
        assert standing is not None
        assert "it does not begin before" in standing.reason
    camp.wait_for("three more", lambda: file.read_text() == "run 0\n" * 3 + "run 1\n" * 3)
    for task in tasks:
        assert outcomes_of(camp, task) == [Outcome.DONE, Outcome.GIVEN_BACK]


@pytest.mark.parametrize(
    ("slots", "whose", "what"),
    [
        (("smp", "2"), "script", "starter"),
        (("mpi", "3"), "script", "machine"),
        (("smp", "2"), "task", "starter"),
        (("mpi", "3"), "task", "starter"),
        (("mpi", "3"), "task", "machine"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else each,
)
def test_parallel_job_with_a_task_on_its_way_runs_again(
    camp: Camp, alice: Person, slots: tuple[str, str], whose: str, what: str
) -> None:
    """Grid Engine ends such a job for good if a task of it is killed before it has the job back;
    and of one that it has put back, it may leave the script running."""
    file = file_of(alice, f"parallel-{slots[0]}-{whose}-{what}")
    task = alice.directory / "task"
    task.write_text("#!/bin/sh\necho task >>$1\nsleep 600\n")
    task.chmod(0o755)
    script = (
        f"{COUNTS.format(file=file)}[ $RESTARTED = 0 ] || exit 5\n"
        f"qrsh -inherit $(tail -n 1 $PE_HOSTFILE | cut -d ' ' -f 1) {task} {file}\n"
        f"echo goes on >>{file}\nsleep 600\n"
    )
    # Both runs on one host, where Grid Engine lets it begin again there.
    alone = slots[0] == "smp" and whose == "script"
    pinned = ("-l", f"h={camp.names[0]}") if alone else ()
    id = camp.submit(alice, *MINI, *pinned, "-pe", *slots, script=script)
    camp.wait_for("its task", lambda: file.read_text() == "run 0\ntask\n")
    found = [one for one in shepherds() if one.id == id and one.host in camp.names]
    [begun], [main] = ([one for one in found if bool(one.part) == part] for part in (True, False))
    shepherd = begun if whose == "task" else main
    with ExitStack() as held:
        if begun.host != main.host:
            # A daemon that speaks of its host just before the task has ended would keep the job.
            held.enter_context(standing_still(camp.site.execds[begun.host]))
        if what == "starter":
            kill_starter_under(shepherd.pid)
        else:
            there = camp.root / f"{shepherd.host}-home"
            [machine] = [
                pid
                for pid in camp.machines()
                if Path(f"/proc/{pid}/cwd").readlink().is_relative_to(there)
            ]
            os.kill(machine, signal.SIGKILL)
        camp.wait_for("the end of its task", lambda: is_over(begun.pid))
    camp.wait_for("its second run", lambda: file.read_text() == "run 0\ntask\nrun 1\n")
    camp.wait_for("its account", lambda: "5" in [one["exit_status"] for one in camp.accounts(id)])
    last, *others = outcomes_of(camp, id)
    assert last is Outcome.DONE
    assert Outcome.GIVEN_BACK in others
    assert not {*others} & {Outcome.DONE, Outcome.LOST}


@pytest.mark.parametrize("slots", [("smp", "2"), ("mpi", "3")], ids=["one", "two"])
def test_parallel_job_ends_as_its_script_whatever_becomes_of_its_tasks(
    camp: Camp, alice: Person, slots: tuple[str, str]
) -> None:
    """One dies of a signal, and one is there when the script has ended."""
    file = file_of(alice, f"ends-{slots[0]}")
    task = alice.directory / "either"
    task.write_text("#!/bin/sh\n[ $1 = dies ] && kill -9 $$\necho task >>$2\nsleep 600\n")
    task.chmod(0o755)
    begin = f"qrsh -inherit $(tail -n 1 $PE_HOSTFILE | cut -d ' ' -f 1) {task}"
    script = (
        f"{COUNTS.format(file=file)}{begin} dies; echo $? >>{file}\n"
        f"{begin} stays {file} </dev/null &\n"
        f"while ! grep -q task {file}; do sleep 0.1; done\nexit 5\n"
    )
    id = camp.submit(alice, *MINI, "-pe", *slots, script=script)
    camp.wait_for("its account", lambda: "5" in [one["exit_status"] for one in camp.accounts(id)])
    camp.wait_for("its end", partial(is_gone, camp, id))
    assert file.read_text() == "run 0\n137\ntask\n"
    assert Outcome.GIVEN_BACK not in outcomes_of(camp, id)


def test_job_whose_shepherd_is_killed_runs_once_to_its_end(camp: Camp, alice: Person) -> None:
    """Grid Engine queues it again, does not tell it so, and leaves alone what runs."""
    file = file_of(alice, "shepherd")
    again = f"[ $(wc -l <{file}) = 2 ] || sleep 20"
    script = f"echo run >>{file}\n{again}\necho done >>{file}\n"
    id = camp.submit(alice, *MINI, script=script)
    camp.wait_for("its run", file.read_text)
    [shepherd] = [one for one in shepherds() if one.id == id and one.host in camp.names]
    [machine] = camp.machines()
    os.kill(shepherd.pid, signal.SIGKILL)
    camp.wait_for("the end of its machine", lambda: machine not in camp.machines())
    camp.wait_for("a second run", lambda: file.read_text() == "run\nrun\ndone\n")
    camp.wait_for("its end", partial(is_gone, camp, id))
    last, first = outcomes_of(camp, id)
    assert (last, first) == (Outcome.DONE, Outcome.GIVEN_BACK)


def test_run_before_is_not_taken_for_the_one_whose_starter_was_killed(
    camp: Camp, alice: Person
) -> None:
    """Grid Engine counts no runs that a job itself has asked for."""
    file = file_of(alice, "thrice")
    host = camp.site.hosts[0]
    script = (
        f"echo run >>{file}\ncase $(wc -l <{file}) in\n1) exit 99;;\n"
        f"2) while [ ! -e {file}.go ]; do sleep 0.1; done; exit 99;;\nesac\nexit 4\n"
    )
    id = camp.submit(alice, *MINI, "-q", f"*@{host.name}", script=script)
    camp.wait_for("a second run", lambda: file.read_text() == "run\nrun\n")
    camp.agents[host.name].kill()
    file.with_name("thrice.go").touch()
    camp.wait_for("a third", lambda: "encamp:" in camp.output(alice, id, stream="e"))
    kill_starter(camp, id)
    camp.start_agent(host)
    # It has used up what it may, as far as anybody knows: it is held, and not forgotten.
    camp.wait_for_state(id, "hRq")
    assert outcomes_of(camp, id)[0] is Outcome.HELD
    camp.site.run_as(alice.name, ["qrls", id])
    camp.wait_for("its end", lambda: file.read_text() == "run\n" * 3)
    camp.wait_for("its account", lambda: camp.accounts(id)[-1]["exit_status"] == "4")


@contextmanager
def master_away(camp: Camp) -> Iterator[None]:
    assert camp.site.qmaster is not None
    camp.site.qmaster.kill()
    try:
        yield
    finally:
        camp.site.start_qmaster()
        camp.wait_for("the master", camp.site.answers)


def test_job_whose_starter_was_killed_before_any_agent_heard_of_it_runs(
    camp: Camp, alice: Person
) -> None:
    file = file_of(alice, "unheard")
    for host in camp.site.hosts:
        camp.agents[host.name].kill()
    id = camp.submit(alice, *MINI, script=COUNTS.format(file=file) + "exit 4\n")
    camp.wait_for("a note", lambda: "encamp:" in camp.output(alice, id, stream="e"))
    kill_starter(camp, id)
    for host in camp.site.hosts:
        camp.start_agent(host)
    camp.wait_for("its run", lambda: file.read_text() == "run 1\n")
    camp.wait_for("its end", lambda: [one["exit_status"] for one in camp.accounts(id)][1:])
    assert camp.accounts(id)[1]["exit_status"] == "4"
    assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]


def test_job_that_grid_engine_has_killed_or_may_not_run_again_does_not_come_back(
    camp: Camp, alice: Person
) -> None:
    ways = {"deleted": (), "limited": ("-l", "h_rt=15"), "once": ("-r", "n")}
    files = {way: file_of(alice, way) for way in ways}
    jobs = {
        way: camp.submit(
            alice, *MINI, *options, script=COUNTS.format(file=files[way]) + "sleep 600\n"
        )
        for way, options in ways.items()
    }
    for way in ("deleted", "once"):
        camp.wait_for(f"a run that is {way}", files[way].read_text)
    camp.site.run_as(alice.name, ["qdel", jobs["deleted"]])
    kill_starter(camp, jobs["once"])
    for way, sentence in (
        ("deleted", "it was deleted"),
        ("limited", "had reached a limit"),
        ("once", "may not be begun a second time"),
    ):
        assert camp.ended(jobs[way])["exit_status"].startswith("137")
        assert outcomes_of(camp, jobs[way]) == [Outcome.KILLED]
        reason = records_of(camp, jobs[way])[0].reason
        # When a busy agent looks, Grid Engine may have cleared away what would have told it.
        forgotten = way != "once" and "has forgotten the job already" in reason
        assert sentence in reason or forgotten, reason
        # On a slow host the limit may come before the run.
        assert files[way].read_text() in ("run 0\n", "" if way == "limited" else "run 0\n")
        assert len(camp.accounts(jobs[way])) == 1


def test_job_for_an_environment_that_is_not_there_is_held(camp: Camp, alice: Person) -> None:
    id = camp.submit(alice, "-l", "env=nosuch", script="echo never\n")
    camp.wait_for_state(id, "Eqw")
    shown = camp.site.run_as(alice.name, ["qstat", "-j", id]).stdout
    assert "encamp=Encamp: There is no environment nosuch.," in shown
    assert "encamp_restarts=1" in shown
    assert "nosuch" in camp.output(alice, id, stream="e")
    assert camp.output(alice, id) == ""
    camp.site.run_as(alice.name, ["qdel", id])


def test_job_of_a_lost_host_runs_on_another(camp: Camp, alice: Person) -> None:
    file = file_of(alice, "lost")
    script = COUNTS.format(file=file) + f"[ $RESTARTED = 1 ] || sleep 600\necho done >>{file}\n"
    id = camp.submit(alice, *MINI, script=script)
    camp.wait_for("its run", file.read_text)
    host = camp.host_of(id)
    camp.site.lose(host)
    camp.agents.pop(host.name)
    camp.site.run(["qmod", "-d", f"*@{host.name}"])
    camp.site.run(["qmod", "-f", "-rj", id])
    camp.wait_for("its second run", lambda: file.read_text() == "run 0\nrun 1\ndone\n")
    camp.wait_for("its end", lambda: not camp.state(id))
    # What it left behind is gone when it is back.
    camp.start_agent(camp.site.revive(host.name))
    camp.site.run(["qmod", "-e", f"*@{host.name}"])
    assert len(camp.names) == 2
