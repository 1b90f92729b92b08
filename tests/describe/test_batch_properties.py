"""Which hosts read properties of a batch system."""

from __future__ import annotations

import pytest

from encamp.agent.properties.finding import Plugins
from encamp.core.kinds import HOST_FACTS
from encamp.describe.property_files import batch_properties, load_properties, shipped_properties
from tests.describe.conftest import Host, root_only

pytestmark = root_only

QUEUE = "batch_waiting"


def names(*, anywhere: bool = False) -> set[str]:
    found = {one.name for one in load_properties(Plugins().names, anywhere=anywhere)}
    return found - {one.name for one in shipped_properties()}


ALL = {one.name for one in batch_properties()}


def test_a_host_without_a_batch_system_reads_none_of_them(host: Host) -> None:
    assert names() == set()


def test_a_host_with_one_reads_all_that_costs_nothing(host: Host) -> None:
    host.write(host.site, "system: slurm\n", "batch.yaml")
    assert names() == ALL - {QUEUE}


def test_the_queue_is_looked_at_only_where_that_is_said(host: Host) -> None:
    host.write(host.site, "system: slurm\nwatch: true\n", "batch.yaml")
    assert names() == ALL


def test_a_mistake_in_batch_yaml_costs_no_other_property(host: Host) -> None:
    host.write(host.site, "sytsem: slurm\n", "batch.yaml")
    assert names() == set()
    assert load_properties(Plugins().names) == shipped_properties()


def test_managers_know_of_all_of_them(host: Host) -> None:
    """So that triggers can speak of them before such a host has joined."""
    assert names(anywhere=True) == ALL


def test_they_can_be_changed_like_others(host: Host) -> None:
    host.write(host.site, "system: slurm\n", "batch.yaml")
    host.write(host.site, "bait: {ticks: 60}\nbatch_jobs: {ticks: off}\n", "properties.yaml")
    found = {one.name: one for one in load_properties(Plugins().names)}
    assert found["bait"].ticks == 60
    assert found["bait"].command == "batch"
    assert "batch_jobs" not in found


@pytest.mark.parametrize("name", sorted(ALL))
def test_no_name_is_taken(name: str) -> None:
    assert name not in HOST_FACTS
    assert name not in {one.name for one in shipped_properties()}
