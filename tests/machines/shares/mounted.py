"""Shares as a machine has them, without a machine: the guest program's relay and the share server,
with a socket between them, and the file system mounted on this host."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path

from encamp.machines.share_server import window

PACKAGE = Path(__file__).parents[3] / "src" / "encamp"
SERVER = PACKAGE / "machines" / "encamp-shares"
GUEST = PACKAGE / "guest" / "encamp-guest"

NOSUID_NODEV = 6
FORCE, DETACH = 1, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Mounted:
    """One machine's shares: the first is at `place / "0"`, the second at `place / "1"`."""

    def __init__(
        self, place: Path, server: subprocess.Popen[bytes], relay: subprocess.Popen[bytes]
    ):
        self.place = place
        self.server = server
        self.relay = relay

    @property
    def share(self) -> Path:
        return self.place / "0"


@contextmanager
def mounted(
    place: Path,
    *sources: Path,
    readonly: Sequence[int] = (),
    beside: bool = True,
    descriptors: int = 0,
    overlap: bool = False,
) -> Iterator[Mounted]:
    """`beside`: large data lie beside the stream, in a window. `descriptors`: the most that the
    server may have open. `overlap`: one of the shares is in another."""
    place.mkdir(exist_ok=True)
    options = "rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    with ExitStack() as held:
        here, there = (held.enter_context(end) for end in socket.socketpair())
        device = held.enter_context(FileIO("/dev/fuse", "r+"))
        fuse = device.fileno()
        extra = [held.enter_context(window())] if beside else []
        words = [str(SERVER), "--channel", str(here.fileno())]
        words += ["--window", str(extra[0])] if beside else []
        words += ["--overlap"] if overlap else []
        for number, source in enumerate(sources):
            words += ["--share-readonly" if number in readonly else "--share", str(source)]
        if descriptors:
            words = ["prlimit", f"--nofile={descriptors}:{descriptors}", *words]
        server = subprocess.Popen(words, pass_fds=[here.fileno(), *extra])
        # It ends by itself when nobody is at the other end of its channel any more.
        held.callback(ends, server)
        here.close()
        check(
            LIBC.mount(
                b"share", bytes(place), b"fuse", NOSUID_NODEV, f"fd={fuse},{options}".encode()
            )
        )
        held.callback(LIBC.umount2, bytes(place), DETACH)
        words = [str(GUEST), "shares-relay", str(there.fileno()), str(fuse), *map(str, extra)]
        relay = subprocess.Popen(words, pass_fds=[there.fileno(), fuse, *extra])
        held.callback(ends, relay)
        there.close()
        device.close()
        # By force: namespaces that others have made meanwhile keep a copy of the mount.
        held.callback(LIBC.umount2, bytes(place), FORCE | DETACH)
        yield Mounted(place, server, relay)


def ends(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    finally:
        process.kill()
        process.wait()


def unlocked(path: Path, kind: int = fcntl.LOCK_EX) -> bool:
    """Can a process of this host lock the file at once?"""
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
