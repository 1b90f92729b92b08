"""Within a machine a share is like a directory of the machine's own."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machines.shares.mounted import LIBC, Mounted, mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /dev/fuse")

SEVERAL_MESSAGES = 3 * 2**20 + 4097


def refused(number: int, does: Callable[[], object]) -> bool:
    with pytest.raises(OSError) as raised:
        does()
    return raised.value.errno == number


# ── a descriptor means the file that was opened ──────────────────────────────────────────────────


def test_truncating_a_removed_file_leaves_the_one_that_took_its_name(machine: Mounted) -> None:
    path = machine.share / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"old")
    path.unlink()
    path.write_bytes(b"NEW PRECIOUS")
    os.ftruncate(fd, 0)
    assert path.read_bytes() == b"NEW PRECIOUS"
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_changes_through_a_descriptor_go_to_a_replaced_file(machine: Mounted, source: Path) -> None:
    path, new = machine.share / "file", machine.share / "new"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"abcdef")
    new.write_bytes(b"NEW PRECIOUS CONTENT")
    new.chmod(0o640)
    os.utime(new, (1_000_000_000, 1_000_000_000))
    new.rename(path)
    os.ftruncate(fd, 3)
    os.fchmod(fd, 0o600)
    os.utime(fd, (1, 1))
    os.setxattr(fd, "user.old", b"1")
    assert os.fstat(fd).st_size == 3
    assert os.pread(fd, 10, 0) == b"abc"
    found = (source / "file").stat()
    assert (found.st_size, stat.S_IMODE(found.st_mode), found.st_mtime) == (20, 0o640, 1e9)
    assert os.listxattr(source / "file") == []
    os.close(fd)


def test_removed_file_lives_on_for_who_has_it_open(machine: Mounted) -> None:
    path = machine.share / "file"
    with path.open("w+b") as file:
        file.write(b"kept")
        file.flush()
        path.unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
        assert os.pread(file.fileno(), 9, 0) == b"kept"
    assert not path.exists()


# ── what is written is there, whichever way ──────────────────────────────────────────────────────


def test_write_beside_a_store_through_a_map_is_kept(machine: Mounted, source: Path) -> None:
    path = machine.share / "file"
    path.write_bytes(bytes(16384))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[12288:12292] = b"MNOP"
        os.pwrite(file.fileno(), b"QRST", 12292)
        assert mapped[12288:12296] == b"MNOPQRST"
        assert os.pread(file.fileno(), 8, 12288) == b"MNOPQRST"
        mapped.flush()
        assert (source / "file").read_bytes()[12288:12296] == b"MNOPQRST"


@pytest.mark.parametrize("beside", [True, False])
def test_large_files_go_both_ways(source: Path, tmp_path: Path, *, beside: bool) -> None:
    sent, back = os.urandom(SEVERAL_MESSAGES), os.urandom(SEVERAL_MESSAGES)
    with mounted(tmp_path / "one", source, beside=beside) as machine:
        (machine.share / "sent").write_bytes(sent)
        assert (source / "sent").read_bytes() == sent
        (source / "back").write_bytes(back)
        assert (machine.share / "back").read_bytes() == back
        fd = os.open(machine.share / "back", os.O_RDONLY)
        assert os.pread(fd, 100_000, 12_345) == back[12_345:112_345]
        os.close(fd)


def test_unaligned_and_direct_reads_and_writes(machine: Mounted, source: Path) -> None:
    path = machine.share / "file"
    data = os.urandom(70_000)
    with path.open("w+b", buffering=0) as file:
        for at in range(0, len(data), 9_999):
            file.write(data[at : at + 9_999])
    assert (source / "file").read_bytes() == data
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    buffer = mmap.mmap(-1, 65_536)
    assert os.preadv(fd, [buffer], 0) == 65_536
    assert buffer[:] == data[:65_536]
    buffer[:4096] = b"d" * 4096
    os.pwritev(fd, [memoryview(buffer)[:4096]], 0)
    os.close(fd)
    assert (source / "file").read_bytes()[:4097] == b"d" * 4096 + data[4096:4097]


def test_appending_and_exclusive_making(machine: Mounted, source: Path) -> None:
    path = machine.share / "log"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
    os.write(fd, b"one,")
    with (source / "log").open("ab") as host:
        host.write(b"host,")
    os.write(fd, b"two")
    os.close(fd)
    assert path.read_bytes() == (source / "log").read_bytes() == b"one,host,two"
    assert refused(errno.EEXIST, lambda: os.open(path, os.O_CREAT | os.O_EXCL))


def test_sparse_files_stay_sparse(machine: Mounted, source: Path) -> None:
    with (machine.share / "file").open("w+b") as file:
        fd = file.fileno()
        os.pwrite(fd, b"x", 10 * 2**20)
        assert os.fstat(fd).st_blocks * 512 < 2**20
        assert os.lseek(fd, 0, os.SEEK_DATA) >= 10 * 2**20 - 65536
        os.posix_fallocate(fd, 0, 2**20)
        assert (source / "file").stat().st_blocks * 512 >= 2**20
        punch = LIBC.fallocate(fd, 3, *map(_long, (0, 2**20)))
        assert punch == 0
        assert os.lseek(fd, 0, os.SEEK_DATA) >= 2**20


def _long(number: int) -> object:
    import ctypes

    return ctypes.c_long(number)


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def test_hard_links_are_one_file(machine: Mounted, source: Path) -> None:
    first, second = machine.share / "first", machine.share / "second"
    first.write_bytes(b"1")
    second.hardlink_to(first)
    assert first.stat().st_ino == second.stat().st_ino
    assert first.stat().st_nlink == 2
    second.write_bytes(b"22")
    assert (source / "first").read_bytes() == b"22"
    first.unlink()
    assert second.stat().st_nlink == 1


def test_moves_replace_exchange_or_refuse(machine: Mounted) -> None:
    one, two, below = machine.share / "one", machine.share / "two", machine.share / "below"
    one.write_text("1")
    two.write_text("2")
    below.mkdir()
    rename = LIBC.renameat2
    assert rename(-100, bytes(one), -100, bytes(two), 1) == -1
    assert rename(-100, bytes(one), -100, bytes(two), 2) == 0
    assert (one.read_text(), two.read_text()) == ("2", "1")
    two.rename(below / "moved")
    assert refused(errno.ENOTEMPTY, below.rmdir)
    assert refused(errno.EINVAL, lambda: below.rename(below / "itself"))
    assert sorted(path.name for path in machine.share.iterdir()) == ["below", "one"]


def test_odd_names_and_many_of_them(machine: Mounted, source: Path) -> None:
    names = {b"\xff\xfe", b"a\nb", b"-rf", b"n" * 255, "ä ö".encode()}
    names |= {b"file-%d" % number for number in range(2000)}
    place = os.fsencode(machine.share)
    for name in names:
        os.close(os.open(place + b"/" + name, os.O_CREAT | os.O_WRONLY))
    assert set(os.listdir(place)) == set(os.listdir(bytes(source))) == names
    assert refused(errno.ENAMETOOLONG, lambda: (machine.share / ("n" * 256)).stat())


def test_links_fifos_and_sockets(machine: Mounted, source: Path) -> None:
    link, fifo, address = (machine.share / name for name in ("link", "fifo", "socket"))
    link.symlink_to("/etc/shadow")
    assert str(link.readlink()) == str((source / "link").readlink()) == "/etc/shadow"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    fifo.write_bytes(b"through")
    reader.join()
    assert got == [b"through"]
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(address))
        server.listen()
        client.connect(str(address))
    assert (source / "socket").is_socket()


# ── what a file system says of files ─────────────────────────────────────────────────────────────


def test_times_are_exact_and_may_be_before_1970(machine: Mounted, source: Path) -> None:
    path = machine.share / "file"
    path.touch()
    for moment in (-86_400_000_000_001, 1_234_567_890_123_456_789):
        os.utime(path, ns=(moment, moment + 1))
        for found in (path.stat(), (source / "file").stat()):
            assert (found.st_atime_ns, found.st_mtime_ns) == (moment, moment + 1)


def test_modes_owners_and_attributes(machine: Mounted, source: Path) -> None:
    path = machine.share / "file"
    path.touch()
    path.chmod(0o641)
    os.chown(path, 1234, 5678)
    os.setxattr(path, "user.colour", b"red")
    found = (source / "file").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o641, 1234, 5678)
    assert os.getxattr(source / "file", "user.colour") == b"red"
    assert os.listxattr(path) == ["user.colour"]
    os.removexattr(path, "user.colour")
    assert refused(errno.ENODATA, lambda: os.getxattr(path, "user.colour"))


def test_file_may_be_made_that_nobody_may_write_to(machine: Mounted, source: Path) -> None:
    fd = os.open(machine.share / "file", os.O_CREAT | os.O_WRONLY, 0o444)
    os.write(fd, b"written")
    os.close(fd)
    assert (source / "file").read_bytes() == b"written"
    assert stat.S_IMODE((source / "file").stat().st_mode) == 0o444


# ── what cannot be is refused ────────────────────────────────────────────────────────────────────


def test_nothing_is_made_setuid_or_a_device(machine: Mounted, source: Path) -> None:
    path = machine.share / "file"
    path.touch()
    assert refused(errno.EPERM, lambda: path.chmod(0o4755))
    assert refused(
        errno.EPERM, lambda: os.mknod(machine.share / "null", 0o666 | stat.S_IFCHR, 0x103)
    )
    assert refused(errno.EOPNOTSUPP, lambda: os.setxattr(path, "trusted.mark", b""))
    assert refused(errno.EOPNOTSUPP, lambda: os.setxattr(path, "system.posix_acl_access", bytes(4)))
    assert [entry.name for entry in source.iterdir()] == ["file"]
    assert stat.S_IMODE((source / "file").stat().st_mode) == 0o644


def test_share_for_reading_only_cannot_be_changed(source: Path, tmp_path: Path) -> None:
    (source / "file").write_text("as it was")
    (source / "directory").mkdir()
    with mounted(tmp_path / "one", source, source, readonly=[0]) as machine:
        share = machine.share
        file = share / "file"
        changes: list[Callable[[], object]] = [
            lambda: file.write_text("x"),
            lambda: os.open(file, os.O_RDONLY | os.O_TRUNC),
            lambda: os.truncate(file, 0),
            lambda: file.chmod(0),
            lambda: os.utime(file),
            lambda: os.setxattr(file, "user.x", b""),
            lambda: file.rename(share / "other"),
            lambda: (share / "link").hardlink_to(file),
            lambda: (share / "link").symlink_to(file),
            lambda: (share / "new").mkdir(),
            lambda: (share / "directory").rmdir(),
            file.unlink,
        ]
        assert all(refused(errno.EROFS, change) for change in changes)
        assert file.read_text() == "as it was"
        # The same directory may also be shared for writing.
        (machine.place / "1" / "file").write_text("new")
        assert (source / "file").read_text() == "new"


def test_full_disk_is_told(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    assert LIBC.mount(b"none", bytes(small), b"tmpfs", 0, b"size=1m") == 0
    try:
        with mounted(tmp_path / "one", small) as machine:
            assert refused(
                errno.ENOSPC, lambda: (machine.share / "file").write_bytes(bytes(2 * 2**20))
            )
            (machine.share / "file").unlink()
            (machine.share / "file").write_bytes(b"fits")
    finally:
        LIBC.umount2(bytes(small), 2)


# ── shares beside each other, and what becomes of them ───────────────────────────────────────────


def test_files_of_two_shares_are_never_taken_for_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
        assert LIBC.mount(b"none", bytes(place), b"tmpfs", 0, None) == 0
        (place / "file").write_text(place.name)
    try:
        assert (first / "file").stat().st_ino == (second / "file").stat().st_ino
        with mounted(tmp_path / "one", first, second) as machine:
            one, two = machine.place / "0" / "file", machine.place / "1" / "file"
            assert (one.read_text(), two.read_text()) == ("first", "second")
            assert one.stat().st_ino != two.stat().st_ino
    finally:
        for place in (first, second):
            LIBC.umount2(bytes(place), 2)


def test_shares_within_each_other_agree(source: Path, tmp_path: Path) -> None:
    """What is done by one is seen by the other at once."""
    (source / "sub").mkdir()
    with mounted(tmp_path / "m", source, source / "sub", overlap=True) as machine:
        outer, inner = machine.place / "0" / "sub", machine.place / "1"
        assert not (inner / "log").exists()
        (outer / "log").write_text("header\n")
        with (inner / "log").open("r+") as file:
            assert file.read() == "header\n"
            for number in range(5):
                with (outer / "log").open("a") as other:
                    other.write(f"line {number}\n")
                assert (inner / "log").stat().st_size == 7 * (number + 2)
                assert os.pread(file.fileno(), 1000, 7 * (number + 1)) == b"line %d\n" % number
            file.seek(0, os.SEEK_END)
            file.write("footer\n")
        with (outer / "log").open("r+b") as raw, mmap.mmap(raw.fileno(), 0) as mapped:
            mapped[0:6] = b"HEADER"
            assert (inner / "log").read_text().startswith("HEADER\n")
        lines = (source / "sub" / "log").read_text().splitlines()
        assert lines == ["HEADER", *(f"line {number}" for number in range(5)), "footer"]
        (inner / "log").rename(inner / "moved")
        assert os.listdir(outer) == ["moved"]
        (outer / "moved").unlink()
        assert not (inner / "moved").exists()


def test_share_for_reading_within_one_for_writing(source: Path, tmp_path: Path) -> None:
    (source / "sub").mkdir()
    (source / "sub" / "file").write_text("first")
    with mounted(tmp_path / "m", source, source / "sub", readonly=[1], overlap=True) as machine:
        assert (machine.place / "1" / "file").read_text() == "first"
        (machine.place / "0" / "sub" / "file").write_text("second")
        assert (machine.place / "1" / "file").read_text() == "second"
        with pytest.raises(OSError, match="Read-only"):
            (machine.place / "1" / "new").write_text("")


def test_appending_can_be_begun_and_ended_while_a_file_is_open(
    machine: Mounted, source: Path
) -> None:
    with (
        (machine.share / "file").open("w+b", buffering=0) as file,
        (source / "file").open("ab") as host,
    ):
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        file.write(b"0123456789")
        host.write(b"of the host")
        host.flush()
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_APPEND)
        file.write(b", appended")
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
        file.seek(0)
        file.write(b"AB")
    assert (source / "file").read_bytes() == b"AB23456789of the host, appended"


def test_directory_that_is_removed_while_it_is_shared(machine: Mounted, source: Path) -> None:
    source.rmdir()
    assert refused(errno.ENOENT, lambda: (machine.share / "file").touch())
    assert os.listdir(machine.share) == []


def test_more_files_than_descriptors_are_shown(source: Path, tmp_path: Path) -> None:
    for number in range(3000):
        (source / f"file-{number}").touch()
    with mounted(tmp_path / "one", source, descriptors=1024) as machine:
        for _ in range(2):
            assert sum(entry.stat().st_nlink for entry in os.scandir(machine.share)) == 3000
            assert all((machine.share / f"file-{number}").exists() for number in range(3000))
        assert len(os.listdir(f"/proc/{machine.server.pid}/fd")) < 1024


def test_more_directories_than_descriptors_are_shown(source: Path, tmp_path: Path) -> None:
    for number in range(1200):
        (source / str(number)).mkdir()
    with mounted(tmp_path / "m", source, descriptors=1024) as machine:
        for number in range(1200):
            (machine.share / str(number)).stat()
        (machine.share / "after").mkdir()
        assert len(os.listdir(machine.share)) == 1201


def test_nothing_is_made_a_device_by_moving(machine: Mounted, source: Path) -> None:
    (source / "a").touch()
    whiteout = 4
    paths = bytes(machine.share / "a"), bytes(machine.share / "b")
    assert LIBC.renameat2(-100, paths[0], -100, paths[1], whiteout) == -1
    assert os.listdir(source) == ["a"]


def test_programs_are_told_at_once_that_the_server_is_gone(machine: Mounted) -> None:
    path = machine.share / "file"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDWR)
    machine.server.kill()
    machine.server.wait()
    assert refused(errno.EIO, lambda: os.pwrite(fd, b"y", 0))
    assert refused(errno.EIO, lambda: (machine.share / "other").stat())
    assert refused(errno.EIO, lambda: fcntl.lockf(fd, fcntl.LOCK_EX))
    assert refused(errno.EIO, lambda: os.close(fd))
