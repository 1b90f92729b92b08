"""Images as layers: files and commands added to `mini`, step by step."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp import programs
from encamp.describe.shipped import MINI
from encamp.home import Home
from encamp.images import (
    added_files,
    apt,
    clearing,
    host_files,
    session,
    steps,
    store,
    tree,
)
from encamp.images.building import build_once
from encamp.images.squash import unsquash
from encamp.images.store import ImageStore
from encamp.images.tree import Entries
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import AddedFile, Compression, Kind, Recipe
from encamp.workplace import remove_tree
from tests.builds import Told
from tests.conftest import Encamp
from tests.images.conftest import left_over
from tests.images.test_building import nobody_is_left_in

pytestmark = pytest.mark.site


@pytest.fixture
def images(stocked: Home, built: Home) -> ImageStore:
    """A home of the test's own, with `mini`."""
    shutil.copytree(built.images, stocked.images, dirs_exist_ok=True)
    return ImageStore(stocked, shared=None)


def layer(
    *run: str,
    files: tuple[AddedFile, ...] = (),
    parent: Recipe | str = MINI,
    name: str = "layer",
    compression: Compression = Compression.ZSTD,
) -> Recipe:
    return Recipe(
        name=name, kind=Kind.LAYER, parent=parent, files=files, run=run, compression=compression
    )


def own_layer(image: Image, place: Path) -> Entries:
    """What is in an image's own layer."""
    unsquash(image.root, place / "layer.tar")
    return tree.read(place / "layer.tar")


def text(entries: Entries, path: str) -> str:
    entry = entries[path]
    assert entry.source is not None
    return entry.source.read_bytes()[entry.offset : entry.offset + entry.size].decode()


