"""The other side of the comparisons: a clone made by a script that does nothing else.

It starts QEMU with the command line Encamp uses, on the same template, and speaks raw lines with
QEMU and raw frames with the guest. No journal, no record, no launcher, no account, no checks, and
no care for anything that goes wrong.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.ground import Ground
from encamp import programs
from encamp.guest.channel import Exec, Hello
from encamp.guest.frames import STDIN, Type, encode
from encamp.machines.engine import SHARES, port_name
from encamp.machines.hardware import PORTS, Backing, command_line
from encamp.machines.qemu import PROGRAM
from encamp.machines.share_server import window

PATIENCE = 60.0
"""Seconds for any one answer."""

WAKE = (
    b'{"execute":"qmp_capabilities"}'
    b'{"execute":"migrate-set-capabilities","arguments":{"capabilities":'
    b'[{"capability":"x-ignore-shared","state":true}]}}'
    b'{"execute":"migrate-incoming","arguments":{"uri":"fd:%d"}}'
)


class BareMachine:
    def __init__(self, ground: Ground) -> None:
        self._began = time.perf_counter()
        self.directory = Path(tempfile.mkdtemp(prefix="bare-", dir=ground.scratch))
        with ExitStack() as held:

            def inherit(path: Path, flags: int) -> int:
                fd = os.open(path, flags | os.O_CLOEXEC)
                held.callback(os.close, fd)
                return fd

            listeners = [
                held.enter_context(self._listen(name))
                for name in ("monitor", SHARES, *map(port_name, range(PORTS)))
            ]
            root = inherit(ground.plan.image.root, os.O_RDONLY)
            memory = inherit(ground.memory(), os.O_RDWR)
            self._state = inherit(ground.state(), os.O_RDONLY)
            seen = held.enter_context(window())
            numbers = [listener.fileno() for listener in listeners]
            path = f"/proc/self/fd/{memory}"
            backing = Backing(
                name="bare",
                roots=[f"/proc/self/fd/{root}"],
                memory=f"memory-backend-file,share=off,mem-path={path}",
                monitor=numbers[0],
                ports=numbers[2:],
                shares=numbers[1],
                window=f"/proc/self/fd/{seen}",
            )
            words = command_line(programs.find(PROGRAM), ground.plan.hardware, backing)
            self.process = subprocess.Popen(
                [*words, "-incoming", "defer"],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                pass_fds=(*numbers, root, memory, seen, self._state),
            )
        self.port: socket.socket | None = None

    def age(self) -> float:
        """Milliseconds since it was asked for."""
        return (time.perf_counter() - self._began) * 1000

    def _listen(self, name: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.directory / name))
        listener.listen(1)
        return listener

    def wake(self) -> None:
        """Load the state and wait until the machine runs."""
        with connect(self.directory / "monitor") as monitor:
            monitor.sendall(WAKE % self._state)
            read_until(monitor, b'"RESUME"')

    def greet(self) -> None:
        """Say hello and wait for the guest's welcome."""
        self.port = connect(self.directory / port_name(0))
        hello = new_hello()
        self.port.sendall(hello.encode())
        read_until(self.port, hello.nonce)

    def run(self, words: Sequence[str], expected: bytes) -> None:
        """Run a command and wait until it has printed this."""
        if self.port is None:
            self.port = connect(self.directory / port_name(0))
            self.port.sendall(new_hello().encode())
        self.port.sendall(command_frames(words))
        read_until(self.port, expected)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.port is not None:
            self.port.close()
        shutil.rmtree(self.directory)


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(PATIENCE)
    client.connect(str(path))
    return client


def new_hello() -> Hello:
    return Hello(machine=os.urandom(16), hostname="bare")


def command_frames(words: Sequence[str]) -> bytes:
    command = Exec(args=list(words), env={"PATH": "/usr/bin:/bin"}, cwd="/")
    return command.encode(1) + encode(Type.END, 1, channel=STDIN)


def read_until(connection: socket.socket, expected: bytes) -> None:
    received = b""
    while expected not in received:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError(f"The other side hung up before it said {expected!r}.")
        received += piece


@contextmanager
def bare_machine(ground: Ground) -> Iterator[BareMachine]:
    machine = BareMachine(ground)
    try:
        yield machine
    finally:
        machine.end()
