"""Machines that stay for the next job of their owner's, where Grid Engine ends all that is left of
a job: whoever else is to have nothing of them, and whatever ends the job, ends the machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from encamp.batch.gridengine.shepherd import Shepherd, shepherds
from encamp.model.size import MIB
from tests.batch.gridengine.camping import Camp, Person

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("gridengine"),
    pytest.mark.usefixtures("agents"),
]

SAYS = "echo $ENCAMP_MACHINE $(cat /tmp/left 2>/dev/null); echo $JOB_ID >/tmp/left; id -G\n"
WAITS = f"{SAYS}echo up; sleep 600\n"


def submit(camp: Camp, person: Person, script: str, *options: str) -> str:
    where = f"env=again,hostname={camp.names[0]}"
    return camp.submit(person, "-l", where, *options, script=script)


def done(camp: Camp, person: Person, script: str = SAYS) -> list[str]:
    id = submit(camp, person, script)
    assert camp.ended(id)["exit_status"] == "0", camp.output(person, id, stream="e")
    return camp.output(person, id).splitlines()[0].split()


def shepherd_of(camp: Camp, id: str) -> Shepherd:
    [found] = [each for each in shepherds() if each.id == id and each.host in camp.names]
    return found


def groups_of(pid: int) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_text()
    return [int(word) for word in status.partition("\nGroups:")[2].partition("\n")[0].split()]


def carriers(camp: Camp) -> list[psutil.Process]:
    """Processes that carry jobs out: they have files of a command's directory open."""
    places = tuple(str(camp.home(host).root / "commands" / "under-way") for host in camp.site.hosts)
    agents = [agent.pid for agent in camp.agents.values()]
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            files = [str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
            if process.pid not in agents and any(file.startswith(places) for file in files):
                found.append(process)
    return found


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_machine_serves_its_owners_next_job_and_nobody_elses_and_gives_way(
    camp: Camp, alice: Person, bob: Person
) -> None:
    first = submit(camp, alice, SAYS + "echo up; while [ ! -e ~/reuse.go ]; do sleep 0.1; done\n")
    camp.printed(alice, first, "up")
    [machine] = camp.machines()
    mark = shepherd_of(camp, first).mark
    assert mark is not None
    # The job has it inside, as it would have outside; its machine has not.
    said, groups, _ = camp.output(alice, first).splitlines()
    assert mark in map(int, groups.split())
    assert mark not in groups_of(machine)
    (alice.directory / "reuse.go").touch()
    assert camp.ended(first)["exit_status"] == "0"
    assert camp.machines() == [machine]
    assert done(camp, alice) == [said, first]
    assert camp.machines() == [machine]
    [others] = done(camp, bob)
    assert others != said
    assert machine in camp.machines()
    # There is no room for this one; and none for idle machines, while somebody wants more.
    most = psutil.virtual_memory().total // MIB
    wants = submit(camp, bob, "true\n", "-l", f"h_vmem={most}M")
    camp.wait_for("the end of idle machines", lambda: not camp.machines())
    camp.site.run(["qdel", "-f", wants])


def delete(camp: Camp, id: str) -> None:
    camp.site.run(["qdel", id])


def kill_worker(camp: Camp, id: str) -> None:
    """The one of them that has become the job's owner."""
    found = [process for process in carriers(camp) if process.uids().real != 0]
    assert found
    kill(found)


def kill_all(camp: Camp, id: str) -> None:
    """But the agent, which sees to it."""
    job = psutil.Process(shepherd_of(camp, id).pid)
    found = [*job.children(recursive=True), *carriers(camp)]
    kill(found)


@pytest.mark.parametrize("end", [delete, kill_worker, kill_all])
def test_job_that_does_not_come_to_its_end_takes_the_machine_along(
    camp: Camp, alice: Person, end: Callable[[Camp, str], None]
) -> None:
    before = done(camp, alice) if end is delete else []
    id = submit(camp, alice, WAITS, "-r", "n")
    camp.printed(alice, id, "up")
    if before:
        assert camp.output(alice, id).startswith(before[0])
    [machine] = camp.machines()
    end(camp, id)
    camp.wait_for("the end of its machine", lambda: machine not in camp.machines())
    assert camp.ended(id)["exit_status"] != "0"
    assert not camp.machines()
