"""A machine's process: started with few rights, known by a lock, watched by a descriptor.

The launcher takes a lock on a file of the machine and keeps it until it dies, whatever it has
become by then. So the kernel itself answers whether a machine lives and as which process, also to
an Encamp that did not start it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from encamp.model.errors import Code, EncampError
from encamp.model.machine import Share
from encamp.polling import is_readable

LAUNCHER = Path(__file__).with_name("encamp-launch")

VARIABLES = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
"""All that a machine's process is told. The caller's own variables may hold secrets, and a guest
that has taken QEMU over would read them."""

PASSED_ON = ("ENCAMP_COMMAND",)
"""Beside these: which command the machine is made for, by which its claim is known as its own."""

FLOCK = struct.Struct("hhqqi4x")
"""The kernel's `struct flock` on 64-bit Linux: type, whence, start, length, pid."""


LAST_MOMENTS = 2.0
"""Seconds that a process below a machine's has to end with it."""

LANDLOCK_CREATE_RULESET = 444
ASK_VERSION = 1
FIRST_VERSION = 2
"""The launcher uses no earlier one: nothing could be moved between directories of a share."""


def confinement() -> str:
    """What the kernel keeps a machine's process from other files with: `landlock 7`, or `none`."""
    import ctypes

    libc = ctypes.CDLL(None)
    version = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION)
    return f"landlock {version}" if version >= FIRST_VERSION else "none"


class Launch:
    """How to start one process: collected first, done at once."""

    def __init__(self, *, directory: Path, lock: Path, log: Path) -> None:
        self.directory = directory
        self.lock = lock
        self.log = log
        self.program: int | None = None
        """An open file to run, whose path may be closed to that user; the command's first word is
        then only its name."""
        self.file_limit = 0
        self.tied = False
        self.shielded = False
        """Signals do not end it, save those that cannot be refused."""
        self.user: tuple[int, int] | None = None
        self.group = 0
        """One more group for that user, if it needs one."""
        self.shares: list[tuple[Share, str]] = []
        """Root's directories for it, each with the name it gets in the process's directory."""
        self.descriptors: list[int] = []
        """Open files the process inherits under the same numbers."""
        self.confined = False
        """It reaches no other process, and no file but those that it inherits, its directory, its
        `shares`, and:"""
        self.readable: list[Path | str] = []
        self.writable: list[Path | str] = []
        self.devices: list[Path | str] = []
        self.traces = False
        """It traces and ends children of its own, although it is confined."""
        self.watches = False
        """It is told what is done in directories that it may read."""
        self.sockets = ""
        """Which it may make: `none`, or those of the `internet`. Any, if empty."""

    def start(self, command: Sequence[str]) -> Process:
        if not LAUNCHER.exists():
            raise EncampError(
                Code.PROGRAM_MISSING,
                "Encamp's own launcher has not been built.",
                "Run 'make setup' in the source tree, or install the package again.",
            )
        words = [str(LAUNCHER), "--directory", str(self.directory), "--lock", str(self.lock)]
        if self.file_limit:
            words += ["--file-limit", str(self.file_limit)]
        words += ["--die-with-parent", str(os.getpid())] if self.tied else ["--detach"]
        if self.shielded:
            words += ["--shield"]
        if self.user is not None:
            words += ["--user", f"{self.user[0]}:{self.user[1]}"]
            if self.group:
                words += ["--group", str(self.group)]
        for share, name in self.shares:
            words += ["--share-readonly" if share.readonly else "--share", share.source, name]
        if self.confined:
            words += ["--confine"]
        if self.traces:
            words += ["--traces"]
        if self.watches:
            words += ["--watches"]
        for path in self.readable:
            words += ["--readable", str(path)]
        for path in self.writable:
            words += ["--writable", str(path)]
        for path in self.devices:
            words += ["--device", str(path)]
        if self.sockets:
            words += ["--sockets", self.sockets]
        inherited = list(self.descriptors)
        if self.program is not None:
            words += ["--program", str(self.program)]
            inherited.append(self.program)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                [*words, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=VARIABLES
                | {name: os.environ[name] for name in PASSED_ON if name in os.environ},
                pass_fds=inherited,
                start_new_session=True,
            )
        finally:
            os.close(log)
        if self.tied:
            try:
                return Process(child.pid, child)
            except OSError:
                child.kill()
                child.wait()
                raise
        # The machine is nobody's child; whoever holds the lock is it.
        process = Process.holding(self.lock) if child.wait() == 0 else None
        if process is None:
            raise EncampError(
                Code.MACHINE_LOST,
                "The machine's process ended at once.",
                detail=self.log.read_text(errors="replace"),
            )
        return process


