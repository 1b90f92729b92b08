"""Machines made from whole disks: a real one, with Debian's boot loader, kernel, systemd,
cloud-init, qemu-guest-agent and ssh server, and the same with some of that taken away."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.errors import Code
from encamp.model.size import MIB
from tests.builds import give_verdict
from tests.conftest import ENCAMP, ROOT, Encamp, left_behind
from tests.site.cloud_disk import (
    cloud_disk,
    without_agents,
    without_boot_loader,
    without_cloud_init,
)
from tests.site.describing import describer

pytestmark = [pytest.mark.site, pytest.mark.timeout(900)]

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKVaPPeiuaxQv1LV4ILCZ6IjHZb2hEQntGjSt5njbpXy me"
DISK = 1024 * MIB

DESCRIPTIONS = """
cloud:
  image: {{disk: {cloud}}}
  cpus: 2
  memory: 512M
  disk: 1G
  network: user
  ready: {{port: 22, timeout: 400}}
  context:
    ssh_keys: ["{key}"]
    users: [{{name: alice, uid: 4321}}]
    variables: {{GREETING: hello}}
    files: [{{path: /etc/handed, content: "by hand\\n", owner: alice, mode: "0640"}}]
    run: [cat /etc/handed /etc/first > /etc/second]
    user_data: |
      #cloud-config
      write_files: [{{path: /etc/first, content: "by cloud-init\\n"}}]
      runcmd: [[sh, -c, "hostname > /etc/name-at-first"]]

agent:
  image: {{disk: {agent}}}
  cpus: 2
  memory: 384M
  ready: {{timeout: 400}}

ssh:
  image: {{disk: {ssh}}}
  cpus: 2
  memory: 384M
  network: user
  ready: {{answer: ssh, timeout: 400}}

silent:
  extends: ssh
  ready: {{answer: guest, timeout: 3}}

unbootable:
  image: {{disk: {unbootable}}}
  memory: 256M
"""


@pytest.fixture(scope="module")
def disk_home(site_home: Home) -> Iterator[Home]:
    """A home of these tests' own: one machine in it is there for many of them."""
    home = Home(site_home.root.with_name(f"{site_home.root.name}-disks")).prepare()
    give_verdict(home, site_home)
    try:
        yield home
        left = left_behind(home)
    finally:
        encamp = {**os.environ, "ENCAMP_HOME": str(home.root)}
        subprocess.run([ENCAMP, "kill-all"], env=encamp, check=False, capture_output=True)
        shutil.rmtree(home.root)
    assert left == []


