"""Files go into a machine and come out of it as they were: both halves against each other."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from encamp.guest.archive import Unpacked, Unpacker, pack
from encamp.guest.archive_pack import pack_content
from encamp.guest.channel import Exec
from encamp.model.errors import Code, EncampError
from tests.guest.support import Guest, read_all

names = st.text(
    st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=8
).filter(lambda name: name not in (".", ".."))
times = st.integers(-(10**9), 4 * 10**9).map(lambda seconds: seconds * 10**9 + 123456789)
modes = st.integers(0, 0o777)


class File(NamedTuple):
    content: bytes
    mode: int
    mtime_ns: int


class Link(NamedTuple):
    target: str


class Directory(NamedTuple):
    below: dict[str, Any]
    mode: int
    mtime_ns: int


Node = File | Link | Directory

trees: st.SearchStrategy[Node] = st.recursive(
    st.builds(File, st.binary(max_size=200), modes, times)
    | st.builds(Link, st.text("abc./", min_size=1, max_size=10)),
    lambda below: st.builds(
        Directory, st.dictionaries(names, below, max_size=4), modes | st.just(0o555), times
    ),
    max_leaves=12,
)


def build(path: Path, node: Node) -> None:
    if isinstance(node, Link):
        path.symlink_to(node.target)
        return
    if isinstance(node, File):
        path.write_bytes(node.content)
    else:
        path.mkdir()
        for name, inner in node.below.items():
            build(path / name, inner)
    path.chmod(node.mode)
    os.utime(path, ns=(node.mtime_ns, node.mtime_ns))


def picture(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a tree that a copy shall have as well."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [top, *sorted(top.rglob("*"))]:
        status = path.lstat()
        content: object = None
        mode = stat.S_IMODE(status.st_mode)
        if path.is_symlink():
            content, mode = path.readlink(), 0
        elif path.is_file():
            content = path.read_bytes()
        kind = stat.S_IFMT(status.st_mode)
        found[path.relative_to(top).as_posix()] = (kind, mode, status.st_mtime_ns, content)
    return found


def guest_unpack(program: Path, archive: bytes, destination: Path) -> None:
    subprocess.run([program, "unpack", destination], input=archive, check=True)


def guest_pack(program: Path, base: Path, *patterns: str) -> bytes:
    command: list[str | Path] = [program, "pack", base, *patterns]
    return subprocess.run(command, check=True, capture_output=True).stdout


def test_guest_tells_where_it_has_really_put_things(guest_program: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    archive = pack_content("token", b"secret", mode=0o600, mtime_ns=0)
    who = (str(os.getuid()), str(os.getgid()))
    said = subprocess.run(
        [guest_program, "unpack", tmp_path / "link" / "new", *who],
        input=archive,
        capture_output=True,
        check=True,
    ).stdout
    assert said == bytes(tmp_path / "data" / "new")
    assert (tmp_path / "data" / "new" / "token").read_bytes() == b"secret"


def host_unpack(archive: bytes, destination: Path, step: int = 65536) -> Unpacked:
    with Unpacker(destination) as unpacker:
        for at in range(0, len(archive), step):
            unpacker.feed(archive[at : at + step])
        return unpacker.finish()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tree=trees, step=st.integers(1, 300))
def test_trees_survive_the_way_in_and_the_way_out(
    guest_program: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tree: Node,
    step: int,
) -> None:
    place = tmp_path_factory.mktemp("trees")
    source = place / "source"
    build(source, Directory({"top": tree}, 0o755, 10**18))
    archive = b"".join(pack([(source, "copy")]))
    guest_unpack(guest_program, archive, place / "in")
    assert picture(place / "in" / "copy") == picture(source)
    report = host_unpack(guest_pack(guest_program, place / "in", "copy"), place / "out", step)
    assert (report.written, report.missing, report.errors) == (["copy"], [], [])
    assert picture(place / "out" / "copy") == picture(source)
    assert not list(place.rglob(".encamp-*"))


@pytest.fixture
def special(tmp_path: Path) -> Path:
    """One of each thing that is not plain."""
    top = tmp_path / "special"
    (top / "sub" / "closed").mkdir(parents=True)
    (top / "first").write_bytes(b"content")
    os.link(top / "first", top / "sub" / "second")
    (top / "sub" / "closed" / "inner").write_text("inner")
    (top / "sub" / "closed").chmod(0o555)
    os.mkfifo(top / "fifo")
    (top / "dangling").symlink_to("/no/such/place")
    with (top / "sparse").open("wb") as file:
        file.write(b"start")
        file.seek(1 << 30)
        file.write(b"middle")
        file.truncate(3 << 30)
    (top / "empty").touch()
    (top / "large").write_bytes(os.urandom(3_000_001))
    try:
        os.setxattr(top / "first", "user.colour", b"blue")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    return top


def check_special(copy: Path, original: Path) -> None:
    assert (copy / "first").samefile(copy / "sub" / "second")
    assert os.getxattr(copy / "first", "user.colour") == b"blue"
    assert (copy / "sub" / "closed" / "inner").read_text() == "inner"
    assert stat.S_IMODE((copy / "sub" / "closed").stat().st_mode) == 0o555
    assert (copy / "fifo").is_fifo()
    assert (copy / "dangling").readlink() == Path("/no/such/place")
    sparse = (copy / "sparse").stat()
    assert sparse.st_size == 3 << 30
    assert sparse.st_blocks * 512 < 1 << 20, "holes stay holes"
    with (copy / "sparse").open("rb") as file:
        assert file.read(5) == b"start"
        file.seek(1 << 30)
        assert file.read(7) == b"middle\0"
    assert (copy / "large").read_bytes() == (original / "large").read_bytes()


def test_special_files_go_in(guest_program: Path, special: Path, tmp_path: Path) -> None:
    archive = b"".join(pack([(special, "copy")]))
    assert len(archive) < 4_000_000, "holes are not sent"
    guest_unpack(guest_program, archive, tmp_path / "new" / "in")
    check_special(tmp_path / "new" / "in" / "copy", special)


def test_special_files_come_out(guest_program: Path, special: Path, tmp_path: Path) -> None:
    archive = guest_pack(guest_program, tmp_path, "special")
    assert len(archive) < 4_000_000, "holes are not sent"
    report = host_unpack(archive, tmp_path / "new" / "out")
    assert report.errors == []
    check_special(tmp_path / "new" / "out" / "special", special)


def test_a_second_copy_replaces_the_first_even_where_it_is_read_only(
    guest_program: Path, special: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        report = host_unpack(guest_pack(guest_program, tmp_path, "special"), tmp_path / "out")
        assert report.errors == []
        guest_unpack(guest_program, b"".join(pack([(special, "special")])), tmp_path / "in")
    check_special(tmp_path / "out" / "special", special)
    check_special(tmp_path / "in" / "special", special)


def test_patterns_find_what_they_name(guest_program: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "deep" / "er").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "c.dat", "odd[1].txt", "deep/er/d.txt"):
        (base / name).write_text(name)
    (base / "alias").symlink_to("c.dat")
    archive = guest_pack(
        guest_program, base, "[ab].txt", "odd[1].txt", "deep/*", "alias", "no*", f"{base}/c.dat"
    )
    report = host_unpack(archive, tmp_path / "out")
    assert report.written == ["a.txt", "b.txt", "odd[1].txt", "er", "alias", "c.dat"]
    assert report.missing == ["no*"]
    assert (tmp_path / "out" / "er" / "d.txt").read_text() == "deep/er/d.txt"
    assert not (tmp_path / "out" / "alias").is_symlink(), "what is named itself is followed"
    assert report.files == 6


def test_a_missing_base_makes_every_pattern_missing(guest_program: Path, tmp_path: Path) -> None:
    report = host_unpack(guest_pack(guest_program, tmp_path / "no", "*"), tmp_path / "out")
    assert report.missing == ["*"]


def test_what_cannot_be_copied_is_reported_and_the_rest_arrives(
    guest_program: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "fine").write_text("fine")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(base / "socket"))
        report = host_unpack(guest_pack(guest_program, base, "*"), tmp_path / "out")
        archive = b"".join(pack([(base, "base")]))
    assert report.errors == ["socket: a socket or device cannot be copied"]
    assert (tmp_path / "out" / "fine").read_text() == "fine"
    command: list[str | Path] = [guest_program, "unpack", tmp_path / "in"]
    result = subprocess.run(command, input=archive, capture_output=True, check=False)
    assert result.returncode == 1
    assert b"base/socket: a socket or device" in result.stderr
    assert (tmp_path / "in" / "base" / "fine").exists()


@pytest.mark.parametrize("rename", ["new", {"old": "new"}])
def test_the_first_component_can_be_renamed(
    guest_program: Path, tmp_path: Path, rename: str | dict[str, str]
) -> None:
    (tmp_path / "old" / "sub").mkdir(parents=True)
    (tmp_path / "old" / "one").write_text("1")
    os.link(tmp_path / "old" / "one", tmp_path / "old" / "sub" / "two")
    with Unpacker(tmp_path / "out", rename=rename) as unpacker:
        unpacker.feed(guest_pack(guest_program, tmp_path, "old"))
        assert unpacker.finish().written == ["new"]
    assert os.listdir(tmp_path / "out") == ["new"]
    assert (tmp_path / "out" / "new" / "one").samefile(tmp_path / "out" / "new" / "sub" / "two")


def test_names_that_lead_elsewhere_cannot_be_asked_for(tmp_path: Path) -> None:
    for wrong in ("a/b", "..", ""):
        with pytest.raises(EncampError) as caught:
            pack([(tmp_path, wrong)])
        assert caught.value.code is Code.USAGE
        with pytest.raises(EncampError):
            Unpacker(tmp_path, rename=wrong or "..")


def test_a_missing_source_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(EncampError, match="No such file") as caught:
        pack([(tmp_path / "no", "x")])
    assert caught.value.code is Code.INPUT_MISSING


def builtin(*args: str | Path) -> Exec:
    return Exec(args=list(map(str, args)), builtin=True, uid=os.getuid(), gid=os.getgid())


async def test_builtins_copy_through_a_session(guest: Guest, special: Path, tmp_path: Path) -> None:
    channel = await guest.open()
    stream = channel.execute(builtin("unpack", tmp_path / "in"))
    for piece in pack([(special, "copy")]):
        await stream.write(piece)
    await stream.end()
    assert await read_all(stream.stderr) == b""
    assert (await stream.wait()).code == 0
    stream = channel.execute(builtin("pack", tmp_path / "in", "*"))
    with Unpacker(tmp_path / "out") as unpacker:
        async for piece in stream.stdout:
            unpacker.feed(piece)
        assert (await stream.wait()).code == 0
        assert unpacker.finish().written == ["copy"]
    check_special(tmp_path / "out" / "copy", special)
