"""Carries out one command: python -m encamp.agent.commands.carry DIRECTORY

Started by an agent, but living on its own: it outlasts the agent, keeps the time limit, ends the
command with all its processes when asked to, and writes its output and its result where the next
agent finds them. The work itself is done in a child, the worker, so that nothing a plug-in does
can keep this process from all that.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.agent.commands.directory import (
    CommandDirectory,
    Request,
    Result,
    held,
    not_written,
)
from encamp.agent.commands.family import adopt_orphans, end_descendants
from encamp.agent.commands.working import Answer, Worker
from encamp.model.command import LARGEST_OUTPUT, CommandState
from encamp.model.errors import EncampError
from encamp.model.property import LARGEST_VALUE, Value

GRACE = 5.0
"""Seconds a command has to end by itself after it was told to, before its processes are killed."""

LOOK = 0.2
"""Seconds between two looks at whether the command is to be cancelled."""

NEWS_EVERY = 0.05
"""Seconds between two signs to the agent that there is more output."""

PIECE = 64 << 10


class Output:
    """What the command prints, on disk."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._room = LARGEST_OUTPUT
        self.trouble = ""

    def write(self, data: bytes) -> None:
        if self.trouble:
            return
        try:
            view = memoryview(data)[: self._room]
            self._room -= len(view)
            while view:
                view = view[os.write(self._fd, view) :]
            if not self._room:
                self.trouble = f"Its output was cut after {LARGEST_OUTPUT >> 20} MiB."
                os.write(self._fd, f"\n[encamp: {self.trouble}]\n".encode())
        except OSError as error:
            self.trouble = not_written(error, "all of its output").sentence