def test_what_is_added_lies_in_a_layer_of_its_own(images: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tools" / "tool").chmod(0o755)
    (tmp_path / "tools" / "link").symlink_to("tool")
    image = images.ensure(
        layer(
            "cat /etc/greeting > /copy; rm /etc/profile; rm -r /mnt",
            "echo somebody:x:77:77::/:/bin/sh >> /etc/passwd; chown somebody /copy",
            files=(
                AddedFile(path="/etc/greeting", content="hello\n", owner="nobody", mode=0o640),
                AddedFile(path="/opt/tools", source=str(tmp_path / "tools")),
            ),
        )
    )
    mini = images.ensure(MINI)
    assert image.parent is not None
    assert image.parent.digest == mini.digest
    assert image.kernel == mini.kernel
    entries = own_layer(image, tmp_path)
    assert text(entries, "copy") == text(entries, "etc/greeting") == "hello\n"
    assert entries["copy"].uid == 77
    assert (entries["etc/greeting"].uid, entries["etc/greeting"].mode) == (65534, 0o640)
    assert entries["opt/tools/tool"].mode == 0o755
    assert entries["opt/tools/link"].link == "tool"
    assert entries["etc/profile"].is_whiteout
    assert entries["mnt"].is_whiteout
    assert "bin/busybox" not in entries
    assert left_over(images.home) == []


def test_a_changed_recipe_repeats_only_what_comes_after_the_change(images: ImageStore) -> None:
    images.ensure(layer("echo 1 >> /count", "echo 2 >> /count"))
    told = Told()
    images.ensure(layer("echo 1 >> /count", "echo 3 >> /count"), told)
    done = [what for what in told.what if what.startswith("running")]
    assert set(done) == {"running echo 3 >> /count"}


def test_kept_steps_give_the_image_that_no_steps_give(images: ImageStore, tmp_path: Path) -> None:
    first = images.ensure(layer("echo 1 > /a", "echo 2 > /b; date > /tmp/now; date > /var/log/x"))
    shutil.rmtree(images.home.cache / "steps")
    images.rm("layer")
    told = Told()
    again = images.ensure(
        layer("echo 1 > /a", "echo 2 > /b; date > /tmp/now; date > /var/log/x"), told
    )
    assert any(what.startswith("running echo 1") for what in told.what)
    assert again.digest == first.digest
    over = images.ensure(layer("echo 3 > /c", parent="layer", name="over"))
    shutil.rmtree(images.home.cache / "steps")
    images.rm("over")
    assert images.ensure(layer("echo 3 > /c", parent="layer", name="over")).digest == over.digest
    assert set(own_layer(over, tmp_path)) == {"", "c"}


def test_an_explicit_build_notices_that_a_file_of_the_host_changed(
    images: ImageStore, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_text("one\n")
    recipe = layer(files=(AddedFile(path="/etc/added", source=str(source)),))
    first = images.ensure(recipe)
    source.write_text("two\n")
    told = Told()
    assert images.ensure(recipe, told).digest == first.digest
    second = build_once(images, recipe, told, explicit=True)
    assert text(own_layer(second, tmp_path), "etc/added") == "two\n"
    assert images.ensure(recipe).digest == second.digest
    told = Told()
    assert build_once(images, recipe, told, explicit=True).digest == second.digest
    assert not any("packing" in what for what in told.what)


def test_a_recipe_that_adds_nothing_is_its_parent(images: ImageStore) -> None:
    image = images.ensure(layer("true"))
    assert image.name == "layer"
    assert image.digest == images.ensure(MINI).digest


def test_more_layers_than_machines_can_have_are_made_one(
    images: ImageStore, tmp_path: Path
) -> None:
    parent = MINI
    for number in range(store.DEEPEST + 1):
        added = AddedFile(path=f"/layer-{number}", content="")
        parent = layer(parent=parent, name=f"layer-{number}", files=(added,))
    image = images.ensure(parent)
    assert len(image.layers) <= store.DEEPEST
    found = set()
    for part in image.lineage:
        found |= set(own_layer(part, tmp_path))
    assert {f"layer-{number}" for number in range(store.DEEPEST + 1)} <= found
    assert left_over(images.home) == []


def test_commands_see_nothing_of_the_host(images: ImageStore, tmp_path: Path) -> None:
    os.environ["SECRET_OF_THE_HOST"] = "yes"
    try:
        image = images.ensure(
            layer(
                "(ls -a /; ls /dev; env; hostname; id -u) > /seen",
                "ls /proc | grep '^[0-9]' | wc -l > /processes",
                "mknod /dev/sda b 8 0 && echo devices >> /seen || true",
                "mount -t tmpfs x /mnt && echo mounts >> /seen || true",
            )
        )
    finally:
        del os.environ["SECRET_OF_THE_HOST"]
    entries = own_layer(image, tmp_path)
    seen = text(entries, "seen").split()
    assert "busybox" not in seen  # only what is at the top
    assert {"home", "null", "urandom", "encamp", "0"} <= set(seen)
    for word in ("work", "SECRET_OF_THE_HOST=yes", "kvm", "devices", "mounts", "boot"):
        assert word not in seen
    assert int(text(entries, "processes")) < 8


def test_a_command_that_fails_is_quoted_and_the_steps_before_it_stay(images: ImageStore) -> None:
    with pytest.raises(EncampError) as raised:
        images.ensure(layer("echo fine > /fine", "echo about to fail; exit 3"))
    assert raised.value.code is Code.BUILD_FAILED
    assert "echo about to fail" in raised.value.sentence
    assert "about to fail" in raised.value.detail
    assert left_over(images.home) == []
    assert images.resolve("layer") is None
    told = Told()
    images.ensure(layer("echo fine > /fine", "true"), told)
    assert not any("echo fine" in what for what in told.what)


def test_all_that_a_failed_build_said_is_in_a_file_until_it_is_built_again(
    images: ImageStore,
) -> None:
    with pytest.raises(EncampError) as raised:
        images.ensure(layer("echo first", "seq 100; exit 3"))
    named = re.search(r"/\S+[^.\s]", raised.value.hint)
    assert named is not None
    log = Path(named[0])
    assert log.stat().st_mode & 0o077 == 0
    lines = log.read_text().splitlines()
    assert "first" in lines
    assert [*map(str, range(1, 101))] == [line for line in lines if line.isdigit()]
    assert "\n50\n" not in raised.value.detail
    images.ensure(layer("echo first"))
    assert not log.exists()


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (AddedFile(path="/x", source="/nowhere/at/all"), "/nowhere/at/all"),
        (AddedFile(path="/x", content="", owner="stranger"), "'stranger'"),
    ],
)
def test_a_file_that_cannot_be_added_is_named(
    images: ImageStore, file: AddedFile, says: str
) -> None:
    with pytest.raises(EncampError) as raised:
        images.ensure(layer(files=(file,)))
    assert raised.value.code in (Code.INPUT_MISSING, Code.CONFIGURATION)
    assert says in raised.value.sentence
    assert left_over(images.home) == []


