"""What is said of a node that shares a partition with hosts that are none, or its name with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.batch.enrol.slurm import SlurmWorkers
from encamp.model.batch import BatchSettings
from encamp.model.errors import EncampError

NODE = "NodeName={} CPUTot=1 AvailableFeatures={} OS=Linux 6.1 State=IDLE Partitions={} Boot=1"
STATE = "NodeName=w1 CPUTot=1 NodeAddr=w1 OS=Linux 6.1 State={} Partitions=main"


def workers(place: Path, *lines: str, **settings: str) -> SlurmWorkers:
    """Slurm says these lines of its nodes, and nothing else."""
    (place / "slurm.conf").touch()
    program = place / "scontrol"
    said = "\n".join(lines)
    program.write_text(f"#!/bin/sh\n[ $2 = show ] || exit 1\ncat <<'END'\n{said}\nEND\n")
    program.chmod(0o755)
    programs = {"conf": str(place / "slurm.conf"), "commands": str(place)}
    made = BatchSettings(system="slurm", programs=programs, **settings)  # type: ignore[arg-type]
    return SlurmWorkers(made)


def remark(place: Path, *nodes: tuple[str, str, str], **settings: str) -> str:
    """Of node w1, among those that Slurm has."""
    return workers(place, *(NODE.format(*node) for node in nodes), **settings).remark("w1")


WORKER, ANOTHER = ("w1", "slurm-node,big", "main,tiny"), ("w2", "slurm-node", "main")


def test_nodes_among_themselves_are_where_they_belong(tmp_path: Path) -> None:
    assert remark(tmp_path, WORKER, ANOTHER, ("n1", "(null)", "other")) == ""
    assert remark(tmp_path, ANOTHER) == ""


@pytest.mark.parametrize("features", ["(null)", "big"])
def test_partition_with_other_hosts_is_remarked(tmp_path: Path, features: str) -> None:
    others = ("n1", features, "main,more"), ("n2", features, "more,main")
    said = remark(tmp_path, WORKER, ANOTHER, *others)
    assert said.startswith("Slurm's partition main has other hosts, too: jobs that are not for")
    assert remark(tmp_path, WORKER, *others, bait_feature="encamp") == ""


@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "DOWN*", "MIXED+DRAIN"])
def test_name_of_a_host_is_refused_before_there_is_a_machine(tmp_path: Path, state: str) -> None:
    with pytest.raises(EncampError, match="Slurm has a node w1 already: it is a host of the"):
        workers(tmp_path, STATE.format(state)).check("w1", None)


@pytest.mark.parametrize(
    ("state", "is_free"),
    [
        ("DOWN*+DYNAMIC_NORM", True),
        ("IDLE*+DYNAMIC_NORM", True),
        ("IDLE+DYNAMIC_NORM", False),
        ("IDLE+CLOUD", False),
        ("ALLOCATED+CLOUD+POWERING_UP", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
    ],
)
def test_name_of_a_machine_is_free_when_that_does_not_answer(
    tmp_path: Path, state: str, is_free: bool
) -> None:
    one = workers(tmp_path, STATE.format(state))
    if is_free:
        one.check("w1", "10.0.0.1")
    else:
        with pytest.raises(EncampError, match="Slurm has a node w1 already: it answers, at w1"):
            one.check("w1", "10.0.0.1")
    one.check("w2", "10.0.0.1")
