"""Building `debian12` for real, once, and what is in it."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from encamp import programs
from encamp.describe.shipped import DEBIAN12
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import AddedFile, Kind, Recipe
from encamp.progress import FIGURES
from tests.builds import Told, give_images, stock
from tests.images.conftest import left_over

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def debian(debian_home: Home) -> Image:
    image = ImageStore(debian_home, shared=None).ensure(DEBIAN12)
    assert left_over(debian_home) == []
    return image


@pytest.fixture(scope="module")
def tree(debian: Image) -> dict[str, str]:
    """Every path of the image, with what `ls` would say about it."""
    found: dict[str, str] = {}
    for layer in debian.layers:
        said = programs.run(["unsquashfs", "-lln", layer], purpose="listing an image")
        rows = (line.partition(" squashfs-root") for line in said.splitlines())
        found |= {path.partition(" -> ")[0]: looks for looks, _, path in rows}
    return found


def content(image: Image, path: str) -> str:
    for layer in reversed(image.layers):
        try:
            return programs.run(["unsquashfs", "-cat", layer, path], purpose="reading an image")
        except EncampError:
            continue
    raise FileNotFoundError(path)


def test_it_is_debian_12(debian: Image) -> None:
    assert "bookworm" in content(debian, "usr/lib/os-release")


def test_it_is_small(debian: Image) -> None:
    assert sum(layer.stat().st_size for layer in debian.layers) < 40_000_000


def test_what_the_recipe_adds_lies_apart_from_bare_debian(debian: Image) -> None:
    assert debian.parent is not None
    assert debian.parent.parent is None
    assert {file.name for file in debian.files} == {"root.squashfs"}
    assert {file.name for file in debian.parent.files} == {
        *("root.squashfs", "vmlinuz", "modules.cpio")
    }
    assert debian.size < debian.parent.size / 4


def test_it_has_what_a_job_expects(tree: dict[str, str]) -> None:
    for program in ("bash", "ps", "ip", "ping", "xz", "less", "apt-get", "perl", "tar", "awk"):
        assert f"/usr/bin/{program}" in tree, program
    assert "/etc/ssl/certs/ca-certificates.crt" in tree
    assert "/usr/bin/python3" not in tree


def test_documentation_and_translations_are_left_out(tree: dict[str, str]) -> None:
    documentation = [
        path
        for path, looks in tree.items()
        if path.startswith("/usr/share/doc/") and looks.startswith("-")
    ]
    assert {Path(path).name for path in documentation} == {"copyright"}
    assert "/usr/share/doc/bash/copyright" in tree
    pages = {path for path in tree if path.startswith("/usr/share/man/man")}
    assert not any(tree[path].startswith("-") for path in pages)
    assert not any(path.endswith(".mo") for path in tree)


def test_directories_of_manual_pages_stay_for_scripts_that_make_links_there(
    tree: dict[str, str],
) -> None:
    assert {"/usr/share/man/man1", "/usr/share/man/man8"} <= set(tree)


def test_nothing_of_the_host_is_in_it(debian: Image, tree: dict[str, str]) -> None:
    assert content(debian, "etc/machine-id") == ""
    assert content(debian, "etc/resolv.conf") == ""
    assert content(debian, "etc/hostname") == "encamp\n"
    assert "/etc/apt/apt.conf.d/99mmdebstrap" not in tree
    lists = [path for path in tree if path.startswith("/var/lib/apt/lists/")]
    assert set(lists) <= {"/var/lib/apt/lists/lock", "/var/lib/apt/lists/partial"}
    assert not [path for path in tree if path.endswith((".deb", ".log", "-old"))]


def test_files_belong_to_whom_debian_says(tree: dict[str, str]) -> None:
    assert tree[""].startswith("drwxr-xr-x 0/0")
    assert tree["/tmp"].startswith("drwxrwxrwt 0/0")
    assert tree["/etc/shadow"].startswith("-rw-r----- 0/42")
    assert tree["/usr/bin/su"].startswith("-rwsr-xr-x 0/0")


def test_a_machine_can_install_more(debian: Image) -> None:
    sources = content(debian, "etc/apt/sources.list")
    assert "bookworm main" in sources
    assert "bookworm-security main" in sources
    assert "@" not in sources


def test_progress_moves_all_the_time(debian: Image, debian_build: Told) -> None:
    fractions = debian_build.fractions
    steps = [b - a for a, b in pairwise(fractions)]
    assert min(steps) >= 0
    assert max(steps) < 0.31  # the packages that were there already
    assert len(set(fractions)) > 100


# ── more than the shipped recipe ─────────────────────────────────────────────────────────────────


@pytest.fixture
def images(home: Home, debian_home: Home) -> ImageStore:
    """A home of the test's own, with `debian12` and the steps of its build."""
    stock(home, debian_home)
    give_images(home, debian_home)
    return ImageStore(home, shared=None)


def test_one_more_package_is_all_that_is_installed_however_often_others_are_listed(
    images: ImageStore, debian: Image, told: Told
) -> None:
    packages = (*DEBIAN12.packages, "file", "file", DEBIAN12.packages[0])
    image = images.ensure(msgspec.structs.replace(DEBIAN12, name="more", packages=packages), told)
    installed = {what.split(FIGURES)[0] for what in told.what if what.startswith("installing")}
    assert installed == {"installing file"}
    assert image.parent is not None
    assert debian.parent is not None
    assert image.parent.digest == debian.parent.digest
    assert "usr/bin/file" in listed(image)
    assert left_over(images.home) == []


