"""Ready disks taken as images: the same image for the same disk, and nothing read that the file's
maker had no right to have read for him."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from encamp.home import Home
from encamp.images import build_disk
from encamp.images.store import ImageStore
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import AddedFile, Compression, Kind, Recipe
from encamp.model.size import MIB
from encamp.workplace import Workplace
from tests.images.conftest import left_over

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")

SIZE = 8 * MIB
CONTENT = os.urandom(MIB)


def boot_record(sectors: int = SIZE // 512 - 2048) -> bytes:
    """The first sector of a disk with one partition, and something to begin with."""
    partition = struct.pack("<B3sB3sII", 0x80, b"", 0x83, b"", 2048, sectors)
    return b"\xeb\xfe".ljust(446, b"\x90") + partition + bytes(48) + b"\x55\xaa"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes(boot_record())
    with path.open("r+b") as file:
        file.seek(2 * MIB)
        file.write(CONTENT)
        file.truncate(SIZE)
    return path


@pytest.fixture
def qcow2(raw: Path) -> Path:
    return converted(raw, "qcow2")


def converted(raw: Path, kind: str) -> Path:
    target = raw.with_suffix(f".{kind}")
    qemu_img("convert", "-O", kind, raw, target)
    return target


def qemu_img(*words: str | Path) -> bytes:
    return subprocess.run(["qemu-img", *words], check=True, capture_output=True).stdout


def recipe(source: Path, compression: Compression = Compression.ZSTD, name: str = "disk") -> Recipe:
    return Recipe(name=name, kind=Kind.DISK, source=str(source), compression=compression)


def take(
    home: Home, source: Path, compression: Compression = Compression.ZSTD, name: str = "disk"
) -> Image:
    return ImageStore(home, shared=None).ensure(recipe(source, compression, name))


def refused(home: Home, source: Path, code: Code = Code.BUILD_FAILED) -> str:
    with pytest.raises(EncampError) as raised:
        take(home, source)
    assert raised.value.code is code, raised.value
    assert left_over(home) == []
    assert [path.name for path in home.images.iterdir() if len(path.name) == 64] == []
    return str(raised.value)


def test_disk_has_the_same_digest_whatever_it_came_as(home: Home, raw: Path, qcow2: Path) -> None:
    image = take(home, raw)
    assert image.disk is not None
    assert image.layers == ()
    assert [file.name for file in image.files] == [Image.DISK]
    assert take(home, qcow2, name="other").digest == image.digest
    ImageStore(home, shared=None).check(image)


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.GZIP, Compression.NONE])
def test_disk_holds_what_it_held_however_it_is_compressed(
    home: Home, raw: Path, compression: Compression
) -> None:
    image = take(home, raw, compression=compression)
    assert image.disk is not None
    back = raw.with_name("back")
    qemu_img("convert", "-O", "raw", image.disk, back)
    assert back.read_bytes() == raw.read_bytes()
    left = home.images / image.digest
    assert sorted(path.name for path in left.iterdir()) == [Image.DISK, "image.json"]


def test_overlay_never_makes_the_host_read_another_file(home: Home, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(boot_record().ljust(MIB, b"\0"))
    overlay = tmp_path / "overlay.qcow2"
    qemu_img("create", "-q", "-f", "qcow2", "-F", "raw", "-b", secret, overlay)
    assert "the rest of it is in another file" in refused(home, overlay)


def test_disk_with_data_elsewhere_never_makes_the_host_read_it(home: Home, tmp_path: Path) -> None:
    disk = tmp_path / "outside.qcow2"
    qemu_img("create", "-q", "-f", "qcow2", "-o", f"data_file={tmp_path / 'data'}", disk, "8M")
    assert "keeps its data in another file" in refused(home, disk)


def test_raw_file_that_begins_like_qcow2_is_never_guessed_to_be_raw(
    home: Home, raw: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    disk = bytearray(raw.read_bytes())
    disk[:32] = struct.pack(">4sIQIIQ", b"QFI\xfb", 3, 512, 100, 16, SIZE)
    raw.write_bytes(disk)
    assert "the rest of it is in another file" in refused(home, raw)


def test_encrypted_disk_is_refused(home: Home, qcow2: Path) -> None:
    with qcow2.open("r+b") as file:
        file.seek(32)
        file.write(struct.pack(">I", 2))
    assert "is encrypted" in refused(home, qcow2)


@pytest.mark.parametrize("size", [100, MIB, MIB + 4096])
def test_disk_that_was_cut_off_is_noticed(home: Home, raw: Path, qcow2: Path, size: int) -> None:
    for path in (raw, qcow2):
        os.truncate(path, size)
        words = refused(home, path)
        assert "Fetch it again" in words or "no boot record" in words


def with_large_table(raw: Path) -> None:
    """Give the disk a GPT as some programs write it: its boot record claims all there could be."""
    protective = struct.pack("<B3sB3sII", 0, b"", 0xEE, b"", 1, 0xFFFFFFFF)
    table = struct.pack("<8s16xQQ", b"EFI PART", 1, SIZE // 512 - 1)
    with raw.open("r+b") as file:
        file.write(b"\xeb\xfe".ljust(446, b"\x90") + protective + bytes(48) + b"\x55\xaa" + table)


def test_disk_with_a_large_partition_table_is_taken(home: Home, raw: Path) -> None:
    with_large_table(raw)
    assert take(home, raw).disk is not None


def test_disk_with_a_large_partition_table_that_was_cut_off_is_noticed(
    home: Home, raw: Path
) -> None:
    with_large_table(raw)
    os.truncate(raw, SIZE - 512)
    assert "ends before its partition table says" in refused(home, raw)


def test_disk_that_claims_to_be_larger_than_any_is_refused(home: Home, tmp_path: Path) -> None:
    disk = tmp_path / "huge.qcow2"
    qemu_img("create", "-q", "-f", "qcow2", disk, "100T")
    assert "100.0 TiB, more than any host has" in refused(home, disk)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no disk at all\n" * 100, "its first sector is no boot record"),
        (b"", "its first sector is no boot record"),
        (bytes(510) + b"\x55\xaa" + bytes(MIB), "no boot loader for a BIOS"),
        (b"\x1f\x8b" + bytes(1000), "gunzip"),
        (b"KDMV" + bytes(1000), "qemu-img convert"),
    ],
)
def test_what_is_no_disk_is_told_from_one(
    home: Home, tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert words in refused(home, path)


def test_empty_qcow2_is_not_taken_for_a_disk_that_boots(home: Home, tmp_path: Path) -> None:
    disk = tmp_path / "empty.qcow2"
    qemu_img("create", "-q", "-f", "qcow2", disk, "8M")
    assert "its first sector is no boot record" in refused(home, disk)


def test_disk_that_is_not_there_is_named(home: Home, tmp_path: Path) -> None:
    assert "No such file" in refused(home, tmp_path / "missing.qcow2", Code.INPUT_MISSING)
    assert "is not a file" in refused(home, tmp_path, Code.INPUT_MISSING)


def test_disk_that_others_may_write_to_is_copied_before_it_is_checked(
    home: Home, qcow2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they could put another header into it between our look and QEMU's."""
    qcow2.chmod(0o666)
    check = build_disk.check_whole

    def swap(source: Path, file: int, work: Workplace) -> None:
        with qcow2.open("r+b") as other:
            other.seek(8)
            other.write(struct.pack(">QI", 512, 100))
        check(source, file, work)

    monkeypatch.setattr(build_disk, "check_whole", swap)
    image = take(home, qcow2)
    assert image.disk is not None
    assert left_over(home) == []


