"""Getting an image that serves all owners while the process that wants it is one owner's already:
in a child that keeps the agent's rights for that, and tells how it gets on through a pipe."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from contextlib import suppress
from typing import NoReturn

import msgspec

from encamp.agent.commands.family import die_with
from encamp.door.frames import Failure
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.progress import Progress


class Step(msgspec.Struct, frozen=True, tag=True, array_like=True):
    what: str
    fraction: float | None


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """It is there."""


LONGEST_LINE = 4 << 20
"""Bytes, of what a program said before it failed."""

SAID: msgspec.json.Decoder[Step | Failure | Done] = msgspec.json.Decoder(Step | Failure | Done)


class Lines:
    """The progress of it, one line for each step. Others may wait for the same image: nobody can
    keep it from them by not listening."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def update(self, what: str, fraction: float | None = None) -> None:
        line = _line(Step(what, fraction))
        os.set_blocking(self._fd, False)
        if len(line) <= select.PIPE_BUF:
            with suppress(BlockingIOError):
                os.write(self._fd, line)

    def end(self, said: Failure | Done) -> None:
        """Nothing is held for anybody any more."""
        os.set_blocking(self._fd, True)
        line = _line(said)
        while line:
            line = line[os.write(self._fd, line) :]


def _line(said: Step | Failure | Done) -> bytes:
    return msgspec.json.encode(said) + b"\n"


class Fetching:
    """An environment's image on its way into a home. Begun by a process without threads."""

    def __init__(self, home: Home, environment: Environment) -> None:
        self._environment = environment
        parent = os.getpid()
        self._pipe, end = os.pipe2(os.O_CLOEXEC)
        self._child = os.fork()
        if self._child == 0:
            os.close(self._pipe)
            _fetch(home, environment, parent, end)
        os.close(end)

    async def done(self, progress: Progress) -> None:
        """Returns when the image is there."""
        reader = asyncio.StreamReader(LONGEST_LINE)
        with os.fdopen(self._pipe, "rb") as pipe:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            try:
                while line := await reader.readline():
                    match SAID.decode(line):
                        case Step(what, fraction):
                            progress.update(what, fraction)
                        case Failure() as failure:
                            raise failure.error()
                        case Done():
                            return
            finally:
                transport.close()
        raise EncampError(
            Code.BUILD_FAILED,
            f"The image of '{self._environment.name}' was not got: the process that was to get it"
            " was ended.",
            transient=True,
        )


def missing(home: Home, environment: Environment) -> bool:
    """Is the image not where it serves everybody? Those for whom the agent makes machines see its
    own home, and no other."""
    images = ImageStore(home, shared=None)
    wanted = environment.image
    return (images.resolve(wanted) if isinstance(wanted, str) else images.made_by(wanted)) is None


def _fetch(home: Home, environment: Environment, parent: int, answer: int) -> NoReturn:
    lines = Lines(answer)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(parent)
        images = ImageStore(home, shared=None)
        wanted = environment.image
        if isinstance(wanted, str):
            images.fetch(wanted, lines)
        else:
            images.ensure(wanted, lines)
        lines.end(Done())
    except EncampError as error:
        lines.end(Failure.of(error))
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)