def test_packages_are_added_to_an_image_by_its_name(images: ImageStore, debian: Image) -> None:
    recipe = Recipe(name="over", kind=Kind.LAYER, parent="debian12", packages=("file",))
    image = images.ensure(recipe)
    assert [part.digest for part in image.lineage[1:]] == [part.digest for part in debian.lineage]
    names = listed(image)
    assert "usr/bin/file" in names
    assert "usr/bin/less" not in names  # which is in the layer below


@pytest.mark.parametrize("package", ["no-such-thing", "less=0.0.1", "less/no-such-release"])
def test_a_package_that_does_not_exist_is_named_before_anything_is_installed(
    images: ImageStore, told: Told, package: str
) -> None:
    recipe = Recipe(name="odd", kind=Kind.LAYER, parent="debian12", packages=("file", package))
    with pytest.raises(EncampError) as raised:
        images.ensure(recipe, told)
    assert raised.value.code is Code.BUILD_FAILED
    assert package.partition("=")[0].partition("/")[0] in raised.value.sentence
    assert "file" not in raised.value.sentence
    assert raised.value.detail == ""
    assert not any(what.startswith("installing") for what in told.what)
    assert left_over(images.home) == []


@pytest.fixture
def own_source(tmp_path: Path) -> str:
    """A directory of packages with one package in it, as a line of apt's sources."""
    root, place = tmp_path / "package", tmp_path / "packages"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr" / "share" / "site").mkdir(parents=True)
    (root / "usr" / "share" / "site" / "greeting").write_text("hello\n")
    control = "Package: site-greeting\nVersion: 1.0\nArchitecture: all\n"
    described = "Maintainer: A Site <site@example.org>\nDescription: greets\n"
    (root / "DEBIAN" / "control").write_text(control + described)
    place.mkdir()
    deb = place / "site-greeting_1.0_all.deb"
    subprocess.run(["dpkg-deb", "--build", root, deb], check=True, capture_output=True)
    sha256 = hashlib.sha256(deb.read_bytes()).hexdigest()
    where = f"Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {sha256}\n"
    (place / "Packages").write_text(control + where + described)
    return f"deb [trusted=yes] file:{place} ./"


def test_packages_come_from_the_recipes_own_sources_too(
    images: ImageStore, own_source: str, debian: Image
) -> None:
    recipe = Recipe(
        name="sourced",
        kind=Kind.LAYER,
        parent="debian12",
        packages=("site-greeting",),
        sources=(own_source,),
    )
    image = images.ensure(recipe)
    assert content(image, "usr/share/site/greeting") == "hello\n"
    assert content(image, "etc/apt/sources.list.d/recipe.list") == f"{own_source}\n"
    assert image.parent is not None
    assert image.parent.digest == debian.digest


def listed(image: Image) -> set[str]:
    said = programs.run(["unsquashfs", "-l", image.root], purpose="listing an image")
    return {line.removeprefix("squashfs-root/") for line in said.splitlines()}


MADE_BY_ANYBODY = msgspec.structs.replace(
    DEBIAN12,
    name="anybody",
    packages=(*DEBIAN12.packages, "python3-minimal", "openssh-server"),
    files=(AddedFile(path="/srv/greeting", content="hello\n", owner="sshd", mode=0o600),),
    run=("useradd --create-home somebody; date; cp /srv/greeting ~somebody",),
)
"""With accounts, compiled Python, keys of a server's own, and times written down."""


@pytest.fixture
def account(tmp_path: Path) -> Iterator[str]:
    name = f"camper-{secrets.token_hex(4)}"
    subprocess.run(["useradd", "--no-create-home", "--user-group", name], check=True)
    try:
        yield name
    finally:
        subprocess.run(["userdel", name], check=True)


def as_account(name: str, home: Home, results: multiprocessing.queues.Queue[str]) -> None:
    entry = pwd.getpwnam(name)
    os.chdir("/")
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["HOME"] = entry.pw_dir
    try:
        results.put(ImageStore(home, shared=None).ensure(MADE_BY_ANYBODY).digest)
    except EncampError as error:
        results.put(f"{error} {error.detail}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_ordinary_user_builds_from_nothing_what_root_builds_from_kept_steps(
    images: ImageStore, debian_home: Home, account: str
) -> None:
    # Not below pytest's own directory: that is closed to others.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        home = Home(Path(directory) / "another home").prepare()
        stock(home, debian_home)
        shutil.rmtree(home.cache / "steps")
        subprocess.run(["chown", "-R", f"{account}:{account}", home.root], check=True)
        context = multiprocessing.get_context("fork")
        results: multiprocessing.queues.Queue[str] = context.Queue()
        process = context.Process(target=as_account, args=(account, home, results))
        process.start()
        wanted = images.ensure(MADE_BY_ANYBODY)
        answer = results.get(timeout=600)
        process.join()
        assert left_over(home) == []
    assert answer == wanted.digest
    assert not any("ssh_host" in name for name in listed(wanted))
