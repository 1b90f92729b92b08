"""Machines that are saved as images, and machines made of those."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.images.saved import place_saved
from encamp.images.store import DEEPEST, ImageStore
from encamp.model.errors import Code
from encamp.model.recipe import Compression
from encamp.progress import Silent
from encamp.workplace import workplace
from tests.conftest import ENCAMP, ROOT, Encamp, left_behind
from tests.site.accounts import accounts
from tests.site.describing import Describe, describer

pytestmark = pytest.mark.site

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

CHANGES = """
    rm /etc/profile
    rm -r /var/tree && mkdir /var/tree && echo new >/var/tree/new
    mkdir -p /opt/tools && cp /bin/busybox /opt/tools/su && chmod 4755 /opt/tools/su
    ln /opt/tools/su /opt/tools/again && ln -s su /opt/tools/soft && mkfifo /opt/fifo
    chown 1234:4321 /opt/fifo && touch "/opt/$(printf 'a b\\377')"
    dd if=/dev/zero of=/opt/sparse bs=1 seek=20M count=1 2>/dev/null
    mknod /opt/null c 1 3
    echo mine >/tmp/mine && echo other >>/etc/hosts
"""
LOOK = """
    test ! -e /etc/profile && ls /var/tree && cmp /opt/tools/su /bin/busybox
    stat -c '%a %h' /opt/tools/su && readlink /opt/tools/soft && stat -c '%u:%g %F' /opt/fifo
    printf '%s\\n' /opt/a* | od -c | head -1 && stat -c %s /opt/sparse && stat -c '%t:%T' /opt/null
    ls /tmp && grep -c other /etc/hosts && grep -c "127.0.1.1" /etc/hosts && cat /etc/hostname
"""
SEEN = """\
new
4755 2
su
1234:4321 fifo
0000000   /   o   p   t   /   a       b 377  \\n
20971521
1:3
1
1
{name}
"""


@pytest.fixture
def images(site_home: Home) -> Iterator[ImageStore]:
    """The suite's images; those that a test adds are removed after it."""
    store = ImageStore(site_home, shared=None)
    before = {image.digest for image in store.ls()}
    yield store
    # Layers go before what they lie over.
    added = [image for image in store.ls() if image.digest not in before]
    for image in sorted(added, key=lambda image: -len(image.lineage)):
        if (store.home.images / image.digest).exists():
            store.rm(image.digest)


@pytest.fixture
def describe(tmp_path: Path) -> Describe:
    return describer(tmp_path)


def look(encamp: Encamp, *words: str) -> str:
    return encamp("run", *words, "--name", "clone", "--", "sh", "-ec", LOOK).stdout.decode()


@pytest.mark.parametrize("how", [(), ("--boot", "--disk", "64M")])
def test_machine_goes_on_in_its_image_and_in_the_image_of_that(
    encamp: Encamp, images: ImageStore, how: tuple[str, ...]
) -> None:
    first = encamp(
        *("run", *how, "--save-as", "first"),
        *("--", "sh", "-c", "mkdir /var/tree; echo old >/var/tree/old"),
    )
    assert first.stderr == b""
    encamp("start", *(how or ("--boot",)), "--image", "first", "--name", "work")
    encamp("exec", "work", "--", "sh", "-ec", CHANGES)
    saved = json.loads(encamp("save", "work", "second:2.0", "--json").stdout)
    assert encamp("exec", "work", "--", "cat", "/tmp/mine").stdout == b"mine\n"
    encamp("rm", "--force", "work")
    assert saved["layers"] == 3
    parent = images.resolve("first")
    assert parent is not None
    assert saved["parent"] == parent.digest
    image = images.resolve("second:2.0")
    assert image is not None
    assert image.digest == saved["digest"]
    # The account that root's machines run as may read it, and nobody else.
    assert image.directory.stat().st_mode & 0o007 == 0
    assert image.root.stat().st_mode & 0o007 == 0
    # Only the difference is stored: busybox once more, and next to nothing else.
    assert image.size < 3 * 1024 * 1024
    # Once in a clone, once booted.
    assert look(encamp, *how, "--image", "second") == SEEN.format(name="clone")


def test_what_is_the_machines_own_stays_out(
    encamp: Encamp, images: ImageStore, describe: Describe, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "leaf").write_text("green")
    variables = describe(f"""
    secretive:
      extends: mini
      context:
        files:
          - {{path: /etc/secret, content: hidden}}
          - {{path: /lnk/secret, content: hidden}}
          - {{path: "${{late.owner.home}}/secret", content: hidden}}
          - {{path: /opt/tree, source: {tmp_path}/tree}}
        users: [{{name: ci, uid: 1234, home: /h, ssh_keys: [ssh-ed25519 BBB ci]}}]
        ssh_keys: [ssh-ed25519 AAA me]
        user_data: hidden
      after: save
      save_as: open
    """)
    make = "mkdir -p /data/home /opt && ln -s data /lnk && ln -s data/home /h"
    encamp("run", "--save-as", "linked", "--", "sh", "-c", make)
    work = "mkdir -p /etc/ssh && touch /opt/done /data/own /etc/ssh/ssh_host_rsa_key"
    words = ("run", "-e", "secretive", "--image", "linked", "--", "sh", "-c", work)
    encamp(*words, variables=variables)
    image = images.resolve("open")
    assert image is not None
    listed = subprocess.run(
        ["unsquashfs", "-l", "-d", "", image.root], check=True, capture_output=True, text=True
    ).stdout.split()
    assert {"/opt/done", "/opt/tree/leaf", "/data/own"} <= set(listed)
    own = (
        *("secret", "authorized_keys", "user-data", "hostname", "machine-id", "resolv.conf"),
        "ssh_host_rsa_key",
    )
    assert [path for path in listed if path.endswith(own)] == []