class Process:
    """A running machine process, ours or adopted, held by a descriptor so that it cannot be
    mistaken for a later process of the same number."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._child = child
        self._fd = os.pidfd_open(pid)

    @classmethod
    def holding(cls, lock: Path) -> Process | None:
        """The process that holds the lock, or None if there is none."""
        while (pid := lock_holder(lock)) is not None:
            if pid <= 0:
                raise EncampError(
                    Code.NOT_PERMITTED,
                    f"The machine of {lock.parent} lives in another container or on another host.",
                    "Work with it from there; or give each its own directory with ENCAMP_HOME.",
                )
            try:
                process = cls(pid)
            except ProcessLookupError:
                continue
            if lock_holder(lock) == pid:
                return process
            process.close()
        return None

    def alive(self) -> bool:
        return not is_readable(self._fd)

    def signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            raise EncampError(
                Code.NOT_PERMITTED, f"The machine's process {self.pid} is not yours."
            ) from error

    async def ended(self) -> None:
        """Wait until the process is gone."""
        if not self.alive():
            self._reap()
            return
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        # Somebody else may wait on the same descriptor: watch one of our own.
        watched = os.dup(self._fd)
        loop.add_reader(watched, _settle, gone)
        try:
            await gone
        finally:
            loop.remove_reader(watched)
            os.close(watched)
        self._reap()

    async def kill(self) -> None:
        with _below(self.pid) as others:
            self.signal(signal.SIGKILL)
            await self.ended()
            if others:
                await asyncio.to_thread(_all_end, others)

    def kill_now(self, patience: float | None = None) -> None:
        """The same without an event loop. `patience`: seconds to wait for its end at most, for one
        that is nobody's child of ours."""
        with _below(self.pid) as others:
            self.signal(signal.SIGKILL)
            if is_readable(self._fd, patience):
                self._reap()
            _all_end(others)

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait()

    @property
    def was_killed(self) -> bool:
        """By a signal, as far as we can know: only a parent is told."""
        return self._child is not None and (self._child.returncode or 0) < 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def family(pid: int) -> list[int]:
    """A process and all below it."""
    pids = [pid]
    for one in pids:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{one}/task/{one}/children").read_text()
            pids += map(int, children.split())
    return pids


@contextlib.contextmanager
def _below(pid: int) -> Iterator[list[int]]:
    """Descriptors of the processes below one. They end with it, a moment later:
    a machine is over when nothing works in its directory any more."""
    with contextlib.ExitStack() as held:
        found = []
        for one in family(pid)[1:]:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(one)
                held.callback(os.close, fd)
                found.append(fd)
        yield found


def _all_end(processes: list[int]) -> None:
    for fd in processes:
        is_readable(fd, LAST_MOMENTS)


def _settle(gone: asyncio.Future[None]) -> None:
    if not gone.done():
        gone.set_result(None)


def lock_holder(path: Path) -> int | None:
    """The process that holds the POSIX lock on the file, if one does."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    try:
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else pid


@contextlib.contextmanager
def shut_out(path: Path) -> Iterator[None]:
    """Take a dead machine's lock: a launcher that is still on its way finds it taken and ends."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        yield  # Without the directory no launcher gets anywhere.
        return
    try:
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
