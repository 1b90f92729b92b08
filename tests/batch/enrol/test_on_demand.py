"""A whole site: jobs wait in Slurm's queue, a trigger that is shipped has worker nodes started for
them, and these leave when they are idle; whatever happens to manager and agent meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.batch.slurm.site import SlurmSite
from encamp.home import Home
from tests.batch.enrol.conftest import Host, wait_until
from tests.batch.enrol.demanding import (
    HOST,
    Demand,
    nodes_are_kept_ready_and_none_too_many,
    nodes_come_for_jobs_and_leave,
)
from tests.batch.enrol.test_power_saving import NODE, place, tell_programs
from tests.batch.enrol.test_slurm_nodes import known, state, submit
from tests.site.siting import RunningSite, root_only, running_site

__all__ = ["place"]

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(400)]


class SlurmDemand(Demand):
    environment = "tiny-slurm"

    def __init__(self, site: RunningSite, host: Host, slurm: SlurmSite) -> None:
        super().__init__(site, host.keeper.home)
        self.host = host
        self.slurm = slurm

    def submit(self, script: str) -> str:
        return submit(self.slurm, script, "-C", self.environment)

    def waits(self, job: str) -> bool:
        return state(self.slurm, job) == "PENDING"

    def node_of(self, job: str) -> str:
        said = self.slurm.run(["squeue", "-h", "-j", job, "-t", "RUNNING", "-o", "%N"])
        return said.stdout.strip()

    def has_succeeded(self, job: str) -> bool:
        return state(self.slurm, job) == "COMPLETED"

    def known(self) -> list[str]:
        return known(self.slurm)

    def inside(self, node: str, script: str) -> None:
        self.host.encamp("exec", node, "--", "sh", "-c", script)


@pytest.fixture
def demand(
    slurm_host: Host, slurm: SlurmSite, site_directory: Path, site_home: Home, tmp_path: Path
) -> Iterator[SlurmDemand]:
    with running_site(tmp_path / "site-of-all", (), start=False) as site:
        agent = site.add_agent(HOST, site_home.root)
        # Where its door is nobody else's.
        agent.command = slurm.controller.command(agent.command)
        made = SlurmDemand(site, slurm_host, slurm)
        made.set_up(site_directory)
        yield made


def test_nodes_come_for_jobs_that_wait_are_kept_ready_and_leave(demand: SlurmDemand) -> None:
    demand.host.encamp("batch", "offer", demand.environment)
    nodes_come_for_jobs_and_leave(demand)
    nodes_are_kept_ready_and_none_too_many(demand)
    demand.slurm.run(["scontrol", "delete", f"nodename=encamp-offers-{demand.environment}"])


def test_slurm_has_nodes_made_on_any_host_of_the_site(place: Path, demand: SlurmDemand) -> None:
    site, slurm, host = demand.site, demand.slurm, demand.host
    tell_programs(slurm, **site.environment, ON="--on @workers")
    site.start()
    site.wait_for_hosts(HOST)
    slurm.run(["scontrol", "update", f"nodename={NODE}", "state=power_up"])
    wait_until(lambda: host.members() == [NODE], "the node")
    (started,) = demand.starts()
    assert started["host"] == HOST
    slurm.run(["scontrol", "update", f"nodename={NODE}", "state=power_down"])
    wait_until(lambda: host.keeper.journal.all() == [], "the end of the machine")
    assert known(slurm) == [NODE]