@root_only
def test_ordinary_user_saves_without_leaving_a_trace_of_who_it_was(site_home: Home) -> None:
    with ExitStack() as held:
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="encamp-accounts-")))
        place.chmod(0o755)
        (account,) = held.enter_context(accounts(1, place, site_home))
        account.encamp("start", "--boot", "--name", "work")
        account.encamp("exec", "work", "--", "sh", "-c", "grep $(id -un) /etc/passwd")
        for compression in ("zstd", "none"):
            account.encamp("save", "work", compression, "--compression", compression)
            image = ImageStore(account.home, shared=None).resolve(compression)
            assert image is not None
            files = {
                path: subprocess.run(
                    ["unsquashfs", "-cat", image.root, path], check=True, capture_output=True
                ).stdout.decode()
                for path in ("etc/passwd", "etc/group", "etc/hosts")
            }
            assert not any(account.name in content for content in files.values())
            assert "work" not in files["etc/hosts"]
            assert "root:" in files["etc/passwd"]
            # Nobody else reads what somebody did in a machine.
            assert image.directory.stat().st_mode & 0o777 == 0o700
            assert image.root.stat().st_mode & 0o777 == 0o400
        account.encamp("rm", "--force", "work")


def test_compression_is_chosen(encamp: Encamp, images: ImageStore) -> None:
    encamp("start", "--name", "work")
    encamp("exec", "work", "--", "sh", "-c", "mkdir -p /opt && seq 10000 >/opt/numbers")
    for compression in ("none", "lz4", "xz"):
        encamp("save", "work", "packed", "--compression", compression)
        image = images.resolve("packed")
        assert image is not None
        told = subprocess.run(
            ["unsquashfs", "-s", image.root], check=True, capture_output=True, text=True
        ).stdout
        wanted = "Data is uncompressed" if compression == "none" else f"Compression {compression}"
        assert wanted in told
    encamp("rm", "--force", "work")


def test_image_with_too_many_layers_becomes_one(
    encamp: Encamp, images: ImageStore, tmp_path: Path
) -> None:
    image = images.resolve("mini")
    assert image is not None
    for number in range(DEEPEST):
        layer = tmp_path / "layer.tar"
        added = {f"var/d/{number}": b"new\n", **({f"var/d/{number - 1}": None} if number else {})}
        write_layer(layer, added)
        with workplace(images.home, "layer") as work:
            image = place_saved(
                *(images, work, layer, image, "deep"),
                origin="a test",
                compression=Compression.LZ4,
                progress=Silent(),
            )
    assert len(image.layers) == 1
    done = encamp("run", "--image", "deep", "--boot", "--", "sh", "-c", "ls /var/d; uname -r")
    assert done.stdout.decode().split() == [str(number), image.kernel_release]


