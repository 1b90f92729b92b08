"""Getting an image that serves all owners while the process that wants it is one owner's already:
in a child that keeps the agent's rights for that, and tells how it gets on through a pipe."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
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


SAID: msgspec.json.Decoder[Step | Failure | Done] = msgspec.json.Decoder(Step | Failure | Done)


class _Lines:
    """The progress of it, one line for each step."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def update(self, what: str, fraction: float | None = None) -> None:
        self.say(Step(what, fraction))

    def say(self, said: Step | Failure | Done) -> None:
        os.write(self._fd, msgspec.json.encode(said) + b"\n")


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
        reader = asyncio.StreamReader()
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
    """Is the image not where it serves everybody?"""
    images = ImageStore(home)
    wanted = environment.image
    return (images.resolve(wanted) if isinstance(wanted, str) else images.made_by(wanted)) is None


def _fetch(home: Home, environment: Environment, parent: int, answer: int) -> NoReturn:
    lines = _Lines(answer)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(parent)
        images = ImageStore(home)
        wanted = environment.image
        if isinstance(wanted, str):
            images.fetch(wanted, lines)
        else:
            images.ensure(wanted, lines)
        lines.say(Done())
    except EncampError as error:
        lines.say(Failure.of(error))
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)