class Carrier:
    def __init__(self, directory: CommandDirectory, request: Request) -> None:
        self.directory = directory
        self.request = request
        self.home = directory.home
        self.started = directory.started()
        self.output = Output(directory.output)
        self.printed = bytearray()
        """What it has printed on its standard output, if that is its value."""
        self.answer = bytearray()
        self.stopping: tuple[CommandState, str] | None = None
        """What the command will have ended with, once its processes are gone."""
        self.status: int | None = None
        """The worker's, when it has ended."""
        self.told_to_end = False
        self._returns_what_it_prints = request.program is not None and request.returns is not None
        self._newest = 0.0
        self._untold = False

    def run(self, lock: int, waiting: Worker | None = None) -> Result:
        """`waiting`: a worker that is there already."""
        adopt_orphans()
        signal.signal(signal.SIGTERM, self._told)
        worker = self._begin(lock, waiting)
        self.worker = worker.pid
        self._sinks = {
            worker.out: self._take_output,
            worker.error: self.output.write,
            worker.answer: self._take_answer,
        }
        self._sinks.pop(-1, None)
        self._attend()
        return self._result()

    def _begin(self, lock: int, waiting: Worker | None) -> Worker:
        if waiting is not None and self.request.program is None:
            with suppress(OSError):  # Somebody has ended it while it waited.
                waiting.begin(self.directory, lock)
                return waiting
        worker = Worker(apart=self._returns_what_it_prints)
        worker.begin(self.directory, lock)
        return worker

    def _told(self, number: int, frame: object) -> None:
        self.told_to_end = True

    def _take_output(self, data: bytes) -> None:
        self.output.write(data)
        if self._returns_what_it_prints:
            self.printed += data[: LARGEST_VALUE + 1 - len(self.printed)]

    def _take_answer(self, data: bytes) -> None:
        self.answer += data

    def _attend(self) -> None:
        """Take what the worker says until it has ended, by itself or because it must."""
        ended = os.pidfd_open(self.worker)
        poll = select.poll()
        for fd in (*self._sinks, ended):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        limit = time.monotonic() + self.request.timeout
        kill_at = float("inf")
        while self.status is None:
            patience = NEWS_EVERY if self._untold else LOOK
            patience = min(patience, max(0.0, min(limit, kill_at) - time.monotonic()))
            for fd, _ in poll.poll(patience * 1000):
                if fd in self._sinks and not self._read(fd):
                    poll.unregister(fd)
            self._tell()
            self._reap()
            now = time.monotonic()
            if self.stopping is None and self._must_stop(now >= limit):
                limit, kill_at = float("inf"), now + GRACE
                with suppress(ProcessLookupError):
                    os.killpg(self.worker, signal.SIGTERM)
            elif now >= kill_at:
                end_descendants(self.home, self._reap)
        if self.stopping is not None:
            end_descendants(self.home, self._reap)
        self._drain()

    def _read(self, fd: int) -> bool:
        """Take a piece; false at the end."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return True
        self._sinks[fd](data)
        self._untold = True
        return bool(data)

    def _drain(self) -> None:
        """What is in the pipes when the worker has ended is its last word. Whoever else still
        writes into them was left behind by it, and is not waited for."""
        for fd in self._sinks:
            waiting = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
            while waiting > 0 and (data := os.read(fd, min(waiting, PIECE))):
                self._sinks[fd](data)
                waiting -= len(data)

    def _must_stop(self, late: bool) -> bool:
        if late:
            limit = f"{self.request.timeout:g} seconds"
            self.stopping = CommandState.TIMED_OUT, f"It was ended after its time limit of {limit}."
        elif self.directory.cancel.exists():
            self.stopping = CommandState.CANCELLED, "It was cancelled."
        elif self.told_to_end:
            self.stopping = CommandState.FAILED, "Its process was told to end by the system."
        return self.stopping is not None

    def _reap(self) -> None:
        """See who has ended; orphans become our children."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self.worker:
                    self.status = status
                if pid == 0:
                    return

    def _tell(self) -> None:
        if self._untold and time.monotonic() - self._newest >= NEWS_EVERY:
            self._newest = time.monotonic()
            self._untold = False
            give_sign(self.directory)

    def _result(self) -> Result:
        try:
            state, reason, value, exit_code = self._outcome()
        except EncampError as error:
            state, reason, value, exit_code = CommandState.FAILED, str(error), None, None
        reason = " ".join(filter(None, (reason, self.output.trouble)))
        return Result(
            state=state,
            reason=reason,
            started=self.started,
            ended=time.time(),
            value=value,
            exit_code=exit_code,
            cut_short=self.request.program is None and not self.answer,
        )

    def _outcome(self) -> tuple[CommandState, str, Value, int | None]:
        try:
            answer = msgspec.msgpack.decode(self.answer, type=Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # It was killed over it; or it has become a listed program, which gives none.
            answer = None
        if answer is not None and not answer.error and not answer.stopped:
            # It was done before it could be stopped, if it was to be.
            state, reason = _judge(answer.exit_code or 0)
            return state, reason, answer.value, answer.exit_code
        if self.stopping is not None:
            return *self.stopping, None, None
        if answer is not None:
            said = answer.error or "It was interrupted."
            return CommandState.FAILED, said, None, answer.exit_code
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        if self.request.program is None:
            return CommandState.FAILED, f"Its process ended early: {_judge(code)[1]}", None, None
        state, reason = _judge(code)
        value: Value = None
        if state is CommandState.DONE and self.request.returns is not None:
            from encamp.agent.commands.printed import parse

            value = parse(bytes(self.printed), self.request.returns, self.request.name)
        return state, reason, value, code if code >= 0 else 128 - code


def _judge(code: int) -> tuple[CommandState, str]:
    if code == 0:
        return CommandState.DONE, ""
    if code > 0:
        return CommandState.FAILED, f"It ended with exit code {code}."
    return CommandState.FAILED, f"It was killed by signal {-code} ({signal.strsignal(-code)})."


def give_sign(directory: CommandDirectory) -> None:
    """Tell the agent, if one is there, that it should look."""
    with suppress(OSError):
        fifo = directory.path.parent.parent / "news"
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, b"\n")
        finally:
            os.close(fd)


def carry(directory: CommandDirectory, waiting: Worker | None = None) -> None:
    """Carry the command out, unless that has been done, is being done, or is not to be done."""
    with held(directory.lock) as ours:
        if ours is None or directory.result.exists():
            return
        request = directory.read_request()
        if request is None or not directory.begin(time.time()):
            return
        give_sign(directory)
        try:
            result = Carrier(directory, request).run(ours, waiting)
        except OSError as error:
            reason = f"It could not be carried out: {error.strerror}."
            result = Result(state=CommandState.FAILED, reason=reason, ended=time.time())
        directory.end(result)
    give_sign(directory)


def main() -> None:
    os.chdir("/")
    os.umask(0o077)
    carry(CommandDirectory(Path(sys.argv[1])))
    # Taking the interpreter apart would only cost time.
    os._exit(0)


if __name__ == "__main__":
    main()