def write_layer(archive: Path, files: dict[str, bytes | None]) -> None:
    """A layer with these files; those without content are hidden."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as layer:
        for name in ("./var", "./var/d"):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            if content is None:
                member.type = tarfile.CHRTYPE
                layer.addfile(member)
            else:
                member.size, member.mode = len(content), 0o644
                layer.addfile(member, io.BytesIO(content))


# ── what cannot be ───────────────────────────────────────────────────────────────────────────────


def test_only_a_running_machine_is_saved(encamp: Encamp) -> None:
    encamp("start", "--name", "work")
    encamp("pause", "work")
    refused = encamp("save", "work", "image", check=False)
    assert refused.returncode == Code.WRONG_STATE.value
    assert b"Cannot save machine work: it is paused" in refused.stderr
    encamp("kill", "work")
    refused = encamp("save", "work", "image", check=False)
    assert refused.returncode == Code.WRONG_STATE.value
    encamp("rm", "work")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--after", "save", "--", "true"),
        ("run", "--after", "keep", "--save-as", "image", "--", "true"),
        ("run", "--save-as", "../image", "--", "true"),
        ("run", "--save-as", "", "--", "true"),
    ],
)
def test_bad_wishes_are_refused_before_a_machine_is_made(
    encamp: Encamp, words: tuple[str, ...]
) -> None:
    refused = encamp(*words, check=False)
    assert refused.returncode == Code.USAGE.value, refused.stderr.decode()


def test_command_that_fails_is_not_saved(encamp: Encamp, images: ImageStore) -> None:
    done = encamp("run", "--save-as", "half", "--", "sh", "-c", "exit 3", check=False)
    assert done.returncode == 3
    assert b"Not saved as 'half'" in done.stderr
    assert images.resolve("half") is None


# ── whatever is killed ───────────────────────────────────────────────────────────────────────────

READING = "encamp.guest.changes:Changes.feed+before"
READ = "encamp.agent.saving:_read+after"
PACKED = "encamp.images.saved:squash+after"
PLACING = "encamp.images.saved:place+before"
NAMING = "encamp.images.saved:name_image+before"

Dying = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def dying(encamp_environment: dict[str, str]) -> Dying:
    def run(point: str, victim: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "tests.site.dying", point, victim, *words],
            env={**os.environ, **encamp_environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run


def test_machine_goes_on_whenever_its_saving_is_killed(
    encamp: Encamp, dying: Dying, images: ImageStore, site_home: Home
) -> None:
    encamp("start", "--name", "work")
    encamp("exec", "work", "--", "sh", "-c", "seq 10000 >/etc/numbers")
    for point, victim, code in (
        (READING, "encamp", -signal.SIGKILL),
        (READ, "interrupted", 128 + signal.SIGINT),
        (PACKED, "encamp", -signal.SIGKILL),
        (PLACING, "interrupted", 128 + signal.SIGINT),
        (NAMING, "encamp", -signal.SIGKILL),
    ):
        done = dying(point, victim, "save", "work", "image")
        assert done.returncode == code, (point, victim, done.stderr.decode())
        assert encamp("exec", "work", "--", "sed", "-n", "7p", "/etc/numbers").stdout == b"7\n"
        assert [path for path in left_behind(site_home) if "save-" in path] == []
    encamp("save", "work", "image")
    image = images.resolve("image")
    assert image is not None
    images.check(image)
    encamp("rm", "--force", "work")


def test_killed_job_that_saves_its_machine_leaves_nothing(
    encamp: Encamp, dying: Dying, images: ImageStore, site_home: Home
) -> None:
    done = dying(PLACING, "encamp", "run", "--save-as", "image", "--", "true")
    assert done.returncode == -signal.SIGKILL
    encamp("ps")
    assert left_behind(site_home) == []
    assert images.resolve("image") is None


def test_machine_that_dies_while_it_is_saved_is_told(
    encamp: Encamp, dying: Dying, images: ImageStore
) -> None:
    encamp("start", "--name", "work")
    # More than can be on its way when the machine is killed.
    encamp("exec", "work", "--", "sh", "-c", "seq 1000000 >/etc/numbers")
    done = dying(READING, "machine", "save", "work", "image")
    assert done.returncode == Code.MACHINE_LOST.value, done.stderr.decode()
    assert images.resolve("image") is None
    encamp("rm", "work")


def test_work_of_a_job_is_not_lost_by_a_mistake(
    encamp: Encamp, dying: Dying, images: ImageStore
) -> None:
    done = dying(READ, "mistaken", "run", "--save-as", "image", "--name", "work", "--", "true")
    assert done.returncode == Code.INTERNAL.value, done.stderr.decode()
    assert b"ZeroDivisionError: nobody thought of this" in done.stderr
    assert b"'encamp save work image' tries again" in done.stderr
    encamp("save", "work", "image")
    assert images.resolve("image") is not None
    encamp("rm", "--force", "work")


Cramped = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def cramped(encamp_environment: dict[str, str], site_home: Home) -> Cramped:
    """Runs `encamp` with only so many MiB of disk for what it is working on."""

    def run(room: int, *words: str) -> subprocess.CompletedProcess[bytes]:
        small = f'mount -t tmpfs -o size={room}m none {site_home.cache} && exec "$@"'
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", small, "sh", ENCAMP, *words],
            env={**os.environ, **encamp_environment},
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run


NOISE = ("dd", "if=/dev/urandom", "of=/etc/noise", "bs=1M", "count=3")


@root_only
def test_disk_that_is_full_ends_saving_and_not_the_machine(
    encamp: Encamp, cramped: Cramped, images: ImageStore
) -> None:
    """Full while the changes come in, or while they are packed."""
    encamp("start", "--name", "work")
    encamp("exec", "work", "--", *NOISE)
    for room in (1, 4):
        done = cramped(room, "save", "work", "image")
        assert done.returncode == Code.DISK_FULL.value, (room, done.stderr.decode())
        assert b"the disk is full" in done.stderr
        assert b"the machine goes on" in done.stderr
        assert images.resolve("image") is None
    encamp("save", "work", "image")
    encamp("rm", "--force", "work")


@root_only
def test_work_of_a_job_is_not_lost_when_its_machine_cannot_be_saved(
    encamp: Encamp, cramped: Cramped, images: ImageStore
) -> None:
    done = cramped(1, "run", "--save-as", "image", "--name", "work", "--", *NOISE)
    assert done.returncode == Code.DISK_FULL.value, done.stderr.decode()
    assert b"'encamp save work image' tries again" in done.stderr
    encamp("save", "work", "image")
    assert images.resolve("image") is not None
    encamp("rm", "--force", "work")
