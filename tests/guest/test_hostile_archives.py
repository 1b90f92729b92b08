"""Archives that a hostile machine could send: nothing outside the destination is ever touched."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encamp.guest.archive import Unpacked, Unpacker
from encamp.guest.archive_format import NUMBER, START, Entry, Kind, encode_attributes
from encamp.model.errors import Code, EncampError

END = Entry(kind=Kind.END).encode()
FILE_END = NUMBER.pack(0) + NUMBER.pack(0)


def file(name: bytes, content: bytes = b"hostile", mode: int = 0o644) -> bytes:
    head = Entry(kind=Kind.FILE, name=name, mode=mode).encode()
    return head + NUMBER.pack(len(content)) + content + FILE_END


def link(name: bytes, target: bytes, kind: Kind = Kind.SYMLINK) -> bytes:
    return Entry(kind=kind, name=name, link=target).encode()


def directory(name: bytes, mode: int = 0o755) -> bytes:
    return Entry(kind=Kind.DIRECTORY, name=name, mode=mode).encode()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A destination with something beside it that must stay as it is."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("precious")
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def unpack(place: Path, *entries: bytes) -> Unpacked:
    with Unpacker(place) as unpacker:
        unpacker.feed(START + b"".join(entries) + END)
        return unpacker.finish()


def guest_unpack(program: Path, place: Path, *entries: bytes) -> subprocess.CompletedProcess[bytes]:
    archive = START + b"".join(entries) + END
    command: list[str | Path] = [program, "unpack", place]
    return subprocess.run(command, input=archive, capture_output=True, check=False)


def victim_is_unharmed(place: Path) -> bool:
    victim = place.parent / "victim"
    return (
        sorted(path.name for path in place.parent.iterdir()) == ["in", "victim"]
        and [path.name for path in victim.iterdir()] == ["file"]
        and (victim / "file").read_text() == "precious"
        and (victim / "file").stat().st_nlink == 1
        and stat.S_IMODE((victim / "file").stat().st_mode) == 0o644
    )


def attacks(victim: Path) -> dict[str, list[bytes]]:
    there = os.fsencode(victim)
    return {
        "parent": [file(b"../victim/file")],
        "parent inside": [file(b"a/../../victim/file")],
        "absolute": [file(there + b"/file")],
        "empty component": [file(b"a//b")],
        "dot": [file(b"./a")],
        "empty name": [file(b"")],
        "zero byte in a link": [link(b"a", b"x\0y")],
        "zero byte": [file(b"a\0b")],
        "through a symlink": [link(b"a", there), file(b"a/file")],
        "through a relative symlink": [link(b"a", b"../victim"), file(b"a/file")],
        "through a symlink deeper": [
            directory(b"d"),
            link(b"d/a", there),
            directory(b"d/a/sub"),
            file(b"d/a/sub/x"),
        ],
        "directory over a symlink": [link(b"a", there), directory(b"a", 0o777), file(b"a/x")],
        "hard link out": [link(b"a", b"../victim/file", Kind.HARDLINK)],
        "absolute hard link": [link(b"a", there + b"/file", Kind.HARDLINK)],
        "hard link through a symlink": [
            link(b"s", there),
            link(b"a", b"s/file", Kind.HARDLINK),
            file(b"a"),
        ],
        "hard link to a symlink": [
            link(b"s", there + b"/file"),
            link(b"a", b"s", Kind.HARDLINK),
        ],
    }


@pytest.mark.parametrize("name", attacks(Path("/x")))
def test_nothing_outside_is_touched(guest_program: Path, place: Path, name: str) -> None:
    entries = attacks(place.parent / "victim")[name]
    report = unpack(place, file(b"before"), *entries, file(b"after"))
    assert victim_is_unharmed(place)
    assert report.errors
    assert (place / "before").exists()
    assert (place / "after").exists(), "the rest is still unpacked"


@pytest.mark.parametrize("name", attacks(Path("/x")))
def test_the_guest_is_as_careful(guest_program: Path, place: Path, name: str) -> None:
    entries = attacks(place.parent / "victim")[name]
    result = guest_unpack(guest_program, place, file(b"before"), *entries, file(b"after"))
    assert result.returncode == 1
    assert result.stderr
    assert victim_is_unharmed(place)
    assert (place / "after").exists()


def test_a_file_behind_a_symlink_is_replaced_not_written_through(
    guest_program: Path, place: Path
) -> None:
    target = os.fsencode(place.parent / "victim" / "file")
    for unpacking in (unpack, lambda *a: guest_unpack(guest_program, *a)):
        unpacking(place, link(b"a", target), file(b"a"))
        assert victim_is_unharmed(place)
        assert (place / "a").read_text() == "hostile"
        assert not (place / "a").is_symlink()


def test_a_symlink_already_there_is_not_followed(guest_program: Path, place: Path) -> None:
    (place / "a").symlink_to(place.parent / "victim")
    assert unpack(place, file(b"a/file")).errors
    assert guest_unpack(guest_program, place, file(b"a/file")).returncode == 1
    assert victim_is_unharmed(place)


def test_duplicate_names_end_as_the_last_one(guest_program: Path, place: Path) -> None:
    entries = [file(b"a", b"1"), file(b"a", b"2"), link(b"a", b"x"), file(b"a", b"3")]
    assert unpack(place, *entries).written == ["a"]
    assert (place / "a").read_text() == "3"
    assert guest_unpack(guest_program, place, *entries).returncode == 0
    assert (place / "a").read_text() == "3"


def test_a_file_and_a_directory_of_one_name_are_an_error(guest_program: Path, place: Path) -> None:
    entries = [directory(b"a"), file(b"a/x"), file(b"a"), file(b"b"), directory(b"b"), file(b"b/x")]
    assert len(unpack(place, *entries).errors) == 3
    assert guest_unpack(guest_program, place, *entries).returncode == 1
    assert not list(place.rglob(".encamp-*"))


def test_rights_that_could_harm_the_host_are_dropped(place: Path) -> None:
    unpack(place, file(b"f", mode=0o6755), directory(b"d", 0o7777), file(b"d/x", mode=0o1644))
    assert [stat.S_IMODE((place / n).stat().st_mode) for n in ("f", "d", "d/x")] == [
        0o755,
        0o777,
        0o644,
    ]
    assert (place / "f").stat().st_uid == os.getuid()


def test_only_user_attributes_are_taken(place: Path) -> None:
    attributes = encode_attributes({b"security.capability": b"\0" * 20, b"trusted.x": b"y"})
    entry = Entry(kind=Kind.FILE, name=b"f", mode=0o644, attributes=attributes)
    assert unpack(place, entry.encode() + FILE_END).errors == []
    assert os.listxattr(place / "f") == []


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(b"NOTANARC", id="something else"),
        pytest.param(START + b"?" + END[1:], id="an unknown kind"),
        pytest.param(START + b"f" + b"\xff" * 36, id="endless lengths"),
        pytest.param(
            START + Entry(kind=Kind.FILE, name=b"f").encode() + NUMBER.pack((1 << 20) + 1),
            id="a long chunk",
        ),
        pytest.param(START + END + b"x", id="more after the end"),
        pytest.param(
            START + b"d" + b"\0" * 12 + b"\xff" * 7 + b"\x7f" + b"\0" * 16,
            id="an impossible time",
        ),
    ],
)
def test_damage_is_refused(place: Path, archive: bytes) -> None:
    with Unpacker(place) as unpacker:
        with pytest.raises(EncampError) as caught:
            unpacker.feed(archive)
        assert caught.value.code is Code.PROTOCOL
        with pytest.raises(EncampError):
            unpacker.finish()
    assert not list(place.rglob(".encamp-*"))


@pytest.mark.parametrize("cut", [3, 8, 20, 45, 47, 52, 60])
def test_a_cut_archive_leaves_nothing_half_done(guest_program: Path, place: Path, cut: int) -> None:
    archive = (START + file(b"f", b"0123456789") + END)[:cut]
    with Unpacker(place) as unpacker:
        unpacker.feed(archive)
        with pytest.raises(EncampError, match="ends too early") as caught:
            unpacker.finish()
    assert caught.value.code is Code.COPY_FAILED
    assert os.listdir(place) == []
    command: list[str | Path] = [guest_program, "unpack", place]
    result = subprocess.run(command, input=archive, capture_output=True, check=False)
    assert result.returncode == 1
    assert os.listdir(place) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_file_that_could_not_be_read_whole_is_not_kept(place: Path, number: int) -> None:
    """Whatever was wrong where it came from: our own disk is not full."""
    head = Entry(kind=Kind.FILE, name=b"f").encode()
    entry = head + NUMBER.pack(2) + b"ab" + NUMBER.pack(0) + NUMBER.pack(number)
    report = unpack(place, entry)
    assert report.errors == [f"f: could not be read whole: {os.strerror(number)}"]
    assert os.listdir(place) == []


def test_lists_of_the_report_are_bounded(place: Path) -> None:
    report = unpack(place, Entry(kind=Kind.ERROR, name=b"n", link=b"s").encode() * 5000)
    assert len(report.errors) == 1001


def test_what_is_reported_cannot_control_a_terminal(place: Path) -> None:
    report = unpack(place, Entry(kind=Kind.MISSING, name=b"\x1b[2J").encode())
    assert report.missing == ["\ufffd[2J"]


def test_memory_stays_bounded(place: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chunk = NUMBER.pack(1 << 20) + bytes(1 << 20)
    with Unpacker(place) as unpacker:
        unpacker.feed(START + Entry(kind=Kind.FILE, name=b"big", mode=0o644).encode())
        for _ in range(200):
            unpacker.feed(chunk)
        unpacker.feed(FILE_END + END)
        assert unpacker.finish().size == 200 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_can_unpack_read_only_directories(place: Path) -> None:
    entries = [
        directory(b"t"),
        directory(b"t/ro", 0o555),
        file(b"t/ro/x"),
        directory(b"t/none", 0),
        file(b"t/none/y"),
        directory(b"t/ro/deep", 0o500),
        file(b"t/ro/deep/z"),
    ]
    for path in (place, *place.parents):
        if path.stat().st_mode & 0o001 == 0:
            path.chmod(path.stat().st_mode | 0o011)
    os.chown(place, 12345, 12345)
    child = os.fork()
    if child == 0:
        try:
            os.setgid(12345)
            os.setuid(12345)
            twice = [unpack(place, *entries).errors, unpack(place, *entries).errors]
            os._exit(0 if twice == [[], []] else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert stat.S_IMODE((place / "t" / "ro").stat().st_mode) == 0o555
    assert stat.S_IMODE((place / "t" / "none").stat().st_mode) == 0
    assert (place / "t" / "ro" / "deep" / "z").exists()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_archives_raise_the_one_error_or_pass(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    archive = bytearray(
        START + directory(b"d") + file(b"d/f", b"x" * 50) + link(b"d/l", b"f") + file(b"g") + END
    )
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    outside = tmp_path_factory.mktemp("mutated")
    with Unpacker(outside / "in") as unpacker:
        try:
            unpacker.feed(archive)
            unpacker.finish()
        except EncampError as error:
            if error.code not in (Code.PROTOCOL, Code.COPY_FAILED):
                raise
    assert os.listdir(outside) == ["in"]
