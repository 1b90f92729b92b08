"""Jobs of ordinary users in machines, by Grid Engine's own commands and daemons."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby

import psutil
import pytest

from encamp.model.batch_record import Outcome
from tests.batch.gridengine.camping import Camp, Person
from tests.batch.gridengine.losing import outcomes_of

pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("gridengine"),
    pytest.mark.usefixtures("agents"),
]

MINI = ("-l", "env=mini")


def test_job_finds_in_its_machine_what_it_would_have_found_outside(
    camp: Camp, alice: Person
) -> None:
    script = """#!/bin/sh
echo "$(id -u) $(id -g) $PWD $1 [$2] $JOB_ID $NSLOTS $FOO $SGE_TASK_ID $(umask)"
uname -n
cat
echo oops >&2
touch made-inside "$TMPDIR/mine" "$TMP/mine"
exit 3
"""
    file = alice.directory / "job.sh"
    file.write_text(script)
    (alice.directory / "read").write_text("read inside\n")
    words = ("-cwd", "-v", "FOO=bar", "-i", alice.directory / "read", file, "a", "b c")
    id = camp.submit(alice, *MINI, *words)
    done = camp.ended(id)
    assert done["exit_status"] == "3", camp.output(alice, id, "job.sh", "e")
    assert done["failed"] == "0"
    first, host, read = camp.output(alice, id, "job.sh").splitlines()
    wanted = f"{alice.uid} {alice.gid} {alice.directory} a [b c] {id} 1 bar undefined 0022"
    assert first == wanted
    assert host.startswith("mini-")
    assert read == "read inside"
    assert camp.output(alice, id, "job.sh", "e") == "oops\n"
    assert (alice.directory / "made-inside").stat().st_uid == alice.uid


def test_job_that_names_no_environment_runs_on_the_host(camp: Camp, alice: Person) -> None:
    script = 'uname -n; echo "[${ENCAMP_MACHINE-}]"; exit 4\n'
    ids = [
        camp.submit(alice, script=script),
        camp.submit(alice, "-l", "env=none", "-v", "ENCAMP_ENVIRONMENT=mini", script=script),
    ]
    for id in ids:
        assert camp.ended(id)["exit_status"] == "4"
        assert camp.output(alice, id) in [f"{name}\n[]\n" for name in camp.names]


def test_each_task_of_an_array_has_a_machine_and_its_number(camp: Camp, alice: Person) -> None:
    script = "#!/bin/sh\necho $SGE_TASK_ID $SGE_TASK_LAST $(uname -n)\nexit $SGE_TASK_ID\n"
    id = camp.submit(alice, *MINI, "-t", "1-3", script=script)
    camp.ended(id)
    names = set()
    for task in ("1", "2", "3"):
        assert camp.ended(f"{id}.{task}")["exit_status"] == task
        number, last, name = camp.output(alice, f"{id}.{task}").split()
        assert (number, last) == (task, "3")
        names.add(name)
    assert len(names) == 3


def test_jobs_wait_for_others_and_for_being_let_go(camp: Camp, alice: Person) -> None:
    first = camp.submit(alice, *MINI, "-cwd", "-h", script="echo first >>order\n")
    second = camp.submit(alice, *MINI, "-cwd", "-hold_jid", first, script="echo second >>order\n")
    assert (camp.state(first), camp.state(second)) == ("hqw", "hqw")
    camp.site.run_as(alice.name, ["qrls", first])
    camp.ended(second)
    assert (alice.directory / "order").read_text() == "first\nsecond\n"


def test_machine_is_as_large_as_what_was_granted(camp: Camp, alice: Person) -> None:
    script = "nproc; sed -n 's/^MemTotal: *//p' /proc/meminfo\n"
    asked = ("-pe", "smp", "2", "-l", "virtual_free=150M")
    id = camp.submit(alice, *MINI, *asked, script=script)
    camp.ended(id)
    processors, memory = camp.output(alice, id).splitlines()
    assert processors == "2"
    # Its kernel keeps some of the 300 MiB to itself.
    assert 220_000 < int(memory.split()[0]) <= 300 * 1024


def test_parallel_job_reads_in_its_machine_where_its_slots_are(camp: Camp, alice: Person) -> None:
    id = camp.submit(alice, *MINI, "-pe", "mpi", "2", script="echo $NSLOTS; cat $PE_HOSTFILE\n")
    camp.ended(id)
    slots, *hosts = camp.output(alice, id).splitlines()
    assert slots == "2"
    assert sorted(line.split()[0:2] for line in hosts) == [[name, "1"] for name in camp.names]


def test_deleted_job_takes_its_machine_with_it(camp: Camp, alice: Person) -> None:
    id = camp.submit(alice, *MINI, script="echo up; sleep 600\n")
    camp.printed(alice, id, "up")
    assert len(camp.machines()) == 1
    camp.site.run_as(alice.name, ["qdel", id])
    camp.ended(id)
    camp.wait_for("the end of its machine", lambda: not camp.machines())


def test_job_hears_that_its_time_is_over_or_is_ended(camp: Camp, alice: Person) -> None:
    script = """#!/bin/sh
