"""What a machine writes: kept as asked, never more than its size, and gone with the machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from encamp.describe.environments import find_environment
from encamp.home import Home
from encamp.images.records import link_path
from encamp.images.store import ImageStore
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import Engine
from encamp.machines.freeze import answer_in_time
from encamp.machines.process import Process
from encamp.machines.room import full_disk_named
from encamp.machines.storage_file import copy_with_holes
from encamp.model.errors import Code, EncampError
from tests.builds import give_verdict
from tests.conftest import ENCAMP, Encamp, left_behind
from tests.site.test_recovery import KILLED, Dying, dying, settled, states
from tests.site.volumes import Mounted, allocated, fill, mounted, shared_bytes

pytestmark = pytest.mark.site

MIB = 1 << 20
DISK = 32 * MIB
SIZE = ("--disk", "32M")
METADATA = MIB
"""What a disk's file may take beyond the disk's size, for QEMU's own tables."""

FILL = "dd if=/dev/zero of=/var/filled bs=64k 2>&1; rm /var/filled"
FULL = b"No space left on device"

Inside = Callable[..., "subprocess.CompletedProcess[bytes]"]

__all__ = ["dying"]


@pytest.fixture
def clean(encamp: Encamp) -> Iterator[None]:
    yield
    encamp("kill-all")


def record(encamp: Encamp | Inside, machine: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(encamp("show", "--json", machine).stdout)
    return found


# ── every kind ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["ram", "sparse", "qcow2"])
def test_storage_has_its_size_and_survives_suspension(
    encamp: Encamp, clean: None, site_home: Home, kind: str
) -> None:
    encamp("start", "--name", "writer", *SIZE, "--storage", kind)
    made = record(encamp, "writer")
    assert made["storage"] == kind
    assert f"storage      {kind}\n".split() in [
        line.split() for line in encamp("show", "writer").stdout.decode().splitlines()
    ]
    assert FULL in encamp("exec", "writer", "--", "sh", "-c", FILL).stdout
    encamp("exec", "writer", "--", "sh", "-c", "echo kept > /var/word")
    encamp("suspend", "writer")
    encamp("restore", "writer")
    assert encamp("exec", "writer", "--", "cat", "/var/word").stdout == b"kept\n"
    assert FULL in encamp("exec", "writer", "--", "sh", "-c", FILL + "; sync").stdout
    disk = site_home.machines / made["id"] / "run" / "disk"
    assert disk.exists() is (kind != "ram")
    if disk.exists():
        assert DISK // 2 < allocated(disk) <= DISK + METADATA


@pytest.mark.parametrize("kind", ["ram", "qcow2"])
def test_booted_machine_gets_the_storage_it_asks_for(encamp: Encamp, kind: str) -> None:
    words = ("run", "--boot", *SIZE, "--storage", kind, "--", "sh", "-c", FILL)
    assert FULL in encamp(*words).stdout


def test_one_template_serves_all_machines_with_files(encamp: Encamp, site_home: Home) -> None:
    encamp("run", *SIZE, "--storage", "sparse", "--", "true")
    before = set(site_home.templates.iterdir())
    for kind in ("qcow2", "auto"):
        encamp("run", *SIZE, "--storage", kind, "--", "true")
    assert set(site_home.templates.iterdir()) == before


def test_each_size_of_disk_is_what_was_asked_for(encamp: Encamp) -> None:
    """Also if a template of another size is there already."""
    command = ("--", "sh", "-c", "df -k / | tail -n 1")
    blocks = [
        int(encamp("run", "--disk", size, *command).stdout.split()[1]) for size in ("32M", "20M")
    ]
    assert 24 << 10 < blocks[0] < 32 << 10
    assert 14 << 10 < blocks[1] < 20 << 10


def test_machine_without_a_size_writes_to_its_memory(encamp: Encamp, clean: None) -> None:
    encamp("start", "--name", "a")
    assert record(encamp, "a")["storage"] == "ram"


def test_sparse_copy_is_the_same_and_has_the_same_holes(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    with original.open("wb") as file:
        file.truncate(64 * MIB)
        for offset in (0, 5 * MIB + 1, 63 * MIB):
            file.seek(offset)
            file.write(os.urandom(10_000))
    copy_with_holes(original, copy)
    assert copy.read_bytes() == original.read_bytes()
    assert allocated(copy) <= allocated(original)
    assert allocated(copy) < MIB


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--storage", "sparse"), Code.USAGE, "needs a size"),
        (("--storage", "ram", "--disk", "1G"), Code.USAGE, "half of the machine's memory"),
        (("--storage", "lvm", *SIZE), Code.CONFIGURATION, "volume_group: NAME"),
        (("--storage", "floppy", *SIZE), Code.USAGE, "'floppy' is not one of"),
    ],
)
def test_storage_that_cannot_be_is_refused(
    encamp: Encamp, words: tuple[str, ...], code: Code, said: str
) -> None:
    done = encamp("run", *words, "--", "true", check=False)
    assert done.returncode == code.value
    assert said in " ".join(done.stderr.decode().split())


