"""Kernels are unpacked once, and what is kept is what came out."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.images.clearing import clear
from encamp.images.store import ImageStore
from encamp.machines import kernel
from encamp.machines.kernel import unpack_kernel

CONTENT = b"\x7fELF and all the rest"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinuz"
    path.write_bytes(b"a loader" + lzma.compress(CONTENT) + b"padding")
    return path


def kept(home: Home) -> list[Path]:
    return list(home.unpacked_kernels.glob("*"))


def test_a_kernel_is_unpacked_once(
    home: Home, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = unpack_kernel(packed, tmp_path / "first", home)
    monkeypatch.delattr(kernel, "_unpacked")
    second = unpack_kernel(packed, tmp_path / "second", home)
    assert first.read_bytes() == second.read_bytes() == CONTENT
    assert second.stat().st_mode & 0o777 == 0o444
    # It takes room on the disk once, too.
    assert first.samefile(second)


def test_a_kept_kernel_that_is_damaged_is_unpacked_again(
    home: Home, packed: Path, tmp_path: Path
) -> None:
    unpack_kernel(packed, tmp_path / "first", home).unlink()
    (path,) = kept(home)
    path.chmod(0o644)
    path.write_bytes(CONTENT[:-1])
    assert unpack_kernel(packed, tmp_path / "second", home).read_bytes() == CONTENT
    assert [path.read_bytes() for path in kept(home)] == [CONTENT]


def test_without_room_to_keep_it_a_kernel_is_unpacked_each_time(
    home: Home, packed: Path, tmp_path: Path
) -> None:
    home.unpacked_kernels.parent.write_text("in the way")
    for name in ("first", "second"):
        assert unpack_kernel(packed, tmp_path / name, home).read_bytes() == CONTENT


@pytest.mark.parametrize("data", [b"another way to pack", b"", kernel.XZ + b"garbage"])
def test_a_kernel_that_is_packed_in_another_way_is_booted_as_it_is(
    home: Home, tmp_path: Path, data: bytes
) -> None:
    packed = tmp_path / "vmlinuz"
    packed.write_bytes(data)
    assert unpack_kernel(packed, tmp_path / "first", home) == packed
    assert kept(home) == []


def test_kernels_that_nobody_boots_any_more_are_cleared_away(
    home: Home, packed: Path, tmp_path: Path
) -> None:
    unpack_kernel(packed, tmp_path / "first", home)
    images = ImageStore(home, shared=None)
    assert list(clear(images, 30, dry_run=False)) == []
    (path,) = kept(home)
    os.utime(path, (0, 0))
    assert [cleared.what for cleared in clear(images, 30, dry_run=False)] == [
        f"unpacked kernel {path.name[:12]}"
    ]
    assert kept(home) == []


def test_a_kernel_that_is_cleared_away_as_it_is_taken_serves_nevertheless(
    home: Home, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack_kernel(packed, tmp_path / "first", home)
    link = Path.hardlink_to

    def link_and_clear(target: Path, kept: Path) -> None:
        link(target, kept)
        kept.unlink()

    monkeypatch.setattr(Path, "hardlink_to", link_and_clear)
    monkeypatch.delattr(kernel, "_unpacked")
    assert unpack_kernel(packed, tmp_path / "second", home).read_bytes() == CONTENT
    assert kept(home) == []


def test_a_kernel_is_never_unpacked_into_another_name_of_a_kept_one(
    home: Home, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = unpack_kernel(packed, tmp_path / "first", home)

    def fail(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", fail)
    second = unpack_kernel(packed, tmp_path / "second", home)
    assert second.read_bytes() == CONTENT
    assert second.stat().st_mode & 0o777 == 0o444
    assert not first.samefile(second)
