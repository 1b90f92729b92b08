"""Which commands of a batch system jobs find in their machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.batch.adapters import open_batch_system
from encamp.model.batch import BatchSettings, Offered, Reads


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("srun", "sbatch", "squeue", "salloc", "qsub", "qstat", "rm"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sinfo").write_text("cannot be run")
    return tmp_path


def commands(system: str, **programs: str) -> dict[str, Offered]:
    settings = BatchSettings(system=system, programs=programs)
    return open_batch_system(settings).commands("mini")


def test_slurms_are_those_that_are_there_and_begin_nothing_outside(place: Path) -> None:
    found = commands("slurm", commands=str(place))
    assert set(found) == {"srun", "sbatch", "squeue"}
    assert found["srun"].words == (f"{place}/srun", "--vmenv=mini")
    assert found["srun"].check[:2] == found["srun"].words
    assert "encamp batch install slurm --spank" in found["srun"].lacking
    assert found["squeue"] == Offered(words=(f"{place}/squeue",))
    assert found["sbatch"].reads is Reads.ALONE


def test_grid_engines_are_found_where_its_commands_are(place: Path) -> None:
    found = commands("gridengine", commands=str(place))
    assert set(found) == {"qsub", "qstat"}
    assert found["qsub"].options["-pe"] == 2


def test_pbs_has_its_own_and_those_of_what_stands_behind_it(place: Path) -> None:
    found = commands("pbs", commands=str(place), pbs=str(place))
    assert set(found) == {"srun", "sbatch", "squeue", "qsub", "qstat"}
