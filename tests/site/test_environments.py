"""What a description says of an environment is what its machines are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from encamp.model.errors import Code
from tests.conftest import Encamp

pytestmark = pytest.mark.site


def describe(tmp_path: Path, text: str) -> None:
    (tmp_path / "environments.yaml").write_text(text)


def test_two_lines_are_an_environment(encamp: Encamp, tmp_path: Path) -> None:
    describe(tmp_path, "small:\n  extends: mini\n")
    assert encamp("run", "-e", "small", "--", "echo", "two lines").stdout == b"two lines\n"
    (listed,) = [
        found
        for found in json.loads(encamp("env", "ls", "--json").stdout)
        if found["name"] == "small"
    ]
    assert listed["file"] == str(tmp_path / "environments.yaml")


def test_size_network_shares_and_kernel_arguments_are_as_described(
    encamp: Encamp, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "word").write_text("shared\n")
    describe(
        tmp_path,
        """
wide:
  extends: mini
  cpus: 2
  memory: 160M
  network: user
  shares: ["data:/data:ro"]
  kernel_arguments: [example=yes]
""",
    )
    script = "nproc; cat /data/word; ip route | grep -c default; grep -o example=yes /proc/cmdline"
    done = encamp("run", "-e", "wide", "--", "sh", "-c", script)
    assert done.stdout.decode().split() == ["2", "shared", "1", "example=yes"]
    done = encamp("run", "-e", "wide", "--", "touch", "/data/new", check=False)
    assert done.returncode == 1
    assert b"Read-only" in done.stderr


def test_devices_that_are_asked_for_are_there_with_their_drivers(
    encamp: Encamp, tmp_path: Path
) -> None:
    describe(tmp_path, "equipped:\n  extends: mini\n  devices: [rng, balloon, watchdog]\n")
    script = (
        "cat /sys/class/misc/hw_random/rng_current; ls /sys/class/watchdog;"
        " ls /sys/bus/virtio/drivers/virtio_balloon | grep -c virtio"
    )
    done = encamp("run", "-e", "equipped", "--", "sh", "-c", script)
    assert done.stdout.decode().split() == ["virtio_rng.0", "watchdog0", "1"]
    assert (
        b"virtio_rng"
        not in encamp("run", "--", "cat", "/sys/class/misc/hw_random/rng_current").stdout
    )


def test_an_environment_that_forbids_templates_boots(encamp: Encamp, tmp_path: Path) -> None:
    describe(tmp_path, "cold:\n  extends: mini\n  templates: false\n")
    done = encamp("run", "-e", "cold", "--json", "--", "true")
    phases = json.loads(done.stderr.splitlines()[-1])["phases"]
    (how,) = [phase["how"] for phase in phases if phase["phase"] == "start"]
    assert how.startswith("booted, ")


def test_what_becomes_of_a_machine_is_as_described_unless_the_job_says_otherwise(
    encamp: Encamp, tmp_path: Path
) -> None:
    describe(tmp_path, "kept:\n  extends: mini\n  after: keep\n")
    encamp("run", "-e", "kept", "--name", "one", "--", "true")
    encamp("run", "-e", "kept", "--name", "two", "--after", "destroy", "--", "true")
    listed = json.loads(encamp("ps", "--json").stdout)
    assert [machine["name"] for machine in listed] == ["one"]
    encamp("kill-all")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may point to another site's directory")
def test_words_for_qemu_come_only_from_the_site(encamp: Encamp, tmp_path: Path) -> None:
    text = "named:\n  extends: mini\n  qemu: [-smbios, 'type=1,product=Tent']\n"
    site = tmp_path / "site"
    site.mkdir()
    (site / "environments.yaml").write_text(text)
    variables = {"ENCAMP_SITE_CONFIG": str(site)}
    done = encamp(
        *("run", "-e", "named", "--", "cat", "/sys/class/dmi/id/product_name"), variables=variables
    )
    assert done.stdout == b"Tent\n"
    describe(tmp_path, text)
    refused = encamp("run", "-e", "named", "--", "true", check=False)
    assert refused.returncode == Code.CONFIGURATION.value
    assert b"environments.yaml:3:3" in refused.stderr


def test_a_mistake_in_a_description_is_told_with_its_place_and_nothing_is_started(
    encamp: Encamp, tmp_path: Path
) -> None:
    describe(tmp_path, "small:\n  extends: mimi\n  memry: 1G\n")
    done = encamp("run", "-e", "small", "--", "true", check=False)
    assert done.returncode == Code.CONFIGURATION.value
    said = done.stderr.decode()
    assert "environments.yaml:2:12" in said
    assert "environments.yaml:3:3" in said
    assert "'mini'" in said
    assert "'memory'" in said


def test_network_that_the_host_does_not_have_is_told_before_an_image_is_built(
    encamp: Encamp, tmp_path: Path
) -> None:
    describe(
        tmp_path,
        """
wired:
  extends: mini
  network: bridge
  image: {from: mini, run: [touch /built]}
""",
    )
    refused = encamp("run", "-e", "wired", "--", "true", check=False)
    assert refused.returncode == Code.CONFIGURATION.value
    assert b"This host has no bridge" in refused.stderr
    assert b"wired" not in encamp("image", "ls").stdout
