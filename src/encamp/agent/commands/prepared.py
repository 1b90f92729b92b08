"""The agent's side of the prepared process, which makes carriers by forking."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable

from encamp.agent.commands.directory import CommandDirectory
from encamp.agent.commands.starting import PYTHON
from encamp.home import Home

READY_IN = 30.0
"""Seconds in which it has imported all it needs."""
STARTED_IN = 5.0
"""Seconds in which it makes a child."""
IDLE = 3600.0
"""Seconds without anything to do after which it is ended: it holds some tens of megabytes."""


class Prepared:
    """`ended` is called with each child that has ended, or whose end will not be heard of."""

    def __init__(self, home: Home, ended: Callable[[int], None]) -> None:
        self.children: set[int] = set()
        """Those whose end will be heard of."""
        self._home = home
        self._ended = ended
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._answer: asyncio.Future[int] | None = None
        """What it says next: that it is ready (0), or which child it has made."""
        self._one = asyncio.Lock()
        self._used = 0.0

    def prepare(self) -> None:
        """There may be something to do soon."""
        self._used = time.monotonic()
        if self._connection is not None:
            return
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            ours.setblocking(False)
            home, number = str(self._home.root), str(its.fileno())
            words = [*PYTHON, "encamp.agent.commands.preparing", home, number]
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(its.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                return
        self._connection = ours
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        loop.add_reader(ours, self._hear)

    async def start(self, directory: CommandDirectory) -> int | None:
        """A process that carries a command out; None: it has to be started otherwise."""
        self.prepare()
        async with self._one:
            connection, ready = self._connection, self._answer
            if connection is None or ready is None:
                return None
            try:
                async with asyncio.timeout(READY_IN):
                    await asyncio.shield(ready)
                started = self._answer = asyncio.get_running_loop().create_future()
                connection.send(os.fsencode(directory.path))
                async with asyncio.timeout(STARTED_IN):
                    return await asyncio.shield(started)
            except (OSError, TimeoutError):
                self.close()
                return None

    def end_if_idle(self) -> None:
        if time.monotonic() - self._used > IDLE:
            self.close()

    def close(self) -> None:
        """It ends; its children go on, and nobody will say when they end."""
        if self._connection is not None:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BrokenPipeError())
            self._answer.exception()
        self._answer = None
        left, self.children = self.children, set()
        for pid in left:
            self._ended(pid)

    def _hear(self) -> None:
        assert self._connection is not None
        try:
            said = self._connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        word, _, number = said.partition(b" ")
        if word in (b"ready", b"started") and self._answer is not None:
            if word == b"started":
                # That it has ended may be the next to be heard, before anybody knows of it.
                self.children.add(int(number))
            if not self._answer.done():
                self._answer.set_result(int(number or 0))
        elif word == b"ended":
            self.children.discard(int(number))
            self._ended(int(number))
        else:
            self.close()