@pytest.mark.parametrize(
    "change",
    [
        {"packages": ("curl",)},
        {"run": ("true",)},
        {"files": (AddedFile(path="/etc/motd", content=""),)},
        {"compression": Compression.XZ},
    ],
)
def test_what_cannot_be_done_with_a_disk_is_refused(
    home: Home, raw: Path, change: dict[str, object]
) -> None:
    with pytest.raises(EncampError) as raised:
        ImageStore(home, shared=None).ensure(msgspec.structs.replace(recipe(raw), **change))
    assert raised.value.code is Code.CONFIGURATION
    assert left_over(home) == []


def test_disk_cannot_be_added_to(home: Home, raw: Path) -> None:
    layer = Recipe(name="more", kind=Kind.LAYER, parent=recipe(raw), packages=("curl",))
    with pytest.raises(EncampError) as raised:
        ImageStore(home, shared=None).ensure(layer)
    assert raised.value.code is Code.CONFIGURATION
    assert "whole disk" in raised.value.sentence
    assert left_over(home) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Home]:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "encamp", place], check=True)
    try:
        yield Home(place / "home").prepare()
    finally:
        subprocess.run(["umount", place], check=True)


@root_only
def test_host_whose_disk_fills_up_is_left_clean(small_disk: Home, raw: Path) -> None:
    with raw.open("r+b") as file:
        file.seek(2 * MIB)
        file.write(os.urandom(6 * MIB))
    assert "disk" in refused(small_disk, raw, Code.DISK_FULL)