trap 'echo warned; exit 7' USR1
echo up
while :; do sleep 0.2; done
"""
    # On a busy host a machine may not be up in the time that is long enough otherwise.
    for seconds in (8, 32, 128):
        limits = [f"s_rt={seconds}", f"h_rt={seconds}"]
        ids = [camp.submit(alice, *MINI, "-l", limit, script=script) for limit in limits]
        codes = [camp.ended(id)["exit_status"] for id in ids]
        printed = [camp.output(alice, id).split() for id in ids]
        if all("up" in each for each in printed):
            assert printed == [["up", "warned"], ["up"]]
            assert codes[0] == "7"
            assert codes[1] != "0"
            return
    raise AssertionError("No machine came up in two minutes.")


@pytest.fixture
def long_notice(camp: Camp) -> Iterator[None]:
    """However busy the host is, a job has heard of its end before that comes."""
    before = camp.queue_value("notify")
    camp.site.change("q", camp.site.queue, notify="00:01:00")
    yield
    camp.site.change("q", camp.site.queue, notify=before)


@pytest.mark.usefixtures("long_notice")
def test_job_hears_before_it_is_deleted_if_it_asked_for_that(camp: Camp, alice: Person) -> None:
    script = """#!/bin/sh
trap 'echo warned; exit 7' USR2
echo up
while :; do sleep 0.2; done
"""
    id = camp.submit(alice, *MINI, "-notify", script=script)
    camp.printed(alice, id, "up")
    camp.site.run_as(alice.name, ["qdel", id])
    camp.ended(id)
    assert camp.output(alice, id).split() == ["up", "warned"]


CHECKPOINTING = """\
ckpt_name          encamp
interface          USERDEFINED
ckpt_command       NONE
migr_command       NONE
restart_command    NONE
clean_command      NONE
ckpt_dir           /tmp
signal             NONE
when               xmr
"""


@pytest.fixture
def checkpointed(camp: Camp) -> Iterator[None]:
    before = camp.queue_value("ckpt_list")
    camp.site.tell("-Ackpt", CHECKPOINTING)
    camp.site.change("q", camp.site.queue, ckpt_list="encamp")
    yield
    camp.site.change("q", camp.site.queue, ckpt_list=before)
    camp.site.run(["qconf", "-dckpt", "encamp"])


@pytest.mark.usefixtures("checkpointed")
def test_job_that_is_migrated_begins_again_and_is_not_taken_for_a_lost_one(
    camp: Camp, alice: Person
) -> None:
    script = '#!/bin/sh\necho "run $RESTARTED"\n[ $RESTARTED = 0 ] && sleep 600\n:\n'
    id = camp.submit(alice, *MINI, "-ckpt", "encamp", script=script)
    camp.printed(alice, id, "run 0")
    camp.site.run_as(alice.name, ["qmod", "-sj", id])
    camp.ended(id)
    assert "run 1" in camp.output(alice, id)
    assert "queued again" not in camp.output(alice, id, stream="e")
    assert Outcome.GIVEN_BACK not in outcomes_of(camp, id)


@pytest.fixture
def signals_as_methods(camp: Camp) -> Iterator[None]:
    """What the queue does to jobs is to send them signals of the site's choice."""
    methods = {
        "suspend_method": "SIGTSTP",
        "resume_method": "SIGHUP",
        "terminate_method": "SIGTERM",
    }
    before = {name: camp.queue_value(name) for name in methods}
    camp.site.change("q", camp.site.queue, **methods)
    yield
    camp.site.change("q", camp.site.queue, **before)


@pytest.mark.usefixtures("signals_as_methods")
@pytest.mark.parametrize("parallel", [(), ("-pe", "smp", "2")])
def test_signals_that_are_a_queues_methods_reach_the_job_and_end_nothing_else(
    camp: Camp, alice: Person, parallel: tuple[str, ...]
) -> None:
    """Grid Engine sends them to the job's first process, and then to all that carries the job's
    group: who is quick hears them twice."""
    script = """#!/bin/sh
trap 'echo suspended' TSTP
trap 'echo resumed' HUP
trap 'echo ended; exit 7' TERM
echo up
while :; do sleep 0.2; done
"""
    id = camp.submit(alice, *MINI, *parallel, script=script)
    camp.printed(alice, id, "up")
    for command, heard in (
        (["qmod", "-sj"], "suspended"),
        (["qmod", "-usj"], "resumed"),
        (["qdel"], "ended"),
    ):
        camp.site.run_as(alice.name, [*command, id])
        camp.printed(alice, id, heard)
    camp.ended(id)
    heard_of = [word for word, _ in groupby(camp.output(alice, id).split())]
    assert heard_of == ["up", "suspended", "resumed", "ended"]
    assert outcomes_of(camp, id) == [Outcome.DONE]
    assert "queued again" not in camp.output(alice, id, stream="e")