def test_a_file_follows_the_links_of_the_tree_and_none_out_of_it(
    images: ImageStore, tmp_path: Path
) -> None:
    base = layer("ln -s /etc /inside; ln -s ../../../../../etc /outside", name="linked")
    added = tuple(AddedFile(path=f"/{name}/added-{name}", content="") for name in LINKS)
    entries = own_layer(images.ensure(layer(parent=base, files=added)), tmp_path)
    assert {f"etc/added-{name}" for name in LINKS} <= set(entries)


LINKS = ("inside", "outside")


def test_packages_are_refused_where_there_is_no_debian(images: ImageStore) -> None:
    recipe = Recipe(name="odd", kind=Kind.LAYER, parent=MINI, packages=("file",))
    with pytest.raises(EncampError) as raised:
        images.ensure(recipe)
    assert "Encamp mini" in raised.value.sentence
    assert left_over(images.home) == []


def test_what_was_used_longest_ago_is_forgotten_first(
    images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = images.home.cache / "steps"
    images.ensure(layer("echo old > /old", name="first"))
    size = max(path.stat().st_size for path in directory.glob("*.tar"))
    for path in directory.glob("*.json"):
        os.utime(path, (1, 1))
    monkeypatch.setattr(steps, "LIMIT", 3 * size + 100_000)
    images.ensure(layer("echo new > /new", name="second"))
    told = Told()
    images.ensure(layer("echo new > /new", name="third"), told)
    assert not any("running" in what for what in told.what)
    assert sum(path.stat().st_size for path in directory.glob("*.tar")) <= steps.LIMIT


SCRIPT = """
import signal, sys
from pathlib import Path
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.recipe import Kind, Recipe

class Lines:
    def update(self, what, fraction=None):
        print(what, flush=True)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
command = "setsid sleep 987 & sleep 987"
recipe = Recipe(name="layer", kind=Kind.LAYER, parent="mini", run=(command,))
ImageStore(Home(Path(sys.argv[1])), shared=None).ensure(recipe, Lines())
"""


def sleepers() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:
            continue
        if words == b"sleep\x00987\x00":
            found.append(process.parent.name)
    return found


@pytest.mark.parametrize("number", [15, 9], ids=["told to stop", "killed"])
def test_an_interrupted_command_ends_with_all_it_started(images: ImageStore, number: int) -> None:
    home = images.home
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, home.root],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        until = time.monotonic() + 60
        while len(sleepers()) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(sleepers()) == 2
        process.send_signal(number)
        process.communicate(timeout=60)
    until = time.monotonic() + 60
    while sleepers() and time.monotonic() < until:
        time.sleep(0.05)
    assert sleepers() == []
    assert nobody_is_left_in(home)
    if number == 15:
        assert left_over(home) == []
    images.ensure(layer("true", name="other"))
    assert left_over(home) == []


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.NONE])
def test_machines_read_layers_of_any_compression(
    site_home: Home, encamp: Encamp, compression: Compression
) -> None:
    images = ImageStore(site_home, shared=None)
    name = f"layer-{compression.value}"
    images.ensure(layer("echo built > /built; rm /etc/profile", name=name, compression=compression))
    try:
        words = ("sh", "-c", "cat /built; ls /etc/profile || echo gone")
        done = encamp("run", "--image", name, "--", *words)
        assert done.stdout == b"built\ngone\n"
    finally:
        images.rm(name)


