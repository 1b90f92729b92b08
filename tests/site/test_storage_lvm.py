"""Disks on thin volumes. The test's own kernel need not have device-mapper: LVM runs in a machine.

What QEMU does with a block device is tested here, on a loop device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from encamp.describe.environments import find_environment
from encamp.guest.channel import Channel, Exec, Hello
from encamp.home import Home
from encamp.images.apt import Apt
from encamp.images.portion import Portion
from encamp.images.store import ImageStore
from encamp.machines import accelerator, sockets
from encamp.machines.account import process_user
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import Blueprint, Engine, Origin, Restore, port_name
from encamp.machines.freeze import boot_origin
from encamp.machines.hardware import Disk, Hardware, Kept
from encamp.machines.qemu import launch, wake
from encamp.machines.storage_file import make_disk
from encamp.machines.storage_lvm import thin_pool
from encamp.model.errors import Code, EncampError
from encamp.model.recipe import Recipe
from encamp.model.settings import Settings
from encamp.model.size import MIB, Size
from encamp.progress import Silent
from encamp.workplace import workplace
from tests.conftest import ROOT, Encamp
from tests.site.lvm_inside import CHECKS
from tests.site.volumes import block_device

pytestmark = pytest.mark.site

MODULES = (
    *("libcrc32c", "dm-mod", "dm-bufio", "dm-bio-prison"),
    *("dm-persistent-data", "dm-thin-pool", "loop"),
)


@pytest.fixture(scope="module")
def modules(site_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drivers of device-mapper that fit the kernel of `mini`, from the kernel's own package."""
    recipe = find_environment("mini").image
    assert isinstance(recipe, Recipe)
    release = ImageStore(site_home, shared=None).ensure(recipe).kernel_release
    kept = ROOT / ".cache" / "device-mapper" / release
    if not kept.exists():
        place = tmp_path_factory.mktemp("kernel")
        # The host's own lists may be older than the image.
        (place / "apt").mkdir()
        apt = Apt(place / "apt", "bookworm")
        apt.update(Portion(Silent()))
        package = apt.download(f"linux-image-{release}", place, Portion(Silent()))
        unpack = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        words = ["tar", "-x", "--wildcards", "--transform", "s,.*/,,"]
        words += [f"*/{name}.ko" for name in MODULES]
        made = place / "made"
        made.mkdir()
        with unpack:
            subprocess.run(words, stdin=unpack.stdout, cwd=made, check=True)
        kept.parent.mkdir(exist_ok=True, parents=True)
        made.rename(kept)
    return kept


def test_machines_work_on_thin_volumes_and_leave_none(encamp: Encamp, modules: Path) -> None:
    shares = {
        "usr": Path("/usr"),
        "modules": modules,
        "packages": Path(msgspec.__file__).parent.parent,
        "src": ROOT / "src",
        "tests": ROOT / "tests",
    }
    words = [f"--share={path}:/shared/{name}:ro" for name, path in shares.items()]
    script = "/shared/tests/site/lvm_inside.sh"
    inside = ("env", "PYTHONPATH=/shared/src:/shared/packages:/shared")
    done = encamp(
        *("run", "--memory", "512M", *words, "--"),
        *("sh", script, "/shared/usr", "/shared/modules"),
        *(*inside, os.path.realpath(sys.executable), "-m", "tests.site.lvm_inside"),
        check=False,
        timeout=270,
    )
    said = done.stdout.decode().splitlines()
    names = [check.__name__ for check in CHECKS]
    assert [line for line in said if line in names] == names, done.stderr.decode()
    assert done.returncode == 0


def test_volumes_are_for_root_and_for_configured_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EncampError, match="none is configured") as unset:
        thin_pool(Settings(), "0" * 8)
    assert unset.value.code is Code.CONFIGURATION
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EncampError, match="only root") as refused:
        thin_pool(Settings(volume_group="machines"), "0" * 8)
    assert refused.value.code is Code.NOT_PERMITTED


def test_missing_programs_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("encamp.programs.ADMINISTRATOR_PATHS", ())
    with pytest.raises(EncampError, match="apt-get install lvm2"):
        thin_pool(Settings(volume_group="machines"), "0" * 8)


# ── a machine on a block device ──────────────────────────────────────────────────────────────────


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "disk"
    make_disk(file, 24 * MIB)
    with block_device(file) as made:
        yield made


async def say(engine: Engine, script: str) -> bytes:
    connection = sockets.connect(engine.directory.path, port_name(0))
    channel = await Channel.open(connection, Hello(machine=b"\1" * 16, hostname="a"), fresh=True)
    try:
        await channel.welcome()
        stream = channel.execute(Exec(args=["/bin/sh", "-c", script], cwd="/"))
        await stream.end()
        stream.stderr.discard()
        said = b"".join([piece async for piece in stream.stdout])
        await stream.wait()
        return said
    finally:
        await channel.close()


async def test_machine_works_on_a_block_device_it_may_not_open(
    site_home: Home, nothing_left: None, device: Path
) -> None:
    """Its process has an account of its own and inherits the device; also one that wakes up."""
    user = process_user(os.geteuid())
    environment = find_environment("mini")
    assert isinstance(environment.image, Recipe)
    image = ImageStore(site_home, shared=None).ensure(environment.image)
    verdict = await accelerator.decide(site_home, image, user, Silent())
    size = Size(1, environment.size.memory, 24 * MIB)
    hardware = Hardware(verdict.driver, size, "none", len(image.layers), kept=Kept.VOLUME)
    if user is not None:
        assert device.stat().st_uid != user[0]
        assert not device.stat().st_mode & 0o007
    with workplace(site_home, "block-device") as place:
        directory = MachineDirectory(place.directory / "machine")
        directory.make(user, 0)
        blueprint = Blueprint("a", directory, hardware, image, user, disk=Disk(device=device))
        boot = boot_origin(site_home, image, hardware, (), place.directory)
        origins: list[tuple[Origin, str, bytes]] = [
            (boot, "echo kept >/word; sync", b""),
            (Restore(directory.context), "cat /word; dd if=/dev/zero of=/big 2>&1", b"kept\n"),
        ]
        said = b""
        for origin, script, answer in origins:
            engine = launch(blueprint, origin)
            try:
                await engine.unless_ended(wake(engine, origin))
                if isinstance(origin, Restore):
                    await engine.resume()
                said = await engine.unless_ended(say(engine, script))
                if not isinstance(origin, Restore):
                    await engine.pause()
                    await engine.save(directory.context, memory_is_mapped=False)
            finally:
                await engine.process.kill()
                engine.process.close()
            assert said.startswith(answer)
    assert b"No space left on device" in said
