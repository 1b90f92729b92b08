"""What is said of a node that shares a partition with hosts that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.batch.enrol.slurm import SlurmWorkers
from encamp.model.batch import BatchSettings

NODE = "NodeName={} CPUTot=1 AvailableFeatures={} OS=Linux 6.1 State=IDLE Partitions={} Boot=1"


def remark(place: Path, *nodes: tuple[str, str, str], **settings: str) -> str:
    """Of node w1, among those that Slurm has."""
    (place / "slurm.conf").touch()
    program = place / "scontrol"
    lines = "\n".join(NODE.format(*node) for node in nodes)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    program.chmod(0o755)
    programs = {"conf": str(place / "slurm.conf"), "commands": str(place)}
    made = BatchSettings(system="slurm", programs=programs, **settings)  # type: ignore[arg-type]
    return SlurmWorkers(made).remark("w1")


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
