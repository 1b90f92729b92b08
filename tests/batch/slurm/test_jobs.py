"""Ordinary users' jobs in machines, beside jobs without: everything is as it would have been."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.model.batch import Rule
from tests.batch.slurm.camping import Camp, a_camp
from tests.batch.slurm.private import User, root_only

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(900)]

MINI = "--comment=env:mini"
BOOT = "/proc/sys/kernel/random/boot_id"
COUNTER = (
    "#!/bin/sh\ni=0\n"
    "while :; do i=$((i+1)); echo $i > count.new; mv count.new count; sleep 0.1; done\n"
)
"""Whoever looks finds a whole number."""


@pytest.fixture(scope="module")
def shared(site_home: Home) -> Iterator[Camp]:
    rules = (Rule(environment="small", queue="vm"),)
    with a_camp(site_home, users=2, nodes=2, partitions=("main", "vm"), rules=rules) as camp:
        yield camp


def counted(camp: Camp, user: User, more_than: int = 0) -> int:
    """How far a job has counted."""
    path = user.directory / "count"

    def read() -> int:
        text = path.read_text() if path.exists() else ""
        return int(text) if text.endswith("\n") and int(text) > more_than else 0

    return int(camp.wait_for(f"a job that counts beyond {more_than}", read))


def test_a_job_runs_in_a_machine_as_it_would_have_outside(camp: Camp, user: User) -> None:
    user.write(
        "job",
        f"#!/bin/sh\ncat {BOOT}\nid -u; id -g; id -G; pwd; umask; ulimit -n; echo $HOME\n"
        'echo "$# $1 $2"; echo "$SLURM_JOB_NAME $SLURM_JOB_PARTITION $SLURM_NTASKS $OWN"\n'
        "echo $SLURM_SUBMIT_DIR; cat\n",
    )
    (user.directory / "input").write_text("what is read\n")
    words = ("-J", "name", "--input=input", "-n", "1", "job", "one", "two words")
    variables = {"OWN": "value", "HOME": str(user.directory)}
    jobs = [camp.submit(*more, *words, variables=variables) for more in ([MINI], [])]
    inside, outside = (camp.done(job).splitlines() for job in jobs)
    assert inside[0] != outside[0] == Path(BOOT).read_text().strip()
    assert inside[1:] == outside[1:]
    assert inside[-4:] == [
        "2 one two words",
        "name main 1 value",
        str(user.directory),
        "what is read",
    ]


def test_wrapped_commands_and_lines_in_scripts_name_environments_too(
    camp: Camp, user: User
) -> None:
    user.write(
        "lined",
        f"#!/bin/sh\n#SBATCH {MINI} -o out -e err\ncat {BOOT}\necho wrong >&2\nexit 3\n",
    )
    lined = camp.submit("lined")
    wrapped = camp.submit(MINI, "--wrap", f"cat {BOOT}; echo both; echo at once >&2")
    camp.done(lined, "FAILED")
    assert camp.exit_code(lined) == "3:0"
    boot = (user.directory / "out").read_text()
    assert boot != Path(BOOT).read_text()
    assert (user.directory / "err").read_text() == "wrong\n"
    assert camp.done(wrapped).splitlines()[1:] == ["both", "at once"]


def test_a_job_that_a_signal_ends_is_seen_to_be(camp: Camp) -> None:
    job = camp.submit(MINI, "--wrap", "kill -SEGV $$")
    outside = camp.submit("--wrap", "kill -SEGV $$")
    camp.done(job, "FAILED")
    camp.done(outside, "FAILED")
    assert camp.exit_code(job) == camp.exit_code(outside) == "0:11"


def test_a_program_that_only_the_host_has_is_named(camp: Camp, user: User) -> None:
    user.write("job", "#! /usr/bin/absent -f\n")
    job = camp.submit(MINI, "job")
    said = camp.done(job, "FAILED")
    assert "Environment 'mini' has no '/usr/bin/absent', which the script's first line" in said
    assert camp.exit_code(job) == "127:0"


def test_a_signal_that_comes_while_the_machine_is_made_finds_traps_set(
    camp: Camp, user: User
) -> None:
    user.write(
        "job",
        "#!/bin/sh\ntrap 'echo caught; kill $!' USR1\nsleep 60 & wait; wait; echo over\n",
    )
    job = camp.submit(MINI, "--no-requeue", "job")
    # Before its starter is there, Slurm itself can lose a signal.
    nodes = range(len(camp.homes))
    camp.wait_for("a starter", lambda: any(camp.records(job, node) for node in nodes))
    camp.run("scancel", "--batch", "--signal=USR1", job, user=user)
    assert camp.done(job) == "caught\nover\n"


def test_rules_give_users_machines_who_change_nothing(camp: Camp, user: User) -> None:
    ruled, plain = (
        camp.submit("-p", "vm", "--wrap", f"cat {BOOT}"),
        camp.submit("-p", "vm", "--comment=env:none", "--wrap", f"cat {BOOT}"),
    )
    assert camp.done(ruled) != camp.done(plain) == Path(BOOT).read_text()
    assert camp.slurm().standing(ruled).environment == "small"  # type: ignore[union-attr]


def test_each_task_of_an_array_has_its_own_machine(camp: Camp, user: User) -> None:
    text = f"cat {BOOT}; echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID > task.$SLURM_ARRAY_TASK_ID"
    job = camp.submit(MINI, "-a", "3,5", "--wrap", text)
    camp.wait_for("the array", lambda: not camp.run("squeue", "-h", "-j", job))
    for task in ("3", "5"):
        assert (user.directory / f"task.{task}").read_text() == f"{job} {task}\n"
        assert Path(BOOT).read_text() not in camp.output(f"{job}_{task}")


def test_a_job_on_two_nodes_knows_both(camp: Camp) -> None:
    text = "echo $SLURM_JOB_NODELIST $SLURM_JOB_NUM_NODES $SLURMD_NODENAME $SLURM_TASKS_PER_NODE"
    job = camp.submit(MINI, "-N2", "-n4", "--wrap", text)
    assert camp.done(job) == "n[1-2] 2 n1 2(x2)\n"


def test_holds_and_dependencies_are_kept(camp: Camp, user: User) -> None:
    first = camp.submit(MINI, "--hold", "--wrap", "echo first >> order; exit 4")
    after = camp.submit(MINI, f"--dependency=afternotok:{first}", "--wrap", "echo after >> order")
    never = camp.submit(
        f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes", "--wrap", "true"
    )
    assert camp.state(first) == camp.state(after) == "PENDING"
    camp.run("scontrol", "release", first, user=user)
    camp.done(after)
    assert (user.directory / "order").read_text() == "first\nafter\n"
    assert camp.exit_code(first) == "4:0"
    camp.wait_for_state(never, "CANCELLED")


def test_signals_reach_a_job_and_cancelling_ends_it(camp: Camp, user: User) -> None:
    user.write("trap", "#!/bin/sh\ntrap 'echo heard > heard' USR1\necho up > up\n" + COUNTER[10:])
    job = camp.submit(MINI, "trap")
    camp.wait_for_text(user.directory / "up")
    camp.run("scancel", "--batch", "--signal=USR1", job, user=user)
    assert camp.wait_for_text(user.directory / "heard") == "heard\n"
    before = counted(camp, user)
    assert counted(camp, user, before) > before
    camp.run("scancel", job, user=user)
    camp.wait_for_state(job, "CANCELLED")
    camp.wait_for("no machine", lambda: not camp.machines())


def test_a_signal_to_the_batch_script_alone_reaches_nobody_else(camp: Camp, user: User) -> None:
    user.write(
        "family",
        "#!/bin/sh\ntrap 'echo script >> said' USR1\n"
        "(trap 'echo child >> said' USR1; echo up > up; while [ ! -e go ]; do sleep 0.1; done) &\n"
        "wait; wait\n",
    )
    job = camp.submit(MINI, "family")
    camp.wait_for_text(user.directory / "up")
    camp.run("scancel", "--batch", "--signal=USR1", job, user=user)
    camp.wait_for_text(user.directory / "said")
    (user.directory / "go").touch()
    camp.done(job)
    assert (user.directory / "said").read_text() == "script\n"


def test_a_suspended_job_stands_still_and_goes_on(camp: Camp, user: User) -> None:
    user.write("counter", COUNTER)
    job = camp.submit(MINI, "counter")
    counted(camp, user)
    camp.run("scontrol", "suspend", job)
    camp.wait_for_state(job, "SUSPENDED")
    seen = camp.wait_until_still("a job", (user.directory / "count").read_text)
    camp.run("scontrol", "resume", job)
    camp.wait_for_state(job, "RUNNING")
    counted(camp, user, int(seen))


def test_a_job_that_is_queued_again_runs_again_in_a_new_machine(camp: Camp, user: User) -> None:
    user.write(
        "again",
        '#!/bin/sh\necho "run ${SLURM_RESTART_COUNT:-0}" >> runs\n'
        '[ -n "$SLURM_RESTART_COUNT" ] || sleep 1000\n',
    )
    job = camp.submit(MINI, "again")
    camp.wait_for_text(user.directory / "runs", "run 0")
    camp.run("scontrol", "requeue", job)
    camp.wait_for_state(job, "PENDING")
    camp.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    camp.done(job)
    assert (user.directory / "runs").read_text() == "run 0\nrun 1\n"


def test_a_jobs_time_limit_ends_it(camp: Camp, user: User) -> None:
    user.write("counter", COUNTER)
    job = camp.submit(MINI, "--time=1", "counter")
    counted(camp, user)
    camp.run("scontrol", "update", f"JobId={job}", "EndTime=now")
    camp.done(job, "TIMEOUT")
    assert "DUE TO TIME LIMIT" in camp.output(job)
    camp.wait_for("no machine", lambda: not camp.machines())


def test_a_job_for_an_environment_that_does_not_exist_is_held_with_a_reason(
    camp: Camp, user: User
) -> None:
    job = camp.submit("--comment=env:nosuch", "--wrap", "echo ran > ran")
    camp.wait_for("a held job", lambda: "held" in camp.field(job, "Reason").lower())
    said = camp.run("scontrol", "show", "job", job, user=user)
    assert "AdminComment=env=nosuch; encamp: There is no environment 'nosuch'; given back" in said
    assert not (user.directory / "ran").exists()
