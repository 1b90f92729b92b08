"""Talking to qemu-guest-agent, which many ready disks bring along.

It can tell that the machine is up, and start Encamp's guest program where nothing else would. What
comes from it is the guest's word, so it is believed as little as that, and never read without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from encamp.model.errors import Code, EncampError

LONGEST = 1 << 16
"""Bytes of an answer. Nothing that is asked here has a long one."""
ASK_AGAIN = 10.0
"""Seconds until it is called once more; one that starts over has not heard the last call."""
DELIMITER = b"\xff"
"""Not in any text: what comes before it is somebody else's, or left over."""


class Refusal(msgspec.Struct, frozen=True):
    desc: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What it says to a request."""

    result: msgspec.Raw = msgspec.field(name="return", default=msgspec.Raw(b"null"))
    error: Refusal | None = None


class Started(msgspec.Struct, frozen=True):
    pid: int


class Ended(msgspec.Struct, frozen=True):
    exited: bool
    exitcode: int | None = None


T = TypeVar("T")

ANSWERS = msgspec.json.Decoder(Answer)

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Agent:
    """One conversation with the agent of one machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def answered(self) -> None:
        """Wait until it answers. There is no time limit here; set one around it."""
        while True:
            call = secrets.randbelow(1 << 31)
            self._send("guest-sync-delimited", {"id": call}, before=DELIMITER)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN):
                    await self._synchronize(call)
                    await self._ask("guest-ping", {})
                    return

    async def run(self, script: str, interval: float = 0.5) -> int:
        """Run a shell script to its end, as root; its exit code."""
        words: dict[str, object] = {"path": "/bin/sh", "arg": ["-c", script]}
        started = _decode(await self._ask("guest-exec", words), Started)
        while True:
            status = await self._ask("guest-exec-status", {"pid": started.pid})
            ended = _decode(status, Ended)
            if ended.exited:
                return -1 if ended.exitcode is None else ended.exitcode
            await asyncio.sleep(interval)

    async def _synchronize(self, call: int) -> None:
        """Skip what is not the answer to this call: answers to earlier ones, and noise."""
        while True:
            await self._skip_to_delimiter()
            line = await self._line()
            with contextlib.suppress(*UNREADABLE):
                answer = ANSWERS.decode(line)
                if answer.error is None and msgspec.json.decode(answer.result) == call:
                    return

    async def _skip_to_delimiter(self) -> None:
        skipped = 0
        while (byte := await self._byte()) != DELIMITER:
            skipped += 1
            if not byte:
                raise _lost()
            if skipped > LONGEST:
                raise _senseless("it does not stop talking")

    async def _ask(self, command: str, arguments: dict[str, object]) -> msgspec.Raw:
        self._send(command, arguments)
        line = await self._line()
        try:
            answer = ANSWERS.decode(line)
        except UNREADABLE as error:
            raise _senseless(str(error)) from error
        if answer.error is not None:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"The machine's qemu-guest-agent refused '{command}': {answer.error.desc[:200]!r}.",
            )
        return answer.result

    def _send(self, command: str, arguments: dict[str, object], before: bytes = b"") -> None:
        request: dict[str, object] = {"execute": command}
        if arguments:
            request["arguments"] = arguments
        self._writer.write(before + msgspec.json.encode(request) + b"\n")

    async def _byte(self) -> bytes:
        try:
            return await self._reader.read(1)
        except OSError as error:
            # A machine that ends with something unread resets the connection.
            raise _lost() from error

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise _lost() from error
        except asyncio.LimitOverrunError as error:
            raise _senseless("its answer is too long") from error


@asynccontextmanager
async def agent(connection: socket.socket) -> AsyncIterator[Agent]:
    """Speak with the agent over a connected socket, and hang up afterwards."""
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LONGEST)
    try:
        yield Agent(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _decode(raw: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        raise _senseless(str(error)) from error


def _lost() -> EncampError:
    return EncampError(
        Code.MACHINE_LOST, "The machine ended while its qemu-guest-agent was being talked to."
    )


def _senseless(what: str) -> EncampError:
    return EncampError(
        Code.PROTOCOL, f"The machine's qemu-guest-agent said something senseless: {what[:200]}."
    )
