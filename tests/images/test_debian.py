"""Building `debian12` for real, once, and what is in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from encamp import programs
from encamp.describe.shipped import DEBIAN12
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.image import Image
from tests.images.conftest import Told, left_over

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def progress() -> Told:
    return Told()


@pytest.fixture(scope="module")
def debian(built: Home, progress: Told, tmp_path_factory: pytest.TempPathFactory) -> Image:
    home = Home(tmp_path_factory.mktemp("debian") / "home").prepare()
    shutil.copytree(built.cache, home.cache, dirs_exist_ok=True)
    image = ImageStore(home, shared=None).ensure(DEBIAN12, progress)
    assert left_over(home) == []
    return image


@pytest.fixture(scope="module")
def tree(debian: Image) -> dict[str, str]:
    """Every path of the image, with what `ls` would say about it."""
    said = programs.run(["unsquashfs", "-lln", debian.root], purpose="listing an image")
    rows = (line.partition(" squashfs-root") for line in said.splitlines())
    return {path.partition(" -> ")[0]: looks for looks, _, path in rows}


def content(image: Image, path: str) -> str:
    return programs.run(["unsquashfs", "-cat", image.root, path], purpose="reading an image")


def test_it_is_debian_12(debian: Image) -> None:
    assert "bookworm" in content(debian, "usr/lib/os-release")


def test_it_is_small(debian: Image) -> None:
    assert debian.root.stat().st_size < 50_000_000


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
    assert not any(path.startswith("/usr/share/man/man1/") for path in tree)
    assert not any(path.endswith(".mo") for path in tree)


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


def test_progress_moves_all_the_time(debian: Image, progress: Told) -> None:
    steps = [b - a for a, b in zip(progress.fractions, progress.fractions[1:], strict=False)]
    assert min(steps) >= 0
    assert max(steps) < 0.31  # the packages that were there already
    assert len(set(progress.fractions)) > 100
