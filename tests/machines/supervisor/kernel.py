"""What the supervisor may find in a kernel's place: it connects as the kernel would, and then does
as its last argument says."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import sys
import time

HEAD = struct.Struct("<III")
FEATURES = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 1
PROTOCOL = 1 << 3 | 1 << 5 | 1 << 9 | 1 << 14
MEMORY = 1 << 20


class Wire:
    def __init__(self) -> None:
        self.end = socket.socket(socket.AF_UNIX)
        self.end.connect("vhost")

    def say(
        self, request: int, body: bytes = b"", fds: tuple[int, ...] = (), size: int = -1
    ) -> None:
        message = HEAD.pack(request, 1, len(body) if size < 0 else size) + body
        socket.send_fds(self.end, [message], list(fds))

    def ask(self, request: int, body: bytes = b"") -> bytes:
        self.say(request, body)
        return self.end.recv(4096)

    def begin(self) -> tuple[mmap.mmap, int]:
        """Show it memory, with no queues yet."""
        self.say(3)
        assert struct.unpack("<IIIQ", self.ask(1)) == (1, 5, 8, FEATURES)
        assert struct.unpack("<IIIQ", self.ask(15)) == (15, 5, 8, PROTOCOL)
        self.say(16, struct.pack("<Q", PROTOCOL))
        self.say(2, struct.pack("<Q", FEATURES))
        self.calls, other = socket.socketpair()
        self.say(21, fds=(other.fileno(),))
        file = os.memfd_create("memory")
        os.ftruncate(file, MEMORY)
        self.say(5, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY, 0, 0), fds=(file,))
        return mmap.mmap(file, MEMORY), file

    def queue(self, number: int, place: int, size: int = 64) -> None:
        self.say(8, struct.pack("<II", number, size))
        self.say(10, struct.pack("<II", number, 0))
        places = (place, place + 0x2000, place + 0x1000, 0)
        self.say(9, struct.pack("<IIQQQQ", number, 0, *places))
        self.say(18, struct.pack("<II", number, 1))


def wrong(wire: Wire, what: str) -> None:
    if what == "unknown":
        wire.say(99)
    elif what == "long":
        wire.say(1, b"", size=1 << 31)
    elif what == "no memory":
        wire.say(5, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY, 0, 0))
    elif what == "short memory":
        file = os.memfd_create("memory")
        wire.say(5, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY, 0, 0), fds=(file,))
    elif what == "no file":
        ends = socket.socketpair()
        wire.say(5, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY, 0, 0), fds=(ends[0].fileno(),))
    elif what == "outside":
        wire.begin()
        wire.queue(0, MEMORY - 0x1000)
    elif what == "nowhere":
        wire.say(18, struct.pack("<II", 0, 1))
    elif what == "many":
        wire.say(8, struct.pack("<II", 63, 64))
    elif what == "size":
        wire.say(8, struct.pack("<II", 0, 63))
    elif what == "config":
        wire.say(24, struct.pack("<III", 0, 4096, 0))
    elif what == "calls":
        wire.say(21, fds=(os.open("/dev/null", os.O_RDWR),))
    elif what == "chain":
        memory, _ = wire.begin()
        wire.queue(3, 0)
        memory[0x1000:0x1008] = struct.pack("<HHHH", 0, 1, 70, 0)
        wire.say(35, struct.pack("<II", 3, 0))
    elif what == "address":
        memory, _ = wire.begin()
        wire.queue(3, 0)
        memory[0:16] = struct.pack("<QIHH", MEMORY - 4, 8, 0, 0)
        memory[0x1000:0x1008] = struct.pack("<HHHH", 0, 1, 0, 0)
        wire.say(35, struct.pack("<II", 3, 0))
    elif what == "gone":
        _, file = wire.begin()
        wire.queue(3, 0)
        wire.ask(1)
        os.ftruncate(file, 0)
        wire.say(35, struct.pack("<II", 3, 0))
    elif what == "full":
        # Ask without an end, and hear nothing.
        wire.end.setblocking(False)
        while True:
            try:
                wire.say(1)
            except BlockingIOError:
                time.sleep(0.001)
    elif what == "busy":
        wire.begin()
        while True:
            wire.say(35, struct.pack("<II", 0, 0))


def main() -> None:
    what = sys.argv[-1]
    if what == "strangers":
        # Somebody else of the same account is not the kernel.
        if os.fork() == 0:
            end = socket.socket(socket.AF_UNIX)
            end.connect("vhost")
            end.recv(1)
            os._exit(0)
        os.wait()
        wire = Wire()
        wire.begin()
        assert wire.ask(1)
        os._exit(0)
    if what == "children":
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(1000)
    else:
        wrong(Wire(), what)
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    main()