def test_reflink_elsewhere_is_refused_and_the_file_system_named(
    encamp: Encamp, tmp_path: Path
) -> None:
    with mounted(tmp_path, "ext4", 64 * MIB) as place:
        words = ("run", *SIZE, "--storage", "reflink", "--", "true")
        done = subprocess.run(
            [*place.enter, ENCAMP, *words],
            env={**os.environ, "ENCAMP_HOME": str(place.path / "home")},
            capture_output=True,
            check=False,
        )
    assert done.returncode == Code.CONFIGURATION.value
    assert b"on ext4" in done.stderr


# ── other file systems ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def inside(encamp_environment: dict[str, str]) -> Callable[[Mounted], Inside]:
    """Runs `encamp` with a home in a file system of the test's own."""

    def bind(place: Mounted) -> Inside:
        def run(*words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
            home = str(place.path / "home")
            return subprocess.run(
                [*place.enter, ENCAMP, *words],
                env={**os.environ, **encamp_environment, "ENCAMP_HOME": home},
                cwd="/",
                capture_output=True,
                timeout=120,
                check=check,
            )

        return run

    return bind


def furnish(place: Mounted, site_home: Home) -> Home:
    """A home in that file system which need not build `mini` again."""
    home = Home(place.outside / "home").prepare()
    for image in ImageStore(site_home, shared=None).get("mini").lineage:
        shutil.copytree(image.directory, home.images / image.directory.name)
    link_path(home, "mini").parent.mkdir(exist_ok=True)
    shutil.copy(link_path(site_home, "mini"), link_path(home, "mini"))
    give_verdict(home, site_home)
    return home


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_machines_share_blocks_with_their_template_where_they_can(
    inside: Callable[[Mounted], Inside], site_home: Home, tmp_path: Path, kind: str
) -> None:
    with mounted(tmp_path, kind, 512 * MIB) as place:
        home, encamp = furnish(place, site_home), inside(place)
        encamp("start", "--name", "one", *SIZE)
        assert record(encamp, "one")["storage"] == "reflink"
        disk = home.machines / record(encamp, "one")["id"] / "run" / "disk"
        # How much of it depends on what the machine has written meanwhile.
        assert shared_bytes(disk) > 0
        encamp("exec", "one", "--", "sh", "-c", "echo kept > /var/word; sync")
        assert FULL in encamp("exec", "one", "--", "sh", "-c", FILL + "; sync").stdout
        assert allocated(disk) <= DISK + METADATA
        encamp("suspend", "one")
        encamp("restore", "one")
        assert encamp("exec", "one", "--", "cat", "/var/word").stdout == b"kept\n"
        # What one machine writes, no other sees.
        other = encamp("run", *SIZE, "--", "sh", "-c", "test ! -e /var/word && echo clean")
        assert other.stdout == b"clean\n"
        encamp("kill-all")
        assert left_behind(home) == []


def test_full_disk_of_the_host_is_an_error_inside_and_harms_nothing_else(
    inside: Callable[[Mounted], Inside], site_home: Home, tmp_path: Path
) -> None:
    with mounted(tmp_path, "ext4", 320 * MIB) as place:
        home, encamp = furnish(place, site_home), inside(place)
        encamp("start", "--name", "one", *SIZE, "--storage", "sparse")
        encamp("exec", "one", "--", "sh", "-c", "echo before > /var/word; sync")
        filler = fill(home.root)
        words = "dd if=/dev/zero of=/var/big bs=1M count=16 conv=fsync"
        failed = encamp("exec", "one", "--", "sh", "-c", words, check=False)
        assert failed.returncode == 1
        assert b"Input/output error" in failed.stderr
        assert b"/mnt/home is full" in failed.stderr
        # Who does not ask what became of it is told, too.
        words = "dd if=/dev/zero of=/var/quiet bs=1M count=16 2>/dev/null; sync; true"
        quiet = encamp("exec", "one", "--", "sh", "-c", words, check=False)
        assert quiet.returncode == Code.COPY_FAILED.value
        assert b"/mnt/home is full" in quiet.stderr
        assert encamp("exec", "one", "--", "cat", "/var/word").stdout == b"before\n"
        refused = encamp("run", *SIZE, "--storage", "sparse", "--", "true", check=False)
        assert refused.returncode == Code.NO_ROOM.value
        assert b"Not enough disk" in refused.stderr
        filler.unlink()
        encamp("exec", "one", "--", "dd", "if=/dev/zero", "of=/var/big", "bs=1M", "count=8")
        encamp("kill-all")
        assert left_behind(home) == []


def test_full_disk_under_a_template_is_named(
    inside: Callable[[Mounted], Inside], site_home: Home, tmp_path: Path
) -> None:
    with mounted(tmp_path, "ext4", 96 * MIB) as place:
        home, encamp = furnish(place, site_home), inside(place)
        failed = encamp("run", "--", "true", check=False)
        assert failed.returncode == Code.DISK_FULL.value
        assert b"The disk filled up while the template of 'mini' was made" in failed.stderr
        assert left_behind(home) == []
        assert list(home.templates.iterdir()) == []


def test_template_whose_guest_stands_still_is_not_waited_for_on_a_full_disk(
    tmp_path: Path,
) -> None:
    """As under KVM, where a guest that cannot have the page it writes to tries for ever."""
    shipped = find_environment("mini")
    ready = msgspec.structs.replace(shipped.ready, timeout=86400)
    environment = msgspec.structs.replace(shipped, ready=ready)

    async def wait(engine: Engine, directory: Path) -> None:
        with full_disk_named(directory, "it was made"):
            await answer_in_time(engine, environment, directory, asyncio.sleep(86400))

    with mounted(tmp_path, "ext4", 16 * MIB) as place:
        fill(place.outside)
        with subprocess.Popen(["sleep", "infinity"]) as standing:
            engine = Engine(MachineDirectory(tmp_path), Process(standing.pid))
            try:
                with pytest.raises(EncampError, match="The disk filled up while it was") as told:
                    asyncio.run(wait(engine, place.outside))
            finally:
                standing.kill()
                engine.process.close()
    assert told.value.code is Code.DISK_FULL


# ── whatever is killed ───────────────────────────────────────────────────────────────────────────


FILES = "encamp.machines.storage_file:"


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("sparse", f"{FILES}copy_with_holes+after"),
        ("sparse", "encamp.agent.making:wake+before"),
        ("qcow2", f"{FILES}Overlay.clone+before"),
        ("qcow2", f"{FILES}Overlay.attach+after"),
        ("qcow2", "encamp.agent.run:attend+before"),
    ],
)
def test_maker_killed_over_a_disk_leaves_nothing(
    encamp: Encamp, dying: Dying, site_home: Home, kind: str, point: str
) -> None:
    encamp("run", *SIZE, "--", "true")
    assert dying(point, "encamp", "run", *SIZE, "--storage", kind, "--", "true") == KILLED
    assert states(encamp) == {}
    assert settled(site_home) == []


