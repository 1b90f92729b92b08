"""No job of Grid Engine is lost, none is run twice to its end, and none succeeds that did not: each
time the real thing is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from encamp.batch.gridengine.shepherd import shepherds
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
    assert "died while the job was in it" in standing.reason
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
    assert camp.ended(id)["exit_status"] == "5"
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


def test_machine_ends_with_the_starter_of_its_job(camp: Camp, alice: Person) -> None:
    file = file_of(alice, "starter")
    id = camp.submit(alice, *MINI, script=COUNTS.format(file=file) + "sleep 600\n")
    camp.wait_for("its run", file.read_text)
    [shepherd] = [each for each in shepherds() if each.id == id and each.host in camp.names]
    [starter] = psutil.Process(shepherd.pid).children()
    assert "encamp-starter" in starter.exe()
    starter.kill()
    assert camp.ended(id)["exit_status"].startswith("137")
    camp.wait_for("the end of its machine", lambda: not camp.machines())
    assert file.read_text() == "run 0\n"


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
