"""Grid Engine's own commands, called by jobs in their machines."""

from __future__ import annotations

import pytest

from tests.batch.gridengine.camping import Camp, Person

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("gridengine"),
    pytest.mark.usefixtures("agents"),
]

MINI = ("-l", "env=mini")


def test_a_job_asks_and_submits_from_inside(camp: Camp, alice: Person) -> None:
    script = """#!/bin/sh
uname -n
command -v qstat
qstat -j $JOB_ID | grep '^job_number'
qstat -j 4000000000; echo $?
printf '%s\\n' 'uname -n' 'exit 5' | qsub -terse -cwd -o next -e next.e
"""
    id = camp.submit(alice, *MINI, "-cwd", "-o", "said", script=script)
    said = alice.directory / "said"
    camp.wait_for("its words", lambda: said.exists() and len(said.read_text().splitlines()) == 5)
    machine, place, number, failed, after = said.read_text().splitlines()
    assert machine.startswith("mini-")
    assert place == "/run/encamp/bin/qstat"
    assert number.split() == ["job_number:", id]
    assert failed == "1"
    assert camp.ended(after)["exit_status"] == "5"
    assert (alice.directory / "next").read_text().strip() in camp.names


def test_a_job_whose_shell_is_a_login_shell_asks_too(camp: Camp, alice: Person) -> None:
    """As Grid Engine begins programs that are not scripts."""
    words = ("-b", "y", "-S", "/bin/sh", "-N", "asks", "echo $PATH; qstat -j $JOB_ID")
    id = camp.submit(alice, *MINI, "-cwd", "-j", "y", *words)
    assert camp.ended(id)["exit_status"] == "0", camp.output(alice, id, "asks")
    path, *said = camp.output(alice, id, "asks").splitlines()
    assert path == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/encamp/bin"
    assert ["job_number:", id] in [line.split() for line in said]


def test_qrsh_begins_programs_in_machines_on_other_hosts(camp: Camp, alice: Person) -> None:
    script = """#!/bin/sh
uname -n
other=$(sed -n 2p "$PE_HOSTFILE" | cut -d' ' -f1)
echo read | qrsh -inherit $other 'cat; uname -n; qstat -j $JOB_ID | grep -c ^job_number; exit 7'
echo $? $(cut -d' ' -f1 "$PE_HOSTFILE")
"""
    id = camp.submit(alice, *MINI, "-cwd", "-pe", "mpi", "2", script=script)
    camp.ended(id)
    said = camp.output(alice, id) + camp.output(alice, id, stream="e")
    machine, read, other, count, last = said.splitlines()
    assert (read, count) == ("read", "1")
    assert machine.startswith("mini-")
    assert other.startswith("mini-")
    assert other != machine
    assert last.split()[0] == "7"
    assert sorted(last.split()[1:]) == camp.names