def test_job_can_run_by_the_word_of_grid_engine_before_it_is_submitted(
    camp: Camp, alice: Person
) -> None:
    """DRMAA asks that, too."""
    id = camp.submit(alice, *MINI, "-w", "e", script="uname -n\n")
    camp.ended(id)
    assert camp.output(alice, id).startswith("mini-")
    words = ["qsub", "-b", "y", *MINI, "-w", "v"]
    said = camp.site.run_as(alice.name, [*words, "true"])
    assert "found suitable queue" in said.stdout + said.stderr
    said = camp.site.run_as(alice.name, [*words, "-l", "arch=none", "true"], check=False)
    assert "no suitable queue" in said.stdout + said.stderr


def test_suspended_job_stands_still_and_goes_on(camp: Camp, alice: Person) -> None:
    beats = alice.directory / "beats"
    script = "while [ ! -e beats.end ]; do echo >>beats; sleep 0.05; done; exit 5\n"
    id = camp.submit(alice, *MINI, "-cwd", script=script)
    camp.wait_for("a beat", beats.exists)
    camp.site.run_as(alice.name, ["qmod", "-sj", id])
    camp.wait_for("a machine that is stopped", lambda: stopped(camp.machines()))
    camp.wait_for_state(id, "s")
    seen = beats.stat().st_size
    # Its processors stand still, whatever the clock does.
    time.sleep(1.0)
    assert beats.stat().st_size == seen
    camp.site.run_as(alice.name, ["qmod", "-usj", id])
    camp.wait_for("another beat", lambda: beats.stat().st_size > seen)
    (alice.directory / "beats.end").touch()
    assert camp.ended(id)["exit_status"] == "5"


def test_rescheduled_job_runs_again_in_another_machine(camp: Camp, alice: Person) -> None:
    script = "echo $RESTARTED $(uname -n) >>runs; [ $RESTARTED = 1 ] || sleep 600\n"
    id = camp.submit(alice, *MINI, "-cwd", "-r", "y", script=script)
    runs = alice.directory / "runs"
    camp.wait_for("its first run", lambda: runs.exists() and runs.read_text())
    camp.site.run(["qmod", "-rj", id])
    assert camp.ended(id)["exit_status"] == "0"
    first, second = (line.split() for line in runs.read_text().splitlines())
    assert (first[0], second[0]) == ("0", "1")
    assert first[1] != second[1]


def test_interactive_command_runs_in_a_machine(camp: Camp, alice: Person) -> None:
    words = ["qrsh", *MINI, "-now", "no", "echo $ENCAMP_ENVIRONMENT; uname -n; exit 9"]
    done = camp.site.run_as(alice.name, words, check=False)
    assert done.returncode == 9, done.stderr
    environment, host = done.stdout.split()
    assert environment == "mini"
    assert host.startswith("mini-")
    refused = camp.site.run_as(alice.name, ["qlogin", *MINI], check=False)
    assert refused.returncode != 0
    assert "A login cannot be in an environment" in refused.stdout + refused.stderr


def test_command_runs_though_the_image_lacks_the_shell_of_its_queue(
    camp: Camp, alice: Person
) -> None:
    words = ("-b", "y", "-S", "/bin/bash", "-N", "split", "echo 'a  b' $JOB_ID; exit 8")
    id = camp.submit(alice, *MINI, *words)
    assert camp.ended(id)["exit_status"] == "8", camp.output(alice, id, "split", "e")
    assert camp.output(alice, id, "split") == f"a  b {id}\n"


def test_accounting_has_what_the_machine_used(camp: Camp, alice: Person) -> None:
    script = "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done\n"
    id = camp.submit(alice, *MINI, script=script)
    done = camp.ended(id)
    # The starter itself uses some milliseconds.
    assert float(done["cpu"].rstrip("s")) > 0.5, done


def stopped(pids: list[int]) -> bool:
    """Grid Engine stops everything that carries the job's own group, the machine included."""
    return [psutil.Process(pid).status() for pid in pids] == [psutil.STATUS_STOPPED]
