"""A share's relay between this host's kernel and a server that each scenario makes up.

Run in a mount namespace of its own: `unshare -m python -m tests.guest.share_stub PROGRAM SCENARIO`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE = 1, 2, 3, 4, 14, 15, 16, 18
GETXATTR, FLUSH, INIT, SETLK, SETLKW, DESTROY = 22, 25, 26, 32, 33, 38
BATCH_FORGET, INTERRUPT = 42, 36
MESSAGE, QUEUED, HINT, END = range(4)
NO_SLOT = 0xFFFFFFFF
SLOT = MOST = 1 << 20
POSIX_LOCKS, BIG_WRITES, MAX_PAGES = 1 << 1, 1 << 5, 1 << 22
INVAL_INODE = 2
MNT_FORCE = 1
ROOT, SHARE, FILE = 1, 2, 3
IN = struct.Struct("<IIQQIIII")
OUT = struct.Struct("<IiQ")
WIRE = struct.Struct("<IIII")

libc = ctypes.CDLL(None, use_errno=True)


def attributes(node: int, size: int = 0, mtime: int = 0) -> bytes:
    mode = 0o100644 if node == FILE else 0o40755
    return struct.pack("<6Q10I", node, size, 0, 0, mtime, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class Stub:
    """One file system of one share with one file, a thread that serves it, and its relay."""

    def __init__(self, program: str, *, window: bool, valid: int = 0) -> None:
        self.seen: list[tuple[int, int]] = []
        self.slots: list[int] = []
        self.headers: list[tuple[int, int, int, int]] = []
        self.data = bytearray(os.urandom(3 * MOST + 100))
        self.valid = valid
        self.before: Callable[[int, int, int], bool] = lambda opcode, node, unique: True
        self.place = tempfile.mkdtemp()
        self.sock, theirs = socket.socketpair()
        fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={MOST}"
        options += ",default_permissions"
        if libc.mount(b"share", self.place.encode(), b"fuse", 6, options.encode()) < 0:
            raise OSError(ctypes.get_errno(), "mount")
        fds = [theirs.fileno(), fuse]
        self.window: mmap.mmap | None = None
        if window:
            disk = os.open(self.place + ".window", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
            os.ftruncate(disk, 4 * SLOT)
            self.window = mmap.mmap(disk, 4 * SLOT)
            fds.append(disk)
        command = [program, "shares-relay", *map(str, fds)]
        # it is in this mount namespace as well, which it would keep, and so its file system
        self.relay = subprocess.Popen(
            command,
            pass_fds=fds,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: libc.prctl(1, signal.SIGKILL),
        )
        for fd in fds[1:]:
            os.close(fd)
        theirs.close()
        # A relay that is killed while it takes a page back waits for ever for an answer to come.
        watchdog = threading.Timer(30, libc.umount2, (self.place.encode(), MNT_FORCE))
        watchdog.daemon = True
        watchdog.start()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def file(self) -> Path:
        return Path(self.place, "0", "file")

    def take(self, count: int) -> bytes:
        got = bytearray()
        while len(got) < count:
            more = self.sock.recv(count - len(got))
            if not more:
                raise EOFError
            got += more
        return bytes(got)

    def tell(
        self, message: bytes, kind: int = MESSAGE, window: int = 0, slot: int = NO_SLOT
    ) -> None:
        self.sock.sendall(WIRE.pack(kind, len(message), window, slot) + message)

    def answer(self, unique: int, body: bytes = b"", error: int = 0, kind: int = MESSAGE) -> None:
        self.tell(OUT.pack(OUT.size + len(body), -error, unique) + body, kind)

    def hint(self, node: int, mtime: int) -> None:
        body = struct.pack("<QII", self.valid, 0, 0) + attributes(node, mtime=mtime)
        self.tell(struct.pack("<Q", node) + body, HINT)

    def invalidate(self, node: int) -> None:
        body = struct.pack("<Qqq", node, 0, 0)
        self.tell(OUT.pack(OUT.size + len(body), INVAL_INODE, 0) + body, QUEUED)

    def serve(self) -> None:
        try:
            while self.one():
                pass
        except (EOFError, OSError):
            pass

    def one(self) -> bool:
        kind, length, window, slot = WIRE.unpack(self.take(WIRE.size))
        message = self.take(length)
        size, opcode, unique, node, *_ = IN.unpack_from(message)
        body = message[IN.size :]
        assert (kind, size) == (MESSAGE, length + window)
        if window:
            assert self.window is not None
            body += self.window[slot * SLOT : slot * SLOT + window]
        if opcode in (READ, WRITE):
            self.slots.append(slot)
        self.headers.append((opcode, length, window, slot))
        self.seen.append((opcode, node))
        if not self.before(opcode, node, unique):
            return True
        self.act(opcode, node, unique, body, slot)
        return True

    def act(self, opcode: int, node: int, unique: int, body: bytes, slot: int) -> None:
        stat = attributes(node, len(self.data))
        if opcode == INIT:
            flags = POSIX_LOCKS | BIG_WRITES | MAX_PAGES
            times = struct.pack(
                "<IIIIHHIIHHI7I", 7, 31, MOST, flags, 12, 10, MOST, 1, 256, 0, *[0] * 8
            )
            self.answer(unique, times)
        elif opcode == LOOKUP:
            found = {(ROOT, b"0\0"): SHARE, (SHARE, b"file\0"): FILE}.get((node, body), 0)
            if not found:
                self.answer(unique, error=errno.ENOENT)
                return
            times = struct.pack("<QQQQII", found, 0, self.valid, self.valid, 0, 0)
            self.answer(unique, times + attributes(found, len(self.data)))
        elif opcode in (GETATTR, SETATTR):
            self.answer(unique, struct.pack("<QII", self.valid, 0, 0) + stat)
        elif opcode == OPEN:
            self.answer(unique, struct.pack("<QII", 7, 0, 0))
        elif opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            data = bytes(self.data[offset : offset + size])
            if slot == NO_SLOT:
                self.answer(unique, data)
            else:
                assert self.window is not None
                self.window[slot * SLOT : slot * SLOT + len(data)] = data
                self.tell(OUT.pack(OUT.size + len(data), 0, unique), MESSAGE, len(data), slot)
        elif opcode == WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            assert len(body) == 40 + size
            self.data[offset : offset + size] = body[40:]
            self.answer(unique, struct.pack("<II", size, 0))
        elif opcode in (FLUSH, RELEASE, SETLK, SETLKW):
            self.answer(unique, kind=QUEUED)
        elif opcode == DESTROY:
            assert unique == (1 << 64) - 1
            self.tell(b"", END)
        elif opcode not in (FORGET, BATCH_FORGET, INTERRUPT):
            self.answer(unique, error=errno.ENOSYS)

    def count(self, opcode: int) -> int:
        return [seen for seen, _ in self.seen].count(opcode)

    def close(self, code: int = 0) -> str:
        if libc.umount2(self.place.encode(), 0) < 0:
            raise OSError(ctypes.get_errno(), "umount")
        Path(self.place).rmdir()
        Path(self.place + ".window").unlink(missing_ok=True)
        _, said = self.relay.communicate(timeout=20)
        assert self.relay.returncode == code, self.relay.returncode
        return said


def error_of(act: Callable[[], object]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or 0
    return 0


def open_error(path: Path) -> int:
    return error_of(lambda: os.close(os.open(path, os.O_RDONLY)))


def data(program: str, *, window: bool) -> None:
    stub = Stub(program, window=window)
    assert stub.file().read_bytes() == stub.data
    new = os.urandom(2 * MOST + 4321)
    with open(stub.file(), "r+b", buffering=0) as file:
        file.write(new[: MOST + 5])
        file.write(new[MOST + 5 :])
        file.seek(0)
        assert stub.data[: len(new)] == new
        file.write(b"small")
    assert stub.data[:5] == b"small"
    assert error_of(Path(stub.place, "1").stat) == errno.ENOENT
    assert stub.close() == ""
    lent = {slot for slot in stub.slots if slot != NO_SLOT}
    assert lent <= {0, 1, 2, 3}
    assert (0 in lent) == window, stub.slots
    for opcode, length, inside, slot in stub.headers:
        if opcode == WRITE and slot != NO_SLOT:
            assert length == 80
            assert inside > 8192
    assert stub.seen[-1] == (DESTROY, 0)


def with_window(program: str) -> None:
    data(program, window=True)


def without_window(program: str) -> None:
    data(program, window=False)


def spared(program: str) -> None:
    stub = Stub(program, window=False)
    with open(stub.file(), "r+b", buffering=0) as file:
        file.write(b"x")
    assert error_of(lambda: os.getxattr(stub.file(), "security.capability")) == errno.ENODATA
    assert stub.count(WRITE) == 1
    assert stub.count(FLUSH) == stub.count(GETXATTR) == 0
    assert error_of(lambda: os.getxattr(stub.file(), "user.other")) == errno.ENOTSUP
    assert stub.count(GETXATTR) == 1
    with open(stub.file(), "r+b", buffering=0) as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
    assert (stub.count(SETLKW), stub.count(FLUSH)) == (1, 1)
    assert stub.close() == ""


def hinted(program: str) -> None:
    stub = Stub(program, window=False)
    share = Path(stub.place, "0")
    steps: tuple[tuple[Callable[[], object], bool], ...] = (
        (lambda: None, True),
        (lambda: time.sleep(0.3), False),
        (lambda: stub.invalidate(SHARE), False),
        (lambda: stub.invalidate(FILE), True),
    )
    for act, taken in steps:
        assert share.stat().st_mtime == 0
        stub.hint(SHARE, 77)
        act()
        time.sleep(0.02)
        descriptor = os.open(share, os.O_PATH)
        found, again = (os.fstat(descriptor).st_mtime for _ in range(2))
        os.close(descriptor)
        assert (found, again) == (77 if taken else 0, 0)
    assert stub.close() == ""


def gone(program: str) -> None:
    stub = Stub(program, window=False)
    assert stub.file().stat().st_size == len(stub.data)

    def hang_up(opcode: int, node: int, unique: int) -> bool:
        if opcode == OPEN:
            stub.sock.shutdown(socket.SHUT_RDWR)
        return opcode != OPEN

    stub.before = hang_up
    start = time.monotonic()
    assert open_error(stub.file()) == errno.EIO
    assert error_of(stub.file().stat) == errno.EIO
    assert time.monotonic() - start < 2
    assert "share server has ended" in stub.close()


def gone_at_once(program: str) -> None:
    stub = Stub(program, window=False)
    stub.sock.shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        assert error_of(stub.file().stat) in (errno.EIO, errno.ECONNREFUSED)
    assert "share server has ended" in stub.close()


def sends(program: str, bad: bytes) -> None:
    stub = Stub(program, window=True)

    def send(opcode: int, node: int, unique: int) -> bool:
        if opcode == OPEN:
            stub.sock.sendall(bad)
        return opcode != OPEN

    stub.before = send
    assert open_error(stub.file()) == errno.EIO
    assert "share server has ended" in stub.close(1)


def nonsense(program: str) -> None:
    sends(program, WIRE.pack(MESSAGE, MOST + 5000, 0, NO_SLOT))
    sends(program, WIRE.pack(9, 0, 0, 0))
    sends(program, WIRE.pack(END, 0, 0, 0))
    sends(program, WIRE.pack(MESSAGE, 16, 0, NO_SLOT) + OUT.pack(17, 0, 4))
    sends(program, WIRE.pack(MESSAGE, 16, 512, 0) + OUT.pack(528, 0, 12345678))
    sends(program, WIRE.pack(HINT, 3, 0, 0) + b"abc")


def unanswered_end(program: str) -> None:
    stub = Stub(program, window=False)
    stub.file().stat()
    stub.before = lambda opcode, node, unique: opcode != DESTROY
    start = time.monotonic()
    stub.close(-signal.SIGALRM)
    assert 1 < time.monotonic() - start < 10


def taken_back(program: str) -> None:
    """A notification waits for a page whose answer comes behind it."""
    stub = Stub(program, window=True, valid=3600)

    def take_back(opcode: int, node: int, unique: int) -> bool:
        # not every time: what is taken back before it is copied is read again
        if opcode == READ and stub.count(READ) % 3 == 1:
            stub.invalidate(FILE)
            time.sleep(0.02)
        return True

    stub.before = take_back
    for _ in range(5):
        assert stub.file().read_bytes() == stub.data
    assert stub.count(READ) >= 10
    assert stub.close() == ""


def many(program: str) -> None:
    """More requests at once than there are slots, answered in the opposite order."""
    stub = Stub(program, window=True, valid=3600)
    held: list[tuple[int, int, int, bytes, int]] = []

    def hold(opcode: int, node: int, unique: int, body: bytes, slot: int) -> None:
        if opcode != READ:
            Stub.act(stub, opcode, node, unique, body, slot)
            return
        held.append((opcode, node, unique, body, slot))
        if len(held) == 8:
            for request in reversed(held):
                Stub.act(stub, *request)
            held.clear()

    stub.act = hold  # type: ignore[method-assign]
    stub.file().stat()
    bad = []

    def read(number: int) -> None:
        descriptor = os.open(stub.file(), os.O_RDONLY | os.O_DIRECT)
        size, offset = 65536, number * 131072
        if os.pread(descriptor, size, offset) != stub.data[offset : offset + size]:
            bad.append(number)
        os.close(descriptor)

    for _ in range(20):
        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not bad
    assert sorted(set(stub.slots)) == [0, 1, 2, 3, NO_SLOT]
    assert stub.close() == ""


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])
