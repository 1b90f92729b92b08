"""Jobs of Grid Engine whose starters are killed run again: once to their ends, and when nothing is
left of the run that was lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from encamp.batch.gridengine.shepherd import shepherds
from encamp.model.batch_record import Outcome
from tests.batch.gridengine.camping import Camp, Person
from tests.batch.gridengine.losing import (
    COUNTS,
    MARKS,
    MINI,
    WAITS,
    begin,
    file_of,
    is_gone,
    is_run_again,
    kill_starter,
    kill_starter_and_guard,
    master_away,
    outcomes_of,
    records_of,
    standing_still,
)

pytestmark = MARKS


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


def test_job_whose_starter_is_killed_runs_again_before_grid_engine_has_noticed(
    camp: Camp, alice: Person
) -> None:
    id, file = begin(camp, alice, "noticed")
    daemon = camp.site.execds[camp.host_of(id).name]
    with standing_still(daemon):
        kill_starter_and_guard(camp, id)
        camp.wait_for_state(id, "Rq")
    camp.wait_for("a second run", partial(is_run_again, file))
    file.with_name("noticed.go").touch()
    camp.wait_for("its end", lambda: outcomes_of(camp, id)[0] is Outcome.DONE)
    assert file.read_text() == "run 0\nrun 1\ndone\n"
    assert outcomes_of(camp, id) == [Outcome.DONE, Outcome.GIVEN_BACK]


def test_job_that_a_killed_agent_has_put_off_is_let_go_by_the_next_and_no_sooner(
    camp: Camp, alice: Person
) -> None:
    id, file = begin(camp, alice, "next")
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
    id, file = begin(camp, alice, "masterless")
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
    id, file = begin(camp, alice, "way")
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
    id, file = begin(camp, alice, "waits", "[ $RESTARTED = 1 ] || sleep 600\nexit 5\n")
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
