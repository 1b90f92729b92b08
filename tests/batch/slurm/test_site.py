"""The private Slurm site itself: it comes up, it is private, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.batch.slurm import keeper
from encamp.batch.slurm.site import SlurmSite
from encamp.model.errors import Code, EncampError
from tests.batch.slurm.private import PATIENCE, private_place, root_only

pytestmark = [pytest.mark.site, root_only]


@pytest.fixture
def place() -> Iterator[Path]:
    with private_place() as found:
        yield found / "site"


def wait_until_gone(place: Path) -> None:
    end = time.monotonic() + PATIENCE
    while keeper.members(str(place)) or place.exists():
        assert time.monotonic() < end, keeper.members(str(place))
        time.sleep(0.02)


def test_nodes_are_hosts_of_their_own(place: Path) -> None:
    neighbours = {path.name for path in Path("/run").iterdir()} - {"encamp"}
    with SlurmSite(place, nodes=2) as site:
        said = site.run(["srun", "-N2", "-l", "sh", "-c", "hostname; ls /run/encamp | wc -l"])
        assert sorted(said.stdout.split("\n")[:-1]) == ["0: 0", "0: n1", "1: 0", "1: n2"]
        site.nodes[0].run(["touch", "/run/encamp/here"])
        assert site.nodes[0].run(["ls", "/run/encamp"]).stdout == "here\n"
        assert site.nodes[1].run(["ls", "/run/encamp"]).stdout == ""
        assert not Path("/run/encamp/here").exists()
        seen = set(site.nodes[0].run(["ls", "-A", "/run"]).stdout.split())
        assert seen >= {name for name in neighbours if Path("/run", name).exists()}


def test_nobody_else_can_reach_it(place: Path) -> None:
    with SlurmSite(place, nodes=1) as site:
        ports = {site.port, site.port + 2}
        listening = [
            line.split()[1].split(":")
            for line in Path("/proc/net/tcp").read_text().splitlines()
            if line.split()[3] == "0A"
        ]
        found = {int(port, 16): address for address, port in listening}
        assert {port: found[port] for port in ports} == dict.fromkeys(ports, "0100007F")


def test_nothing_is_left_of_it(place: Path) -> None:
    with SlurmSite(place, nodes=1) as site:
        site.run(["sbatch", "-o", "/dev/null", "--wrap", "setsid sleep 1000 & sleep 1000"])
        program = site.nodes[0].start(["sleep", "1000"], log=place / "log" / "sleep")
        assert program.pid in site.members()
    assert keeper.members(str(place)) == []
    assert not place.exists()


def test_nothing_is_left_when_its_process_is_killed(place: Path, tmp_path: Path) -> None:
    text = (
        "import sys, time\nfrom pathlib import Path\n"
        "from encamp.batch.slurm.site import SlurmSite\n"
        "with SlurmSite(Path(sys.argv[1]), nodes=1) as site:\n"
        "    site.nodes[0].start(['sleep', '1000'], log=Path(sys.argv[2]))\n"
        "    print('up', flush=True)\n"
        "    time.sleep(1000)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text, place, tmp_path / "log"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
        assert len(keeper.members(str(place))) >= 4
        process.kill()
        process.wait()
    wait_until_gone(place)


def test_the_next_one_ends_what_a_killed_keeper_has_left(place: Path) -> None:
    first = SlurmSite(place, nodes=1)
    with first:
        job = "trap '' TERM; setsid sleep 1000 & sleep 1000"
        first.run(["sbatch", "-o", "/dev/null", "--wrap", job])
        first.run(["srun", "-n1", "true"])
        os.kill(first.keeper, signal.SIGKILL)
        first.slurmctld.kill()
    left = keeper.members(str(place))
    with SlurmSite(place, nodes=1) as second:
        assert set(left).isdisjoint(second.members())
        assert second.run(["srun", "hostname"]).stdout == "n1\n"
    assert keeper.members(str(place)) == []


def test_two_in_one_directory_are_refused(place: Path) -> None:
    with SlurmSite(place, nodes=1), pytest.raises(EncampError) as caught:
        SlurmSite(place, nodes=1).__enter__()
    assert caught.value.code is Code.WRONG_STATE


def test_a_directory_with_too_long_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncampError, match="no good place") as caught:
        SlurmSite(tmp_path / ("x" * 70)).__enter__()
    assert "at most 60" in caught.value.hint


def test_jobs_are_held_together_by_control_groups_if_wished(place: Path) -> None:
    if not Path("/sys/fs/cgroup/freezer").exists():
        pytest.skip("this machine has no control group that freezes")
    name = f"g{os.getpid()}"
    with SlurmSite(place, nodes=(name,), control_groups=True) as site:
        said = site.run(["srun", "cat", "/proc/self/cgroup"]).stdout
        assert f"/slurm_{name}/uid_0/job_1/" in said
    assert list(Path("/sys/fs/cgroup").glob(f"*/slurm_{name}")) == []
