"""Archives of somebody else's making: what makes no sense is refused by name, and in time."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import resource
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from encamp.images import build_rootfs, tree
from encamp.images.foreign import LIMIT_VARIABLE, Budget, Reader
from encamp.images.oci_layout import ArchiveLayout
from encamp.images.tree import Entries
from encamp.model.errors import Code, EncampError


def add(out: tarfile.TarFile, name: str, content: bytes = b"", **attributes: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    out.addfile(member, io.BytesIO(content))


def read(path: Path) -> Entries:
    return build_rootfs.read_rootfs(path, path.parent)


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """A small root file system that is all right."""
    path = tmp_path / "good.tar"
    with tarfile.open(path, "w") as out:
        add(out, "./bin/sh", b"#!", mode=0o4755, uid=7)
        add(out, "etc", type=tarfile.DIRTYPE, mode=0o700)
        add(out, "etc/motd", b"hello")
        add(out, "etc/issue", type=tarfile.LNKTYPE, linkname="etc/motd")
        add(out, "dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
        add(out, "dev/hidden", type=tarfile.CHRTYPE)
    return path


def test_a_tree_is_what_the_archive_says_without_its_devices(rootfs: Path) -> None:
    entries = read(rootfs)
    assert set(entries) == {"", "bin", "bin/sh", "etc", "etc/motd", "etc/issue"}
    assert entries["bin/sh"].mode == 0o4755
    assert entries["bin/sh"].uid == 7
    assert entries["etc"].mode == 0o700
    assert entries["etc/issue"] == entries["etc/motd"]


@pytest.mark.parametrize(
    "compress",
    [
        gzip.compress,
        bz2.compress,
        lzma.compress,
        lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
        lambda data: (
            subprocess.run(["zstd", "-c"], input=data, capture_output=True, check=True).stdout
        ),
    ],
    ids=["gzip", "bzip2", "xz", "lzma", "zstd"],
)
def test_any_usual_compression_is_read(rootfs: Path, compress: Callable[[bytes], bytes]) -> None:
    packed = rootfs.with_name("packed")
    packed.write_bytes(compress(rootfs.read_bytes()))
    assert tree.tree_digest(read(packed)) == tree.tree_digest(read(rootfs))


@pytest.mark.parametrize(
    ("entry", "attributes", "says"),
    [
        ("../escape", {}, "leads out of the tree"),
        ("etc/../../escape", {}, "leads out of the tree"),
        ("/etc/shadow", {}, "leads out of the tree"),
        ("etc/motd/below", {}, "lies below 'etc/motd'"),
        ("etc/hard", {"type": tarfile.LNKTYPE, "linkname": "../../etc/shadow"}, "leads out"),
        ("etc/hard", {"type": tarfile.LNKTYPE, "linkname": "nothing"}, "link to 'nothing'"),
        ("etc/odd", {"type": b"Z"}, "of a kind"),
        ("etc/who", {"uid": 1 << 40}, "belongs to nobody"),
        (f"etc/{'x' * 300}", {}, "too long"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused_by_name(
    rootfs: Path, entry: str, attributes: dict[str, Any], says: str
) -> None:
    with tarfile.open(rootfs, "a", format=tarfile.GNU_FORMAT) as out:
        add(out, entry, **attributes)
    with pytest.raises(EncampError) as raised:
        read(rootfs)
    assert raised.value.code is Code.CONFIGURATION
    assert str(rootfs) in raised.value.sentence
    assert entry[:40] in raised.value.sentence
    assert says in raised.value.sentence


def test_nothing_is_put_below_a_symbolic_link(rootfs: Path) -> None:
    with tarfile.open(rootfs, "a") as out:
        add(out, "out", type=tarfile.SYMTYPE, linkname="/etc")
        add(out, "out/shadow", b"root::")
    with pytest.raises(EncampError, match="'out/shadow' lies below 'out'"):
        read(rootfs)


def test_a_directory_that_is_no_root_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "Makefile").write_text("all:\n")
    with pytest.raises(EncampError, match="is no root file system"):
        read(tmp_path / "project")


def test_more_than_is_allowed_is_refused(rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "1M")
    with tarfile.open(rootfs, "a") as out:
        add(out, "large", bytes(2 << 20))
    with pytest.raises(EncampError, match="more in it than 1 MiB") as raised:
        read(rootfs)
    assert LIMIT_VARIABLE in raised.value.hint


def test_a_bomb_is_given_up_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "8M")
    bomb = tmp_path / "bomb.tar.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as out:
        for _ in range(200):
            out.write(bytes(1 << 20))
    with pytest.raises(EncampError, match="more in it than 8 MiB"):
        read(bomb)
    assert (tmp_path / "rootfs.tar").stat().st_size <= 16 << 20


def test_a_file_longer_than_its_archive_is_refused(rootfs: Path) -> None:
    with tarfile.open(rootfs, "a") as out:
        member = tarfile.TarInfo("huge")
        member.size = 10 << 30
        out.addfile(member)
        out.fileobj.write(bytes(4096))
    with pytest.raises(EncampError, match="'huge' is longer than the rest"):
        read(rootfs)


def test_a_header_of_any_length_is_not_read_into_memory(rootfs: Path) -> None:
    data = bytearray(rootfs.read_bytes())
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 4 << 30
    rootfs.write_bytes(member.tobuf() + data)
    with pytest.raises(EncampError, match="no sound tar archive"):
        read(rootfs)


def test_too_many_entries_are_refused(rootfs: Path) -> None:
    budget = Budget("many", entries=3)
    with pytest.raises(EncampError, match="files in it"):
        Reader(rootfs, budget, rootfs.with_name("spool")).read()


def test_a_damaged_archive_is_not_taken_for_a_short_one(rootfs: Path) -> None:
    data = bytearray(rootfs.read_bytes())
    at = data.index(b"etc/motd")
    data[at : at + 3] = b"\xff\xff\xff"
    rootfs.write_bytes(data)
    with pytest.raises(EncampError, match="damaged at byte"):
        read(rootfs)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress], ids=["gzip", "xz"])
def test_a_compressed_archive_that_breaks_off_is_refused(
    rootfs: Path, compress: Callable[[bytes], bytes]
) -> None:
    packed = rootfs.with_name("packed")
    packed.write_bytes(compress(rootfs.read_bytes() + os.urandom(20_000))[:-2000])
    with pytest.raises(EncampError, match="it is damaged"):
        read(packed)


def test_what_is_no_archive_at_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("this is not an archive\n" * 100)
    with pytest.raises(EncampError, match="no sound tar archive"):
        read(path)


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EncampError) as raised:
        read(tmp_path / "nowhere.tar")
    assert raised.value.code is Code.INPUT_MISSING
    assert str(tmp_path / "nowhere.tar") in raised.value.sentence


def test_files_with_holes_are_read_whole(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "sh").write_text("#!")
    with (root / "sparse").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"end")
    for number, how in enumerate(("gnu", "posix")):
        path = tmp_path / f"{number}.tar"
        command = ["tar", "--sparse", f"--format={how}", "-C", str(root), "-cf", str(path), "."]
        subprocess.run(command, check=True)
        assert path.stat().st_size < 1 << 20
        assert read(path)["sparse"].sha256 == read(root)["sparse"].sha256


def test_a_directory_becomes_roots_if_it_is_the_builders(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "sh").write_text("#!")
    (root / "other").write_text("")
    (root / "socket").symlink_to("/nowhere")
    os.link(root / "bin" / "sh", root / "bin" / "ash")
    if os.geteuid() == 0:
        os.chown(root / "other", 1234, 4321)
    entries = read(root)
    assert (entries["bin/sh"].uid, entries["bin/sh"].gid) == (0, 0)
    assert entries["socket"].link == "/nowhere"
    assert entries["bin/ash"].source == entries["bin/sh"].source
    if os.geteuid() == 0:
        assert (entries["other"].uid, entries["other"].gid) == (1234, 4321)


def header(name: str, size: int, kind: bytes) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.USTAR_FORMAT)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % tarfile.BLOCKSIZE)


def said(name: str, value: str) -> bytes:
    """A line of a pax header, which begins with its own length."""
    rest = f" {name}={value}\n"
    length = len(rest) + 1
    while len(f"{length}{rest}") != length:
        length = len(f"{length}{rest}")
    return f"{length}{rest}".encode()


def names_of_names() -> Iterator[bytes]:
    for _ in range(3000):
        yield header("././@LongLink", 10, tarfile.GNUTYPE_LONGNAME) + padded(b"x" * 10)


def holes() -> Iterator[bytes]:
    sparse = {"major": "1", "minor": "0", "name": "a", "realsize": "1"}
    pax = b"".join(said(f"GNU.sparse.{name}", value) for name, value in sparse.items())
    body = b"1000000\n" + b"0\n" * 2_000_000
    yield header("x", len(pax), tarfile.XHDTYPE) + padded(pax)
    yield header("a", len(body), tarfile.REGTYPE) + padded(body)


def said_of_all() -> Iterator[bytes]:
    text = said("comment", "x" * (4 << 20))
    yield header("g", len(text), tarfile.XGLTYPE) + padded(text)


@pytest.mark.parametrize("headers", [names_of_names, holes, said_of_all])
@pytest.mark.parametrize("use", [read, lambda path: ArchiveLayout(path, path)])
def test_headers_without_end_are_refused(
    tmp_path: Path, headers: Callable[[], Iterator[bytes]], use: Callable[[Path], object]
) -> None:
    path = tmp_path / "hostile.tar"
    path.write_bytes(b"".join(headers()) + header("a", 0, tarfile.REGTYPE) + bytes(1024))
    with pytest.raises(EncampError, match="no sound tar archive") as raised:
        use(path)
    assert raised.value.code is Code.CONFIGURATION


@pytest.mark.parametrize("source", ["fifo", "/dev/zero"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, source: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    for use in (build_rootfs.source_digest, read):
        with pytest.raises(EncampError, match="no regular file") as raised:
            use(tmp_path / source)
        assert raised.value.code is Code.INPUT_MISSING


def test_a_directory_with_many_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "root" / "usr" / "bin").mkdir(parents=True)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for number in range(most + 10 if most < 10_000 else 10):
        (tmp_path / "root" / str(number)).write_text("x")
    tree.write(read(tmp_path / "root"), tmp_path / "tree.tar")
