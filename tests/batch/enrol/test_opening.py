"""Which batch system a host's worker nodes belong to."""

from __future__ import annotations

import pytest

from encamp.batch.enrol.opening import open_workers
from encamp.describe.environments import environments_that_enrol
from encamp.model.batch import BatchSettings
from encamp.model.errors import Code, EncampError


@pytest.mark.parametrize(
    ("named", "asked", "has"),
    [
        ("slurm", "slurm", "slurm"),
        ("gridengine", "gridengine", "gridengine"),
        ("pbs", "pbs", "slurm"),
        ("pbs", "slurm", "slurm"),
    ],
)
def test_nodes_are_of_the_system_that_begins_the_jobs(named: str, asked: str, has: str) -> None:
    assert open_workers(BatchSettings(system=named), asked).system == has


@pytest.mark.parametrize("named", [None, "slurm", "pbs"])
def test_nodes_of_a_system_that_the_host_does_not_have_are_refused(named: str | None) -> None:
    settings = None if named is None else BatchSettings(system=named)
    with pytest.raises(EncampError, match=f"batch system is {named or 'none'}") as refused:
        open_workers(settings, "gridengine")
    assert refused.value.code is Code.CONFIGURATION


def test_system_that_has_no_such_nodes_is_named() -> None:
    with pytest.raises(EncampError, match="Machines cannot become nodes of other") as refused:
        open_workers(BatchSettings(system="other"), "other")
    assert refused.value.code is Code.CONFIGURATION


def test_environments_that_enrol_in_slurm_do_so_where_jobs_come_by_commands_of_pbs() -> None:
    names = {one.name for one in environments_that_enrol("pbs")}
    assert "slurm-node" in names
    assert "gridengine-node" not in names