@pytest.fixture(scope="module")
def run(disk_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs `encamp` where the environments of all these disks are described."""
    place = tmp_path_factory.mktemp("disks")
    cloud = cloud_disk(ROOT / ".cache" / "test-disks")
    text = DESCRIPTIONS.format(
        key=KEY,
        cloud=cloud,
        agent=without_cloud_init(cloud, place / "agent.raw"),
        ssh=without_agents(cloud, place / "ssh.raw"),
        unbootable=without_boot_loader(cloud, place / "unbootable.raw"),
    )
    (place / "environments.yaml").write_text(text)
    place.chmod(0o700)
    variables = {
        "ENCAMP_HOME": str(disk_home.root),
        "ENCAMP_USER_CONFIG": str(place),
        "ENCAMP_QUIET": "1",
    }

    def call(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [ENCAMP, *words],
            capture_output=True,
            timeout=700,
            cwd=place,
            env={**os.environ, **variables},
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr.decode()}"
        return done

    yield call
    for path in place.glob("*.raw"):
        path.unlink()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this host that the machine sees at /shared."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def cloud(run: Run, disk_home: Home, shared: Path) -> Iterator[str]:
    """A machine made from a cloud image."""
    run("start", "-e", "cloud", "--name", "cloudy", "--share", f"{shared}:/shared")
    yield "cloudy"
    run("rm", "--force", "cloudy")


def inside(run: Run, machine: str, script: str) -> str:
    return run("exec", machine, "--", "sh", "-c", script).stdout.decode()


def record(run: Run, machine: str) -> dict[str, object]:
    shown: dict[str, object] = json.loads(run("show", "--json", machine).stdout)
    return shown


def directory_of(run: Run, home: Home, machine: str) -> Path:
    return home.machines / str(record(run, machine)["id"])


def test_disk_boots_with_its_own_init_and_runs_commands(run: Run, cloud: str) -> None:
    assert inside(run, cloud, "cat /proc/1/comm; hostname; cat /etc/name-at-first") == (
        "systemd\ncloudy\ncloudy\n"
    )
    assert run("exec", cloud, "--", "sh", "-c", "exit 7", check=False).returncode == 7


def test_cloud_init_is_content_with_its_seed(run: Run, cloud: str) -> None:
    wait = "until [ -e /run/cloud-init/result.json ]; do sleep 1; done; "
    result = json.loads(inside(run, cloud, f"{wait} cat /run/cloud-init/result.json"))["v1"]
    assert result["datasource"].startswith("DataSourceNoCloud [seed=/dev/vdb]")
    assert result["errors"] == []
    assert inside(run, cloud, "grep -c WARNING /var/log/cloud-init.log || true") == "0\n"
    known = inside(run, cloud, "cat /var/lib/cloud/data/instance-id")
    assert known.strip() == record(run, cloud)["id"]


def test_context_is_handed_over_by_cloud_init_and_by_the_guest(run: Run, cloud: str) -> None:
    assert inside(run, cloud, "cat /root/.ssh/authorized_keys").splitlines().count(KEY) >= 1
    assert inside(run, cloud, "stat -c '%U %a' /etc/handed") == "alice 640\n"
    assert inside(run, cloud, "cat /etc/second") == "by hand\nby cloud-init\n"
    assert inside(run, cloud, 'echo "$GREETING"') == "hello\n"
    assert inside(run, cloud, "id -u alice") == "4321\n"


def test_share_works_with_the_kernel_of_the_disk(run: Run, cloud: str, shared: Path) -> None:
    data = os.urandom(3_000_000)
    (shared / "data").write_bytes(data)
    inside(run, cloud, "cp /shared/data /root/data; cp /root/data /shared/back")
    assert (shared / "back").read_bytes() == data
    held = "exec 9>/shared/back; flock -n 9 && ! flock -n /shared/back true && echo held"
    assert inside(run, cloud, held) == "held\n"


def test_machine_sets_up_its_own_network(run: Run, cloud: str) -> None:
    assert "10.0.2.15/24" in inside(run, cloud, "ip -4 -o address")


def test_disk_is_as_large_as_was_asked_for_and_the_image_stays_as_it_was(
    run: Run, cloud: str, disk_home: Home
) -> None:
    images = ImageStore(disk_home, shared=None).ls()
    (image,) = (image for image in images if image.name == "cloud")
    assert image.disk is not None
    assert int(inside(run, cloud, "cat /sys/block/vda/size")) * 512 == DISK
    inside(run, cloud, "head -c 3000000 /dev/urandom > /root/written; sync")
    disk = directory_of(run, disk_home, cloud) / "run" / "disk"
    assert disk.stat().st_blocks * 512 > 3_000_000
    with image.disk.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == image.files[0].sha256


def test_seed_is_nobody_elses_to_read(run: Run, cloud: str, disk_home: Home) -> None:
    directory = directory_of(run, disk_home, cloud)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "seed").stat().st_mode) == 0o600


def test_files_are_copied_into_and_out_of_a_disk(run: Run, cloud: str, tmp_path: Path) -> None:
    sent = os.urandom(100_000)
    (tmp_path / "there").write_bytes(sent)
    run("copy", tmp_path / "there", f"{cloud}:/root/there")
    run("copy", f"{cloud}:/root/there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == sent


def test_disk_goes_on_after_it_was_suspended(run: Run, cloud: str) -> None:
    inside(run, cloud, "echo kept > /root/kept; echo $$ > /run/kept")
    run("suspend", cloud)
    run("restore", cloud)
    assert inside(run, cloud, "cat /root/kept; ls /run/kept") == "kept\n/run/kept\n"


def test_guest_program_comes_in_through_qemu_guest_agent_where_there_is_no_cloud_init(
    run: Run, disk_home: Home
) -> None:
    words = ("run", "-e", "agent", "--name", "agency", "--after", "shutdown")
    done = run(*words, "--", "sh", "-c", "ls /run/cloud-init/enabled; cat /proc/1/comm; hostname")
    assert done.stdout == b"systemd\nagency\n"
    shown = record(run, "agency")
    assert (shown["state"], shown["reason"]) == ("stopped", "shut down on request")
    console = run("console", "agency").stdout.decode()
    assert "Power down" in console, "which the kernel says when init has seen to all else"
    directory = directory_of(run, disk_home, "agency")
    assert not (directory / "seed").exists()
    assert not (directory / "run" / "disk").exists()
    run("rm", "agency")


def test_disk_that_only_has_ssh_is_ready_when_that_answers(run: Run) -> None:
    run("start", "-e", "ssh", "--name", "shelly")
    assert greeting(record(run, "shelly")).startswith(b"SSH-2.0-")
    refused = run("exec", "shelly", "--", "true", check=False)
    assert refused.returncode == Code.WRONG_STATE.value
    assert f"ssh -p {record(run, 'shelly')['ssh']}" in refused.stderr.decode()
    run("suspend", "shelly")
    run("restore", "shelly")
    assert greeting(record(run, "shelly")).startswith(b"SSH-2.0-")
    run("stop", "shelly")
    assert record(run, "shelly")["reason"] == "shut down on request"
    run("rm", "shelly")


def greeting(shown: dict[str, object]) -> bytes:
    with socket.create_connection(("127.0.0.1", int(str(shown["ssh"]))), timeout=60) as connection:
        return connection.recv(256)


def test_disk_where_nothing_answers_says_what_was_missed(run: Run, disk_home: Home) -> None:
    done = run("run", "-e", "silent", "--", "true", check=False)
    said = done.stderr.decode()
    assert done.returncode == Code.NO_ANSWER.value
    assert "its guest program has not answered" in said
    assert "console=ttyS0" in said
    assert "SeaBIOS" in said, "the last words on its console"


def test_disk_that_does_not_boot_is_not_waited_for(run: Run) -> None:
    done = run("run", "-e", "unbootable", "--", "true", check=False)
    assert done.returncode == Code.MACHINE_LOST.value
    assert "No bootable device" in done.stderr.decode()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--storage", "sparse", "--disk", "1G"), Code.USAGE, "qcow2 overlay"),
        (("--memory", "100M"), Code.USAGE, "at least 192 MiB"),
        (("--network", "none"), Code.CONFIGURATION, "has no network"),
    ],
)
def test_what_cannot_work_with_a_disk_is_refused_before_it_starts(
    run: Run, options: tuple[str, ...], code: Code, words: str
) -> None:
    done = run("run", "-e", "ssh", *options, "--", "true", check=False)
    assert done.returncode == code.value, done.stderr.decode()
    assert words in done.stderr.decode()


def test_what_only_a_disk_may_have_is_not_waited_for_elsewhere(
    encamp: Encamp, tmp_path: Path
) -> None:
    variables = describer(tmp_path)("diskless: {extends: mini, ready: {answer: qemu-agent}}")
    done = encamp("run", "-e", "diskless", "--", "true", variables=variables, check=False)
    assert done.returncode == Code.CONFIGURATION.value
    assert "only a whole disk may have" in done.stderr.decode()
