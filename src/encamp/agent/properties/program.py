"""A property that a program reads: it is run, and what it prints is the value.

No shell is between. The program has as long as the property's timeout, and then it and all that it
started are ended; so are those that it leaves behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from encamp import programs
from encamp.agent.properties.leftovers import MARK, marked
from encamp.agent.properties.output import parse
from encamp.agent.properties.plugin import Asked, NoValueError
from encamp.model.patterns import Pattern
from encamp.model.property import LARGEST_VALUE, Value

MATCH = "--match"
PIECE = 64 << 10
MOST_PIECES = LARGEST_VALUE // PIECE + 1
COMPLAINTS = 2000
"""Bytes of what a program says on its standard error that are kept: the last ones."""


async def program(asked: Asked) -> Value:
    """Run the parameters as a program. `--match REGEX` before it finds the value in its output:
    the first group of the expression, or all that it matches."""
    pattern, command = _understood(asked.parameters)
    with marked() as run:
        output = await _Run(command, {MARK: run}).output()
    return parse(output, asked.kind, pattern)


def _understood(parameters: tuple[str, ...]) -> tuple[Pattern | None, tuple[str, ...]]:
    pattern = None
    if parameters[:1] == (MATCH,):
        try:
            pattern = Pattern("".join(parameters[1:2]), lines=True)
        except ValueError as error:
            raise NoValueError(f"{MATCH} {parameters[1]!r} is no expression: {error}") from error
        if pattern.groups > 1:
            raise NoValueError(f"{MATCH} {parameters[1]!r} has more than one group")
        parameters = parameters[2:]
    if parameters[:1] == ("--",):
        parameters = parameters[1:]
    if not parameters:
        raise NoValueError("'program' takes the program to run, and what it is told.")
    return pattern, parameters


class _Run:
    """One run of a program."""

    def __init__(self, command: tuple[str, ...], variables: dict[str, str]) -> None:
        self.command = command
        self.variables = variables
        self.printed = bytearray()
        self.complaints = bytearray()
        self.over = asyncio.Event()
        """The program has ended, or has printed more than anybody wants."""
        self.ended = asyncio.Event()

    async def output(self) -> bytes:
        process: programs.Program[bytes] = programs.Program(
            programs.argument_list(self.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env={**os.environ, "LC_ALL": "C.UTF-8", **self.variables},
        )
        try:
            with self._heard(process):
                try:
                    await self.over.wait()
                finally:
                    _kill(process)
                    await self.ended.wait()
        finally:
            _kill(process)
            process.poll()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return self._result(process.returncode)

    @contextmanager
    def _heard(self, process: programs.Program[bytes]) -> Iterator[None]:
        """Take what the program prints, and notice its end, as long as the block lasts; and then
        what it had printed before it was ended."""
        loop = asyncio.get_running_loop()
        assert process.stdout is not None
        assert process.stderr is not None
        outputs = {process.stdout.fileno(): self._print, process.stderr.fileno(): self._complain}
        end = os.pidfd_open(process.pid)
        loop.add_reader(end, self._end, loop, end)
        for output, take in outputs.items():
            os.set_blocking(output, False)
            loop.add_reader(output, self._listen, loop, output, take)
        try:
            yield
        finally:
            for output, take in outputs.items():
                # What got away and goes on printing is not listened to for ever.
                for _ in range(MOST_PIECES):
                    if not self._listen(loop, output, take):
                        break
                loop.remove_reader(output)
            loop.remove_reader(end)
            os.close(end)

    def _listen(
        self, loop: asyncio.AbstractEventLoop, output: int, take: Callable[[bytes], None]
    ) -> bool:
        """Is there perhaps more?"""
        try:
            piece = os.read(output, PIECE)
        except BlockingIOError:
            return False
        if not piece:
            loop.remove_reader(output)
        take(piece)
        return bool(piece)

    def _print(self, piece: bytes) -> None:
        self.printed += piece[: LARGEST_VALUE + 1 - len(self.printed)]
        if self._too_much:
            self.over.set()

    def _complain(self, piece: bytes) -> None:
        self.complaints = (self.complaints + piece)[-COMPLAINTS:]

    def _end(self, loop: asyncio.AbstractEventLoop, end: int) -> None:
        loop.remove_reader(end)
        self.ended.set()
        self.over.set()

    @property
    def _too_much(self) -> bool:
        return len(self.printed) > LARGEST_VALUE

    def _result(self, status: int) -> bytes:
        if self._too_much:
            raise NoValueError(
                f"'{self.command[0]}' printed more than {LARGEST_VALUE:,} bytes,"
                " which is the most a property has"
            )
        if status == 0:
            return bytes(self.printed)
        how = f"failed (exit code {status})" if status > 0 else f"was ended by signal {-status}"
        said = self.complaints.decode(errors="replace").strip().splitlines()
        raise NoValueError(f"'{self.command[0]}' {how}" + (f": {said[-1]}" if said else ""))


def _kill(process: programs.Program[bytes]) -> None:
    """End it and all that it started. Its number is its group's until it is waited for."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
