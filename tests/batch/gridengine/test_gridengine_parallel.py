"""Parallel jobs of Grid Engine come back as a whole, whatever is killed of them."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from encamp.batch.gridengine.shepherd import shepherds
from encamp.model.batch_record import Outcome
from tests.batch.gridengine.camping import Camp, Person
from tests.batch.gridengine.losing import (
    COUNTS,
    MARKS,
    MINI,
    file_of,
    is_gone,
    is_over,
    kill_starter_under,
    outcomes_of,
    standing_still,
)

pytestmark = MARKS


@pytest.mark.parametrize(
    ("slots", "whose", "what"),
    [
        (("smp", "2"), "script", "starter"),
        (("mpi", "3"), "script", "machine"),
        (("smp", "2"), "task", "starter"),
        (("smp", "2"), "both", "starter"),
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
    # Both runs on one host, which is harder for Grid Engine.
    pinned = ("-l", f"h={camp.names[0]}") if slots[0] == "smp" else ()
    id = camp.submit(alice, *MINI, *pinned, "-pe", *slots, script=script)
    camp.wait_for("its task", lambda: file.read_text() == "run 0\ntask\n")
    found = [one for one in shepherds() if one.id == id and one.host in camp.names]
    [begun], [main] = ([one for one in found if bool(one.part) == part] for part in (True, False))
    lost = {"script": [main], "task": [begun], "both": [begun, main]}[whose]
    with ExitStack() as held:
        if begun.host != main.host:
            # A daemon that speaks of its host just before the task has ended would keep the job.
            held.enter_context(standing_still(camp.site.execds[begun.host]))
        if what == "starter":
            for shepherd in lost:
                kill_starter_under(shepherd.pid)
        else:
            there = camp.root / f"{lost[0].host}-home"
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
