"""What a job gets: an environment by name or rule, a size by its grant, directories of the host."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from encamp.agent.bait import choosing
from encamp.agent.bait.choosing import (
    check_no_nodes,
    choose_environment,
    choose_shares,
    choose_size,
    is_systems,
    memory_limit,
)
from encamp.describe.shipped import MINI
from encamp.model.batch import BatchJob, BatchSettings, Rule, Task
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.node import Enrolment
from encamp.model.size import MIB, Size

ALICE = User(name="alice", uid=1000, gid=1000, group="staff", groups=(1000,), home="/home/alice")
JOB = BatchJob(system="slurm", id="17", uid=1000, queue="long", account="physics")
SMALL = Environment(name="small", image=MINI, size=Size(cpus=1, memory=128 * MIB))
SETTINGS = BatchSettings(system="slurm")


def granted(**fields: object) -> BatchJob:
    return msgspec.structs.replace(JOB, **fields)


def settings(*rules: Rule) -> BatchSettings:
    return BatchSettings(system="slurm", rules=rules)


def test_what_is_named_counts_before_any_rule() -> None:
    rules = settings(Rule(environment="ruled"))
    assert choose_environment("named", JOB, rules, ALICE) == "named"
    assert choose_environment("", granted(environment="told"), rules, ALICE) == "told"
    assert choose_environment("", JOB, rules, ALICE) == "ruled"
    assert choose_environment("", JOB, SETTINGS, ALICE) == ""


def test_first_rule_decides_of_which_all_holds() -> None:
    rules = settings(
        Rule(environment="one", queue="short"),
        Rule(environment="two", queue="long", user="bob"),
        Rule(environment="", account="physics", group="staff"),
        Rule(environment="never"),
    )
    assert choose_environment("", JOB, rules, ALICE) == ""
    assert choose_environment("", granted(account="maths"), rules, ALICE) == "never"
    assert choose_environment("", granted(queue="short"), rules, ALICE) == "one"


def test_jobs_for_worker_nodes_are_taken_nowhere_else() -> None:
    check_no_nodes(SMALL)
    enrolled = msgspec.structs.replace(SMALL, enrol=Enrolment(system="slurm"))
    with pytest.raises(EncampError, match="are worker nodes") as refused:
        check_no_nodes(enrolled)
    assert refused.value.code is Code.USAGE


def test_hostile_name_that_the_batch_system_tells_is_refused() -> None:
    with pytest.raises(EncampError) as raised:
        choose_environment("", granted(environment="../../etc"), SETTINGS, ALICE)
    assert raised.value.code is Code.USAGE


def test_size_is_what_was_granted() -> None:
    cpus = os.cpu_count() or 1
    job = granted(cpus=cpus, memory=2000 * MIB)
    assert choose_size(job, Task(), SMALL, SETTINGS, None) == Size(cpus=cpus, memory=2000 * MIB)


def test_step_has_its_part_of_the_job_and_never_more() -> None:
    job = granted(cpus=4, memory=1600 * MIB)
    for cpus, memory in ((1, 400), (2, 800), (99, 1600)):
        size = choose_size(job, Task(step="0", cpus=cpus), SMALL, SETTINGS, None)
        host = os.cpu_count() or 1
        assert size == Size(cpus=min(cpus, 4, host), memory=memory * MIB)


def test_without_a_grant_it_is_the_settings_or_the_environments() -> None:
    assert choose_size(JOB, Task(), SMALL, SETTINGS, None) == SMALL.size
    chosen = BatchSettings(system="slurm", size=Size(cpus=1, memory=300 * MIB, disk=MIB << 6))
    assert choose_size(JOB, Task(), SMALL, chosen, None) == chosen.size


def test_no_machine_has_more_processors_than_the_host() -> None:
    assert choose_size(granted(cpus=9999), Task(), SMALL, SETTINGS, None).cpus == os.cpu_count()


def test_tasks_of_a_job_share_its_grant() -> None:
    size = choose_size(granted(cpus=2, memory=1024 * MIB), Task(count=2), SMALL, SETTINGS, None)
    assert size == Size(cpus=1, memory=512 * MIB)


def test_limit_of_the_control_group_leaves_room_for_the_machines_process() -> None:
    size = choose_size(granted(memory=512 * MIB), Task(), SMALL, SETTINGS, 512 * MIB)
    assert 400 * MIB < size.memory <= (512 - 48) * MIB
    assert size.memory % choosing.STEP == 0
    # Without a grant, it is the limit alone that counts.
    assert choose_size(JOB, Task(), SMALL, SETTINGS, 512 * MIB).memory == SMALL.size.memory
    limited = granted(memory=512 * MIB, limit=512 * MIB)
    assert choose_size(limited, Task(), SMALL, SETTINGS, None) == size


def test_too_little_memory_is_said_to_be_so() -> None:
    with pytest.raises(EncampError, match=r"needs at least 96 MiB .* may have 70 MiB"):
        choose_size(granted(memory=70 * MIB), Task(), SMALL, SETTINGS, None)
    limited = granted(memory=60 * MIB, limit=60 * MIB)
    with pytest.raises(EncampError, match="beside 80 MiB for the processes around it") as caught:
        choose_size(limited, Task(), SMALL, SETTINGS, None)
    assert caught.value.hint == "Ask the batch system for 176 MiB or more."


def test_shares_are_the_sites_then_the_jobs_own(tmp_path: Path) -> None:
    for name in ("site", "home", "site/below", "work/here"):
        (tmp_path / name).mkdir(parents=True)
    here = str(tmp_path)

    def shares(home: str, directory: str, *taken: str) -> list[str]:
        found = choose_shares([f"{here}/site", f"{here}/gone"], home, directory, taken)
        assert all(share.source == share.path for share in found)
        return [share.path.removeprefix(here) for share in found]

    assert shares(f"{here}/home", f"{here}/work/here") == ["/site", "/home", "/work/here"]
    assert shares(f"{here}/site/below", f"{here}/site") == ["/site"]
    assert shares("/nonexistent", f"{here}/work/here") == ["/site", "/work/here"]
    # One that holds the others takes their place.
    assert shares(f"{here}/home", here) == [""]
    assert shares(f"{here}/home", "/", f"{here}/home") == ["/site"]
    # What cannot be written down cannot be in a machine's record.
    odd = Path(f"{here}/\udcff")
    odd.mkdir()
    assert shares(f"{here}/home", str(odd)) == ["/site", "/home"]


@pytest.mark.parametrize(
    ("path", "systems"),
    [
        *(
            (path, True)
            for path in ("/", "/usr", "/etc/x", "/lib64", "/usr/bin", "/var", "/proc/1")
        ),
        *((path, False) for path in ("/home", "/tmp", "/usr/local/x", "/var/x", "/opt/x", "/usrx")),
    ],
)
def test_the_machines_own_system_is_never_hidden(path: str, systems: bool) -> None:
    assert is_systems(path) is systems


def test_memory_limit_is_the_least_of_all_groups_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "memory" / "slurm" / "job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group.parent / "memory.limit_in_bytes").write_text(f"{300 * MIB}\n")
    monkeypatch.setattr(choosing, "GROUPS", tmp_path)
    monkeypatch.setattr(choosing, "control_groups", lambda pid: [("memory", "/slurm/job")])
    assert memory_limit(1) == 300 * MIB
    unified = tmp_path / "unified" / "job"
    unified.mkdir(parents=True)
    (unified / "memory.max").write_text("max\n")
    monkeypatch.setattr(choosing, "control_groups", lambda pid: [("", "/job")])
    assert memory_limit(1) is None
    (unified / "memory.max").write_text(f"{200 * MIB}\n")
    assert memory_limit(1) == 200 * MIB
