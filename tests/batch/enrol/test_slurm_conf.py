"""What a machine is told before it can ask Slurm's controller for all else."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.batch.enrol.slurm_conf import SlurmConf
from encamp.model.errors import EncampError


def conf(tmp_path: Path, text: str) -> SlurmConf:
    path = tmp_path / "slurm.conf"
    path.write_text(text)
    return SlurmConf.read(path)


def test_all_controllers_are_named_with_their_address_and_port(tmp_path: Path) -> None:
    read = conf(
        tmp_path,
        """
        # SlurmctldHost=nobody
        SlurmctldHost=one(10.0.0.1)   # the first
        slurmctldhost=two
        SlurmctldPort=7000-7001
        """,
    )
    assert read.controllers == "10.0.0.1:7000,two:7000"
    assert conf(tmp_path, "SlurmctldHost=one").controllers == "one:6817"


def test_controller_that_is_not_named_is_missed(tmp_path: Path) -> None:
    with pytest.raises(EncampError, match="where its controller is"):
        _ = conf(tmp_path, "ClusterName=x").controllers
    with pytest.raises(EncampError, match="cannot be read"):
        SlurmConf.read(tmp_path / "nowhere")


def test_places_of_a_node_are_its_own(tmp_path: Path) -> None:
    read = conf(tmp_path, "SlurmdSpoolDir=/spool/%n\nSlurmdLogFile=/log/slurmd.%h")
    assert read.log("n7") == "/log/slurmd.n7"
    assert read.places("n7") == ["/spool/n7", "/var/run", "/log"]
    assert conf(tmp_path, "").places("n7") == ["/var/spool/slurmd", "/var/run"]


def test_socket_and_control_groups_are_as_the_site_has_them(tmp_path: Path) -> None:
    assert conf(tmp_path, "").munge_socket == "/run/munge/munge.socket.2"
    assert conf(tmp_path, "AuthInfo=ttl=60,socket=/m/s").munge_socket == "/m/s"
    assert not conf(tmp_path, "").second_control_groups
    (tmp_path / "cgroup.conf").write_text("CgroupPlugin=cgroup/v2\n")
    assert conf(tmp_path, "").second_control_groups