@pytest.mark.parametrize("point", [f"{FILES}make_disk+after", f"{FILES}SparseFile.keep+after"])
def test_template_maker_killed_over_its_disk_leaves_nothing(
    encamp: Encamp, dying: Dying, site_home: Home, point: str
) -> None:
    before = set(site_home.templates.iterdir())
    assert dying(point, "encamp", "run", "--disk", "17M", "--", "true") == KILLED
    assert states(encamp) == {}
    assert settled(site_home) == []
    assert set(site_home.templates.iterdir()) == before


@pytest.mark.parametrize("kind", ["sparse", "qcow2"])
def test_machine_suspended_by_its_job_is_kept_with_its_disk(
    encamp: Encamp, clean: None, dying: Dying, kind: str
) -> None:
    words = ("run", "--name", "a", *SIZE, "--storage", kind, "--after", "suspend")
    command = ("--", "sh", "-c", "echo kept > /var/word")
    encamp(*words, *command)
    # Killed over waking it up, it sleeps on; or it stands still, and goes on when asked.
    point = "encamp.agent.keeper:wake+after"
    assert dying(point, "encamp", "restore", "a") == -signal.SIGKILL
    state = states(encamp)["a"]
    encamp("restore" if state == "suspended" else "resume", "a")
    assert encamp("exec", "a", "--", "cat", "/var/word").stdout == b"kept\n"
