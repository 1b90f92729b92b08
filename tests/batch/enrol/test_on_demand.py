"""A whole site: jobs wait in Slurm's queue, a trigger that is shipped has a worker node started for
them, and it leaves when it is idle; whatever happens to the agent meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from encamp.batch.slurm.site import SlurmSite
from encamp.home import Home
from tests.batch.enrol.conftest import Host, wait_until
from tests.batch.enrol.test_power_saving import NODE, place, tell_programs
from tests.batch.enrol.test_slurm_nodes import is_running, known, state, submit
from tests.site.siting import RunningSite, root_only, running_site

__all__ = ["place"]

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(400)]

SHIPPED = Path(__file__).parents[3] / "examples" / "triggers" / "nodes.yaml"
WAITS = "while ! test -e /tmp/end; do sleep 0.1; done"


def set_up(site: RunningSite, slurm: SlurmSite, described: Path, home: Home) -> None:
    """One host with a bridge, which looks at the queue, too."""
    agent = site.add_agent("node1", home.root)
    # Where its door is nobody else's.
    agent.command = slurm.controller.command(agent.command)
    for directory in (site.root / "node1", site.config):
        for name in ("settings.yaml", "environments.yaml"):
            shutil.copy(described / name, directory / name)
    batch = (described / "batch.yaml").read_text()
    (site.root / "node1" / "batch.yaml").write_text(f"{batch}watch: true\n")
    (site.config / "batch.yaml").write_text(batch)
    triggers = yaml.safe_load(SHIPPED.read_text().replace("slurm-node", "tiny-slurm"))
    wanted = {**triggers["node_for_waiting"], "ticks": "1s"}
    (site.config / "triggers.yaml").write_text(yaml.safe_dump({"node_for_waiting": wanted}))


def test_jobs_that_wait_have_a_node_started_which_leaves_when_idle(
    slurm_host: Host, slurm: SlurmSite, site_directory: Path, site_home: Home, tmp_path: Path
) -> None:
    described = site_directory / "environments.yaml"
    described.write_text(described.read_text().replace("idle: 1h", "idle: 1s"))
    slurm_host.encamp("batch", "offer", "tiny-slurm")
    with running_site(tmp_path / "site-of-all", (), start=False) as site:
        set_up(site, slurm, site_directory, site_home)
        site.start()
        site.wait_for_hosts("node1")
        job = submit(slurm, WAITS, "-C", "tiny-slurm")
        assert state(slurm, job) == "PENDING"
        wait_until(lambda: is_running(slurm, job), "a node for the job")
        where = slurm.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
        machine = slurm_host.keeper.journal.find(where)
        # Nodes outlive their agent, and the next one looks after them.
        site.daemons["node1"].kill()
        assert is_running(slurm, job)
        site.start("node1")
        site.wait_for_hosts("node1")
        slurm_host.inside(machine, "touch /tmp/end")
        wait_until(lambda: state(slurm, job) == "COMPLETED", "the job")
        wait_until(lambda: slurm_host.keeper.journal.all() == [], "the node to leave")
        assert known(slurm) == []
        started = [one for one in site.commands().values() if one["name"] == "node.start"]
        assert {(one["issuer"], one["state"]) for one in started} == {
            ("trigger:node_for_waiting", "done")
        }
    slurm.run(["scontrol", "delete", "nodename=encamp-offers-tiny-slurm"])


def test_slurm_has_nodes_made_on_any_host_of_the_site(
    place: Path,
    slurm_host: Host,
    slurm: SlurmSite,
    site_directory: Path,
    site_home: Home,
    tmp_path: Path,
) -> None:
    with running_site(tmp_path / "site-of-all", (), start=False) as site:
        set_up(site, slurm, site_directory, site_home)
        tell_programs(slurm, **site.environment, ON="--on @workers")
        site.start()
        site.wait_for_hosts("node1")
        slurm.run(["scontrol", "update", f"nodename={NODE}", "state=power_up"])
        wait_until(lambda: slurm_host.members() == [NODE], "the node")
        (started,) = [one for one in site.commands().values() if one["name"] == "node.start"]
        assert started["host"] == "node1"
        slurm.run(["scontrol", "update", f"nodename={NODE}", "state=power_down"])
        wait_until(lambda: slurm_host.keeper.journal.all() == [], "the end of the machine")
        assert known(slurm) == [NODE]
