"""A guest that speaks to the share server by itself, and means harm."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from tests.machines.shares.mounted import DETACH, LIBC, PACKAGE, SERVER, check

FUZZ = PACKAGE / "machines" / "encamp-shares-fuzz"
HEAD = struct.Struct("<IIII")
REQUEST = struct.Struct("<IIQQIIIHH")
NO_SLOT = 2**32 - 1
LOOKUP, OPEN, MKDIR, SYMLINK, LINK = 1, 14, 9, 6, 13
ROOT = 1


def tree(directory: Path) -> list[tuple[str, int, int, bytes]]:
    """All that can be told of what is outside a share."""
    found = []
    for path in sorted(directory.rglob("*")):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found.append((str(path), stat.st_mode, stat.st_mtime_ns, content))
    return found


@pytest.fixture
def outside(tmp_path: Path, source: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    (source / "out").symlink_to("../outside")
    (source / "file-out").symlink_to("../outside/file")
    return outside


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_operations_survive_what_nobody_should_ask(source: Path, outside: Path) -> None:
    subprocess.run(["make", "-s", "-C", PACKAGE / "machines" / "shares", "fuzz"], check=True)
    before = tree(outside)
    check(LIBC.mount(b"none", bytes(source), b"tmpfs", 0, b"size=64m"))
    try:
        (source / "out").symlink_to(outside)
        (source / "below").mkdir()
        (source / "below" / "outside").symlink_to(outside / "file")
        for seed in range(3):
            words = [str(FUZZ), str(seed), "150000", str(source)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
            assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        # Deeper than a path is long.
        setuid = subprocess.run(["find", source, "-perm", "-4000"], capture_output=True, check=True)
        assert setuid.stdout == b""
    finally:
        LIBC.umount2(bytes(source), DETACH)
    assert tree(outside) == before


class Guest:
    """The guest's end of a server's channel."""

    def __init__(self, source: Path) -> None:
        self.end, other = socket.socketpair()
        words = [str(SERVER), "--channel", str(other.fileno()), "--share", str(source)]
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(words, pass_fds=[other.fileno()], stderr=pipe)
        other.close()
        self.end.settimeout(10)

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.end.close()
        with self.server:
            assert self.server.wait(10) is not None

    def ask(self, opcode: int, node: int, body: bytes = b"") -> tuple[int, bytes]:
        message = REQUEST.pack(REQUEST.size + len(body), opcode, 2, node, 0, 0, 0, 0, 0) + body
        self.end.sendall(HEAD.pack(0, len(message), 0, NO_SLOT) + message)
        while True:
            kind, length, _, _ = HEAD.unpack(self._exactly(HEAD.size))
            answer = self._exactly(length)
            _, error, unique = struct.unpack_from("<IiQ", answer)
            if kind == 0 and unique == 2:
                return -error, answer[16:]

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = self.end.recv(size - len(got))
            assert piece
            got += piece
        return got

    def share(self) -> int:
        error, entry = self.ask(LOOKUP, ROOT, b"0\0")
        assert error == 0
        return int(struct.unpack_from("<Q", entry)[0])


def test_nothing_outside_the_share_can_be_named(source: Path, outside: Path) -> None:
    before = tree(outside)
    with Guest(source) as guest:
        share = guest.share()
        for name in (b"..", b".", b"../outside", b"out/file", b"/etc/passwd", b"", b"a" * 256):
            assert guest.ask(LOOKUP, share, name + b"\0")[0] != 0
            assert guest.ask(MKDIR, share, struct.pack("<II", 0o755, 0) + name + b"\0")[0] != 0
            assert guest.ask(SYMLINK, share, name + b"\0target\0")[0] != 0
        assert guest.ask(LOOKUP, share, b"no-end")[0] != 0
        # A link is the guest's own to follow: as a file it cannot be opened, nor looked into.
        for link in (b"out\0", b"file-out\0"):
            error, entry = guest.ask(LOOKUP, share, link)
            assert error == 0
            node = struct.unpack_from("<Q", entry)[0]
            assert guest.ask(OPEN, node, struct.pack("<II", os.O_RDWR, 0))[0] != 0
            assert guest.ask(LOOKUP, node, b"file\0")[0] != 0
            assert guest.ask(MKDIR, node, struct.pack("<II", 0o755, 0) + b"new\0")[0] != 0
        for node in (0, 2**63, 2**64 - 1, share + 1000):
            assert guest.ask(LOOKUP, node, b"file\0")[0] != 0
        for number in (b"1\0", b"-1\0", b"99999999999999999999\0", b"0x0\0"):
            assert guest.ask(LOOKUP, ROOT, number)[0] != 0
    assert tree(outside) == before


def test_fifos_of_the_host_are_not_opened(source: Path) -> None:
    os.mkfifo(source / "fifo")
    with Guest(source) as guest:
        error, entry = guest.ask(LOOKUP, guest.share(), b"fifo\0")
        assert error == 0
        node = struct.unpack_from("<Q", entry)[0]
        # It would wait for somebody at the other end, and nobody else were answered.
        assert guest.ask(OPEN, node, struct.pack("<II", os.O_RDONLY, 0))[0] != 0


@pytest.mark.parametrize(
    "sent",
    [
        HEAD.pack(0, 10, 0, NO_SLOT) + bytes(10),
        HEAD.pack(0, 2**32 - 1, 0, NO_SLOT),
        HEAD.pack(9, 40, 0, NO_SLOT) + bytes(40),
        HEAD.pack(0, 40, 100, 0) + REQUEST.pack(140, 16, 2, 2, 0, 0, 0, 0, 0),
        HEAD.pack(0, 40, 0, NO_SLOT) + REQUEST.pack(41, 3, 2, 2, 0, 0, 0, 0, 0),
    ],
)
def test_stream_that_makes_no_sense_ends_the_server(source: Path, sent: bytes) -> None:
    with Guest(source) as guest:
        guest.end.sendall(sent)
        assert guest.server.wait(10) == 1
        assert guest.server.stderr is not None
        assert b"cannot understand the machine" in guest.server.stderr.read()
