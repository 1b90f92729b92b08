"""No job of Grid Engine is lost, none is run twice to its end, and none succeeds that did not: each
time the real thing is killed, or is not there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from encamp.batch.gridengine.host import Host
from encamp.model.batch_record import Outcome
from tests.batch.gridengine.camping import Camp, Person
from tests.batch.gridengine.losing import (
    COUNTS,
    MARKS,
    MINI,
    begin,
    file_of,
    is_run_again,
    kill_machine,
    outcomes_of,
)

pytestmark = MARKS


def test_job_whose_machine_dies_is_begun_again_and_held_after_its_bound(
    camp: Camp, alice: Person
) -> None:
    id, file = begin(camp, alice, "dies", "sleep 600\n")
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
    id, file = begin(camp, alice, "strict", "sleep 600\n")
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
    id, file = begin(camp, alice, "goes-on")
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
    id, file = begin(camp, alice, "away", "[ $RESTARTED = 1 ] || sleep 600\nexit 5\n")
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
    id, file = begin(camp, alice, "reread", "[ $RESTARTED = 1 ] || exit 99\nexit 5\n")
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


def test_job_for_an_environment_that_is_not_there_is_refused_or_held(
    camp: Camp, alice: Person
) -> None:
    command = ["qsub", "-l", "env=nosuch", "-b", "y", "/bin/true"]
    refused = camp.site.run_as(alice.name, command, check=False)
    assert "There is no environment 'nosuch' here." in refused.stdout + refused.stderr
    # The master does not know which there are: the host finds out.
    described = camp.root / "etc" / "environments.yaml"
    away = described.rename(described.with_name("away"))
    try:
        id = camp.submit(alice, "-l", "env=nosuch", script="echo never\n")
    finally:
        away.rename(described)
    camp.wait_for_state(id, "Eqw")
    shown = camp.site.run_as(alice.name, ["qstat", "-j", id]).stdout
    assert "encamp=Encamp: There is no environment nosuch.," in shown
    assert "encamp_restarts=1" in shown
    assert "nosuch" in camp.output(alice, id, stream="e")
    assert camp.output(alice, id) == ""
    camp.site.run_as(alice.name, ["qdel", id])


def test_job_of_a_lost_host_runs_on_another(camp: Camp, alice: Person) -> None:
    id, file = begin(camp, alice, "lost", "[ $RESTARTED = 1 ] || sleep 600\necho done >>{file}\n")
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
