"""A machine of user-mode Linux under the supervisor, with a guest that does as it is told."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from encamp.cpio import Entry, archive, directory
from encamp.home import Home
from encamp.images.usermode_kernel import ARGUMENTS as DEBIAN_ARGUMENTS
from encamp.images.usermode_kernel import known
from encamp.machines.usermode import own_kernel

PACKAGE = Path(__file__).parents[3] / "src" / "encamp"
SUPERVISOR = PACKAGE / "machines" / "encamp-supervisor"
INIT = Path(__file__).with_name("init.c")

PORTS = (*(f"encamp.{number}" for number in range(8)), "encamp.shares")
ROLES = "eeeenn--c"
"""What the guest does with each of its ports: see init.c."""
COMMANDS = PORTS[-1]

ARGUMENTS = ("mem=128M", "panic=-1", "noreboot", "quiet")
CONSOLE = (5, 1)


@dataclass
class Kernel:
    """What is run: one that was built here, or Debian's, with what that needs."""

    program: Path
    library: tuple[Path, Path] | None = None
    """Its loader, and its C library."""
    modules: bytes = b""
    arguments: tuple[str, ...] = ()


KERNEL = Kernel(Path())
"""What machines get here; set by the first test."""


def find_kernel(home: Home) -> Kernel:
    """`home`: where Debian's kernel is."""
    own = own_kernel()
    if own is not None:
        return Kernel(own)
    debian = known(home)
    assert debian is not None
    library = (debian.loader, debian.libraries / "libc.so.6")
    return Kernel(debian.program, library, debian.modules.read_bytes(), DEBIAN_ARGUMENTS)


def build_initramfs(place: Path) -> Path:
    """With init.c as its only program."""
    compiler = shutil.which("musl-gcc") or "gcc"
    program, made = place / "init", place / "initramfs"
    words = [compiler, "-O2", "-static", "-Wall", "-o", str(program), str(INIT)]
    subprocess.run(words, check=True)
    entries = [*map(directory, ("dev", "proc", "sys"))]
    entries.append(Entry("dev/console", mode=stat.S_IFCHR | 0o600, device=CONSOLE))
    entries.append(Entry("init", program.read_bytes(), stat.S_IFREG | 0o755))
    made.write_bytes(KERNEL.modules + archive(entries))
    return made


class Machine:
    """One that runs in a directory of its own."""

    def __init__(self, place: Path, process: subprocess.Popen[bytes]) -> None:
        self.place = place
        self.process = process
        self.errors = place / "errors"
        self.console = place / "console"

    def connect(self, name: str) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(self.place / name))
        client.settimeout(20)
        return client

    def ask(self, question: str) -> str:
        """Of the supervisor."""
        with self.connect("monitor") as client:
            client.sendall(f"{question}\n".encode())
            return line(client)

    def command(self, words: str) -> str:
        """Of the guest; empty if it ends over it."""
        with self.connect(COMMANDS) as client:
            client.sendall(f"{words}\n".encode())
            return line(client)

    def said(self) -> str:
        return self.errors.read_text()

    def kernel(self) -> int:
        """The pid of its kernel."""
        return children(self.process.pid)[0]

    def pids(self) -> list[int]:
        """Of all its processes."""
        found = [self.process.pid]
        for pid in found:
            found += children(pid)
        return found


def line(client: socket.socket) -> str:
    got = b""
    while not got.endswith(b"\n"):
        piece = client.recv(65536)
        if not piece:
            break
        got += piece
    return got.decode().strip()


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def ticks(pids: Sequence[int]) -> int:
    """Of processor time that they have had."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total


def is_idle(machine: Machine) -> bool:
    """Its supervisor, that is."""
    before = ticks([machine.process.pid])
    time.sleep(0.3)
    return ticks([machine.process.pid]) - before < 2


def alive(pids: Sequence[int]) -> list[int]:
    found = []
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                found.append(pid)
    return found


def in_session(leader: int) -> list[int]:
    """Those that live of all who were made by a process, wherever they are now."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = []
    for pid in alive(pids):
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.005)


@contextmanager
def running(
    place: Path,
    initramfs: Path,
    *arguments: str,
    roles: str = ROLES,
    seccomp: bool = True,
    file_limit: int = 0,
    wrap: Sequence[str] = (),
) -> Iterator[Machine]:
    place.mkdir(exist_ok=True)
    with ExitStack() as held:
        words = [*wrap, str(SUPERVISOR), "--console", "console"]
        descriptors = []
        for name in ("monitor", *PORTS[-len(roles) :]):
            listener = held.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(place / name))
            listener.listen(4)
            descriptors.append(listener.fileno())
            number = listener.fileno()
            words += (
                ["--monitor", str(number)] if name == "monitor" else ["--port", f"{name}={number}"]
            )
        if file_limit:
            words = ["prlimit", f"--fsize={file_limit}:{file_limit}", *words]
        for option, path in zip(("--loader", "--library"), KERNEL.library or (), strict=False):
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            descriptors.append(fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 32))
            os.close(opened)
            held.callback(os.close, descriptors[-1])
            words += [option, str(descriptors[-1])]
        words += ["--", str(KERNEL.program), *ARGUMENTS, *KERNEL.arguments]
        words.append(f"seccomp={'on' if seccomp else 'off'}")
        words += [f"initrd={initramfs}", f"roles={roles}", *arguments]
        with (place / "errors").open("wb") as errors:
            process = subprocess.Popen(words, cwd=place, pass_fds=descriptors, stderr=errors)
    machine = Machine(place, process)
    try:
        yield machine
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            finally:
                process.kill()
                process.wait()
