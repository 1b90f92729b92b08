"""Driving `encamp` as a process that is still running, over pipes or a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from tests.conftest import ENCAMP

PATIENCE = 100.0
"""Seconds after which what was waited for will not be shown any more."""

Start = Callable[..., AbstractContextManager["Running"]]
"""Starts `encamp` with these words and ends it, if need be, with the block."""


class Running:
    """A started `encamp`, with pipes to all its streams."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin: IO[bytes] = process.stdin
        self.stdout: IO[bytes] = process.stdout
        self.stderr: IO[bytes] = process.stderr

    def line(self) -> bytes:
        """The next line of its output, waited for."""
        return self.stdout.readline()

    def type(self, text: bytes) -> None:
        self.stdin.write(text)
        self.stdin.flush()

    def ends_with(self) -> int:
        """Its exit code, waited for; its input ends first."""
        self.stdin.close()
        return self.process.wait()


def starter(variables: dict[str, str], directory: Path) -> Start:
    """What a fixture `start` gives to tests: runs `encamp` with these variables and there."""

    @contextmanager
    def start(*words: str | Path) -> Iterator[Running]:
        process = subprocess.Popen(
            [ENCAMP, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env={**os.environ, **variables},
        )
        with process:
            try:
                yield Running(process)
            finally:
                process.kill()

    return start


class Terminal:
    """A started `encamp` with a terminal in front of it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.master = master
        self.seen = b""

    @property
    def echoes(self) -> bool:
        modes: int = termios.tcgetattr(self.master)[3]
        return bool(modes & termios.ECHO)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: bytes) -> None:
        """Read on until this was shown after what was waited for before."""
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.master], [], [], left)[0]
            assert ready, f"{text!r} was not shown for {PATIENCE:.0f} s, but {self.seen[-9000:]!r}"
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                piece = b""  # Linux's way to say that nobody has the terminal open any more.
            assert piece, f"{text!r} was not shown, but {self.seen!r}"
            self.seen += piece
        self.seen = self.seen.partition(text)[2]

    def all(self) -> bytes:
        """Everything until the command is over, less what was waited for before."""
        while True:
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                return self.seen
            self.seen += piece


@contextmanager
def on_terminal(
    variables: dict[str, str], *words: str | Path, rows: int, columns: int
) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = None
    try:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)
        process = subprocess.Popen(
            [ENCAMP, *words],
            env={**os.environ, **variables},
            preexec_fn=lambda: os.login_tty(slave),
        )
        os.close(slave)
        yield Terminal(process, master)
    finally:
        if process is not None:
            process.kill()
            process.wait()
        os.close(master)
