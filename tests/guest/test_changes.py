"""What a machine changed, packed by the real guest program and made into a layer's archive."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encamp.agent.saving import without_number, without_own_address
from encamp.guest.archive_format import (
    CHUNK_LIMIT,
    HOLE,
    NUMBER,
    START,
    Entry,
    Kind,
    encode_attributes,
)
from encamp.guest.changes import Changes, Edit, Limits
from encamp.model.errors import Code, EncampError

MIB = 1024 * 1024
LIMITS = Limits(data=8 * MIB, entries=1000)
END = Entry(kind=Kind.END).encode()

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def pack(guest_program: Path, layer: Path, *left_out: str) -> bytes:
    """What the guest program sends of a directory that holds an upper layer."""
    fd = os.open(layer, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = subprocess.run(
            [guest_program, "pack-changes", *left_out],
            preexec_fn=lambda: os.dup2(fd, 3) if fd != 3 else os.set_inheritable(3, True),
            close_fds=False,
            capture_output=True,
            check=True,
        )
    finally:
        os.close(fd)
    return done.stdout


@contextmanager
def converted(
    sent: bytes, limits: Limits = LIMITS, edits: dict[bytes, Edit] | None = None
) -> Iterator[tarfile.TarFile]:
    with tempfile.TemporaryFile() as out:
        changes = Changes(out, limits, edits or {})
        for at in range(0, len(sent), 1000):
            changes.feed(sent[at : at + 1000])
        changes.finish()
        out.seek(0)
        with tarfile.open(fileobj=out, mode="r:") as archive:
            yield archive


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def file_entry(name: bytes, content: bytes, size: int | None = None) -> bytes:
    entry = Entry(
        kind=Kind.FILE, name=name, mode=0o644, link=b"%d" % (len(content) if size is None else size)
    )
    chunk = NUMBER.pack(len(content)) + content if content else b""
    return entry.encode() + chunk + NUMBER.pack(0) + NUMBER.pack(0)


@root_only
def test_all_that_a_layer_can_hold_is_in_the_archive(guest_program: Path, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    (upper / "usr" / "replaced").mkdir(parents=True)
    os.setxattr(upper / "usr" / "replaced", "trusted.overlay.opaque", b"y")
    os.mknod(upper / "usr" / "gone", 0o20000, os.makedev(0, 0))
    os.mknod(upper / "null", 0o20666, os.makedev(1, 3))
    os.mkfifo(upper / "fifo")
    (upper / "program").write_bytes(b"#!/bin/true\n")
    (upper / "program").chmod(0o4755)
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    os.setxattr(upper / "program", "security.capability", capability)
    os.setxattr(upper / "program", "trusted.overlay.origin", b"of this machine only")
    os.chown(upper / "fifo", 1234, 4321)
    (upper / "again").hardlink_to(upper / "program")
    (upper / "link").symlink_to("../anywhere")
    with (upper / "sparse").open("wb") as file:
        file.truncate(5 * MIB)
        file.seek(3 * MIB)
        file.write(b"island")
    strange = os.fsdecode(b"\xff\n" + b"x" * 150)
    (upper / strange).write_bytes(b"strange")
    with converted(pack(guest_program, tmp_path)) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert read(archive, "./sparse") == bytes(3 * MIB) + b"island" + bytes(2 * MIB - 6)
        assert read(archive, f"./{strange}") == b"strange"
    replaced = members["./usr/replaced"]
    assert replaced.pax_headers["SCHILY.xattr.trusted.overlay.opaque"] == "y"
    gone = members["./usr/gone"]
    assert (gone.type, gone.devmajor, gone.devminor) == (tarfile.CHRTYPE, 0, 0)
    null = members["./null"]
    assert (null.type, null.devmajor, null.devminor) == (tarfile.CHRTYPE, 1, 3)
    assert (members["./fifo"].type, members["./fifo"].uid) == (tarfile.FIFOTYPE, 1234)
    assert members["./link"].linkname == "../anywhere"
    first, second = sorted(
        (members["./program"], members["./again"]), key=lambda member: member.islnk()
    )
    assert (first.mode, second.linkname) == (0o4755, first.name)
    kept = first.pax_headers["SCHILY.xattr.security.capability"]
    assert os.fsencode(kept) == capability
    assert "SCHILY.xattr.trusted.overlay.origin" not in first.pax_headers


def test_what_is_left_out_is_not_sent(guest_program: Path, tmp_path: Path) -> None:
    for path in ("etc/hostname", "etc/hosts", "tmp/deep/file", "tmpfile"):
        (tmp_path / "upper" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "upper" / path).touch()
    with converted(pack(guest_program, tmp_path, "etc/hostname", "tmp/")) as archive:
        assert sorted(archive.getnames()) == ["./etc", "./etc/hosts", "./tmp", "./tmpfile"]


@root_only
def test_what_the_machine_removed_stays_removed(guest_program: Path, tmp_path: Path) -> None:
    """Also if it is of a kind that would be left out: the image below may have it."""
    (tmp_path / "upper" / "etc").mkdir(parents=True)
    os.mknod(tmp_path / "upper" / "etc" / "key", 0o20000, os.makedev(0, 0))
    with converted(pack(guest_program, tmp_path, "etc/key")) as archive:
        assert archive.getmember("./etc/key").ischr()


def test_machine_without_a_layer_says_so(guest_program: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        pack(guest_program, tmp_path)
    assert b"no layer of changes" in failure.value.stderr


def test_files_are_edited_on_the_way() -> None:
    sent = START + file_entry(b"a/name", b"one\ntwo\n") + file_entry(b"b", b"kept") + END
    edits: dict[bytes, Edit] = {b"a/name": lambda content: content.replace(b"one\n", b"")}
    with converted(sent, edits=edits) as archive:
        assert read(archive, "./a/name") == b"two\n"
        assert read(archive, "./b") == b"kept"


def test_lines_that_encamp_added_are_taken_back() -> None:
    passwd = b"root:x:0:0:root:/root:/bin/sh\nanna:*:1000:1000::/home/anna:/bin/sh\n"
    assert without_number(passwd, 1000) == b"root:x:0:0:root:/root:/bin/sh\n"
    kept = b"anna:x:1000:1000:Anna:/home/anna:/bin/sh\nci:*:1001:1000::/home/ci:/bin/sh\nodd\n"
    assert without_number(kept, 1000) == kept
    assert without_number(b"root:*:0:\nanna:*:1000:\n", 1000) == b"root:*:0:\n"
    groups = b"root:x:0:\nusers:x:100:\nanna:*:1000:\nteam:*:2000:\n"
    assert without_number(groups, 100, 1000, 2000) == b"root:x:0:\nusers:x:100:\n"
    hosts = b"127.0.0.1\tlocalhost\n127.0.1.1\tmini-1\n127.0.1.10\tother\n"
    assert without_own_address(hosts) == b"127.0.0.1\tlocalhost\n127.0.1.10\tother\n"


@pytest.mark.parametrize("key", [b"user.\xff", b"user.a=b"])
def test_attribute_that_no_archive_can_name_is_told(key: bytes) -> None:
    attributes = encode_attributes({key: b"value"})
    sent = Entry(kind=Kind.DIRECTORY, name=b"odd", attributes=attributes).encode()
    told = "'odd' of the machine could not be saved"
    with pytest.raises(EncampError, match=told) as refusal, converted(START + sent + END):
        pass
    assert refusal.value.code is Code.COPY_FAILED
    assert refusal.value.sentence.isprintable()


@pytest.mark.parametrize(
    "entries",
    [
        file_entry(b"../escape", b""),
        file_entry(b"/etc/passwd", b""),
        file_entry(b"a//b", b""),
        file_entry(b"a/./b", b""),
        file_entry(b"", b""),
        file_entry(b"zero\0byte", b""),
        file_entry(b"x" * 256, b""),
        file_entry(b"/".join([b"x" * 200] * 30), b""),
        file_entry(b"short", b"content", size=8),
        file_entry(b"long", b"content", size=6),
        file_entry(b"huge", b"", size=1 << 70),
        file_entry(b"huge", b"", size=1 << 40),
        Entry(kind=Kind.FILE, name=b"sizeless").encode(),
        Entry(kind=Kind.FILE, name=b"negative", link=b"-1").encode(),
        Entry(kind=Kind.HARDLINK, name=b"hard", link=b"../../etc/shadow").encode(),
        Entry(kind=Kind.CHARACTER, name=b"device", link=b"1").encode(),
        Entry(kind=Kind.CHARACTER, name=b"device", link=b"99999999:1").encode(),
        Entry(kind=Kind.CHARACTER, name=b"device", link=b"1:" + b"9" * 60).encode(),
        Entry(kind=Kind.MISSING, name=b"pattern").encode(),
        Entry(kind=Kind.ERROR, name=b"unread\x1b[31m", link=b"no \x07 memory").encode(),
        Entry(kind=Kind.DIRECTORY, name=b"d", attributes=b"\xff" * 20).encode(),
        b"".join(Entry(kind=Kind.DIRECTORY, name=b"%d" % n).encode() for n in range(1001)),
        b"".join(file_entry(b"%d" % n, bytes(CHUNK_LIMIT)) for n in range(9)),
    ],
)
def test_hostile_machine_is_refused(entries: bytes) -> None:
    with pytest.raises(EncampError) as refusal, converted(START + entries + END):
        pass
    assert refusal.value.code in (Code.PROTOCOL, Code.COPY_FAILED)
    assert refusal.value.sentence.isprintable()


def test_archive_that_is_cut_short_is_refused() -> None:
    sent = START + file_entry(b"file", b"content") + END
    for length in range(len(sent)):
        with pytest.raises(EncampError), converted(sent[:length]):
            pass


names = st.one_of(
    st.binary(max_size=20),
    st.lists(st.sampled_from([b"a", b"b", b"..", b".", b"", b"\xff", b"etc"]), max_size=5).map(
        b"/".join
    ),
)
attributes = st.one_of(
    st.binary(max_size=40),
    st.dictionaries(
        st.sampled_from(
            [
                b"user.x",
                b"user.\xff",
                b"user.=",
                b"security.capability",
                b"trusted.overlay.opaque",
                b"evil",
            ]
        ),
        st.binary(max_size=20),
    ).map(encode_attributes),
)
chunks = st.one_of(
    st.binary(min_size=1, max_size=30).map(lambda data: NUMBER.pack(len(data)) + data),
    st.integers(0, 2**31 - 1).map(lambda length: NUMBER.pack(length | HOLE)),
    st.integers(0, 2**32 - 1).map(NUMBER.pack),
)


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    entry = Entry(
        kind=draw(st.sampled_from(list(Kind))),
        mode=draw(st.integers(0, 2**32 - 1)),
        uid=draw(st.integers(0, 2**32 - 1)),
        gid=draw(st.integers(0, 2**32 - 1)),
        mtime_ns=draw(st.integers(-(2**62), 2**62)),
        name=draw(names),
        link=draw(st.one_of(names, st.integers(0, 2**80).map(lambda size: b"%d" % size))),
        attributes=draw(attributes),
    )
    content = b"".join(draw(st.lists(chunks, max_size=3))) if entry.kind is Kind.FILE else b""
    ending = bytes(8) if draw(st.booleans()) else b""
    return entry.encode() + content + ending


@given(st.lists(entries(), max_size=5), st.binary(max_size=50))
def test_whatever_a_machine_sends_is_an_error_or_an_archive_that_stays_below(
    sent: list[bytes], more: bytes
) -> None:
    refusal, members = None, []
    try:
        with converted(START + b"".join(sent) + (more or END)) as archive:
            members = archive.getmembers()
    except EncampError as error:
        refusal = error.code
    assert refusal in (None, Code.PROTOCOL, Code.COPY_FAILED)
    for member in members:
        parts = member.name.removeprefix("./").split("/")
        assert all(part not in ("", ".", "..") for part in parts)
        assert member.size <= LIMITS.data