def test_links_in_a_tree_do_not_lead_its_builder_out_of_it(
    images: ImageStore, tmp_path: Path
) -> None:
    """A tree may come from anybody, and its builder may be root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    lured = layer(f"rm -r /usr/sbin && ln -s {outside} /usr/sbin", name="lured")
    images.ensure(layer("touch /done", parent=lured))
    assert list(outside.iterdir()) == []


def test_a_tree_whose_devices_would_be_the_hosts_is_refused(
    images: ImageStore, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "dev").symlink_to(outside)
    recipe = Recipe(name="lured", kind=Kind.ROOTFS, source=str(root), run=("true",))
    with pytest.raises(EncampError) as raised:
        images.ensure(recipe)
    assert "symbolic link" in raised.value.detail
    assert list(outside.iterdir()) == []
    assert left_over(images.home) == []


# ── trees of somebody who means harm ─────────────────────────────────────────────────────────────


def test_the_root_of_a_tree_is_nobody_on_the_host(images: ImageStore, tmp_path: Path) -> None:
    image = images.ensure(layer("cat /proc/self/uid_map > /ids; cat /proc/self/status > /status"))
    entries = own_layer(image, tmp_path)
    assert int(text(entries, "ids").split()[1]) != 0
    (bounds,) = [line for line in text(entries, "status").splitlines() if "CapBnd" in line]
    reads_without_a_path, mounts = 1 << 2, 1 << 21
    assert not int(bounds.split()[1], 16) & (reads_without_a_path | mounts)


def test_nobody_else_can_enter_where_a_tree_is_worked_on(
    images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def look(root: Path) -> None:
        seen.append((root.parent.stat().st_mode & 0o077, (root / "setuid").stat().st_uid))
        remove_tree(root)

    monkeypatch.setattr(session, "remove_tree", look)
    images.ensure(layer("cp /bin/busybox /setuid; chmod 4755 /setuid"))
    ((open_to_others, owner),) = seen
    assert open_to_others == 0
    assert owner != 0


def test_links_made_by_a_command_do_not_lead_its_builder_out_of_the_tree(
    images: ImageStore, outside: Path
) -> None:
    (outside / "policy-rc.d").write_text("of the host")
    (outside / "resolv.conf").write_text("of the host")
    swap = f"mv /usr/sbin /usr/old; ln -s {outside} /usr/sbin; mv /etc /old; ln -s {outside} /etc"
    images.ensure(layer(swap))
    assert {path.name for path in outside.iterdir()} == {"policy-rc.d", "resolv.conf"}


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory of the host that everybody may write to."""
    # Not below pytest's own directory: that is closed to others.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


ESCAPE = """
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void)
{
    mkdir("/x", 0755);
    chroot("/x");
    for (int up = 0; up < 30; up++)
        chdir("..");
    chroot(".");
    close(open(OUTSIDE "/escaped", O_CREAT | O_WRONLY, 0644));
    return 0;
}
"""


def foreign_debian(tmp_path: Path, outside: Path) -> Path:
    """A tree that looks like Debian, with a dpkg that tries to get out of it."""
    root = tmp_path / "root"
    for name in ("etc/apt", "usr/bin", "usr/sbin", "var/lib/dpkg", "var/cache/apt/archives"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    package = "Package: base\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n"
    (root / "var" / "lib" / "dpkg" / "status").write_text(f"{package}Description: x\n\n")
    source = tmp_path / "escape.c"
    source.write_text(ESCAPE)
    words = ("musl-gcc", "-static", f'-DOUTSIDE="{outside}"', "-o", root / "usr" / "bin" / "dpkg")
    subprocess.run([*words, source], check=True)
    return root


def test_a_foreign_trees_dpkg_cannot_leave_it(
    images: ImageStore, tmp_path: Path, outside: Path
) -> None:
    root = foreign_debian(tmp_path, outside)
    recipe = Recipe(name="foreign", kind=Kind.ROOTFS, source=str(root), packages=("bc",))
    images.ensure(recipe)
    assert list(outside.iterdir()) == []


def test_a_foreign_tree_does_not_lead_apt_to_the_hosts_files(
    images: ImageStore, tmp_path: Path, outside: Path
) -> None:
    root = foreign_debian(tmp_path, outside)
    (root / "var" / "lib" / "apt").symlink_to(outside)
    recipe = Recipe(name="foreign", kind=Kind.ROOTFS, source=str(root), packages=("bc",))
    with pytest.raises(EncampError) as raised:
        images.ensure(recipe)
    assert "symbolic link" in raised.value.detail
    assert list(outside.iterdir()) == []
    assert left_over(images.home) == []


def test_passwords_are_nobody_elses_to_read(
    images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[int] = []
    run = programs.run

    def look(*arguments: Any, **options: Any) -> str:
        if isinstance(options.get("directory"), Path):
            plans.extend(path.stat().st_mode for path in options["directory"].glob("plan*.json"))
        return run(*arguments, **options)

    monkeypatch.setattr(programs, "run", look)
    images.ensure(layer("true > /made"))
    assert [mode & 0o077 for mode in plans] == [0]
    lists = list(images.home.cache.glob("apt-*/sources.list"))
    assert lists
    apt.Apt(lists[0].parent, "bookworm")
    assert [path.stat().st_mode & 0o077 for path in lists] == [0] * len(lists)


# ── names and room ───────────────────────────────────────────────────────────────────────────────


class ClearsUp:
    """Removes all that nobody needs while a command runs."""

    def __init__(self, images: ImageStore) -> None:
        self.images = images

    def update(self, what: str, fraction: float | None = None) -> None:
        if what.startswith("running"):
            list(clearing.clear(self.images, 0, dry_run=False))


def test_what_is_built_upon_stays_while_somebody_clears_up(stocked: Home) -> None:
    images = ImageStore(stocked, shared=None)
    recipe = msgspec.structs.replace(MINI, name="own", run=("echo own > /own",))
    image = images.ensure(recipe, ClearsUp(images))
    assert image.parent is not None
    images.check(image)


def test_an_image_cannot_be_added_to_one_of_its_own_name(images: ImageStore) -> None:
    with pytest.raises(EncampError, match="of the same name") as raised:
        images.ensure(layer("true", parent=layer("true > /x")))
    assert raised.value.code is Code.CONFIGURATION


def test_an_image_that_lost_its_name_to_another_is_not_built_again(images: ImageStore) -> None:
    one, two = layer("echo 1 > /which"), layer("echo 2 > /which")
    first = images.ensure(one)
    images.ensure(two)
    shutil.rmtree(images.home.cache / "steps")
    told = Told()
    assert images.ensure(one, told).digest == first.digest
    assert not any("running" in what for what in told.what)


def test_a_kept_tree_is_as_old_as_its_last_use(images: ImageStore) -> None:
    images.ensure(layer("true > /made"))
    kept = sorted((images.home.cache / "steps").iterdir())
    for path in kept:
        if path.suffix == ".tar":
            os.utime(path, (1, 1))
    list(clearing.clear(images, 1, dry_run=False))
    assert sorted((images.home.cache / "steps").iterdir()) == kept


# ── where files go ───────────────────────────────────────────────────────────────────────────────


def merged() -> Entries:
    """A tree whose /bin is a link."""
    link = tree.Entry(tarfile.SYMTYPE, 0o777, 0, 0, 0, link="usr/bin")
    tool = tree.Entry(tarfile.REGTYPE, 0o755, 0, 0, 0)
    return {
        **dict.fromkeys(("", "usr", "usr/bin"), tree.ROOT),
        "bin": link,
        "usr/bin/tool": tool,
    }


def test_a_directory_is_put_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "overlay" / "bin").mkdir(parents=True)
    (tmp_path / "overlay" / "bin" / "added").write_text("")
    entries = merged()
    added_files.add(entries, [AddedFile(path="/", source=str(tmp_path / "overlay"))], tmp_path)
    assert set(entries) == {*merged(), "usr/bin/added"}
    assert entries["bin"].link == "usr/bin"


@pytest.mark.parametrize("path", ["/", "/usr/bin", "/usr/bin/", "/new/", "/usr/bin/tool/below"])
def test_a_file_takes_the_place_of_no_directory(tmp_path: Path, path: str) -> None:
    entries = merged()
    with pytest.raises(EncampError) as raised:
        added_files.add(entries, [AddedFile(path=path, content="x")], tmp_path)
    assert raised.value.code is Code.CONFIGURATION
    assert set(merged()) <= set(entries)


@pytest.mark.parametrize("when", ["listed", "read"])
def test_links_swapped_in_do_not_lead_to_other_files_of_the_host(tmp_path: Path, when: str) -> None:
    secret, source = tmp_path / "secret", tmp_path / "source"
    for directory in (secret, source / "d" / "a"):
        directory.mkdir(parents=True)
    (secret / "file").write_text("secret")
    (source / "d" / "file").write_text("harmless")
    (source / "d" / "z").mkdir()
    written = tmp_path / "tree.tar"

    def swap() -> None:
        if not (source / "e").exists():
            (source / "d").rename(source / "e")
            (source / "d").symlink_to(secret)

    def read_and_write() -> None:
        entries: Entries = {}
        for path, entry in host_files.host_entries(source):
            entries[path] = entry
            if path == "d" and when == "listed":
                swap()
        swap()
        tree.write(entries, written)

    with pytest.raises((EncampError, OSError)):
        read_and_write()
    assert not written.exists() or b"secret" not in written.read_bytes()
