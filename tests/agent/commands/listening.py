"""The manager's part, as far as commands of one agent need it: issue, listen, write down."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from encamp.agent.commands.supervising import Commands
from encamp.bus.messages import CommandNews, Execute
from encamp.home import Home
from encamp.model.command import OVER, CommandState
from encamp.model.property import Value

NUMBERS = itertools.count(1)
PATIENCE = 60.0


class Heard:
    """What is known of one command."""

    def __init__(self) -> None:
        self.state = CommandState.WAITING
        self.output = bytearray()
        self.pieces = 0
        self.last: CommandNews | None = None
        self.phase = ""
        self.machine = ""

    def take(self, news: CommandNews) -> None:
        assert self.state not in OVER or news.state in (self.state, CommandState.RUNNING)
        if news.piece:
            assert news.offset == len(self.output), "a piece out of order"
            self.output += news.piece
            self.pieces += 1
        self.phase, self.machine = news.phase or self.phase, news.machine or self.machine
        if news.state in OVER:
            self.state, self.last = news.state, news
        elif self.state not in OVER:
            self.state = news.state

    @property
    def value(self) -> Value:
        assert self.last is not None
        return self.last.value

    @property
    def reason(self) -> str:
        assert self.last is not None
        return self.last.reason


class Asker:
    """Issues commands and hears how they do. What it knows, it keeps when its agent changes."""

    def __init__(self) -> None:
        self.heard: dict[str, Heard] = {}
        self.largest = 0
        """Bytes of output in one message."""
        self._news = asyncio.Event()

    def agent(self, home: Home) -> Commands:
        return Commands(home, news=self._news.set)

    async def execute(
        self, commands: Commands, name: str, /, *, timeout: float = 60.0, **arguments: Any
    ) -> str:
        message = execute(name, timeout=timeout, **arguments)
        await commands.execute(message)
        return message.id

    async def listen(self, commands: Commands, enough: Callable[[], bool]) -> None:
        """Take news until it is enough."""
        async with asyncio.timeout(PATIENCE):
            while not enough():
                self._news.clear()
                told = commands.tell()
                for news in told:
                    self.heard.setdefault(news.id, Heard()).take(news)
                self.largest = max(self.largest, sum(len(news.piece) for news in told))
                has = {news.id: len(self.heard[news.id].output) for news in told}
                commands.taken(has, told)
                if not told:
                    await self._news.wait()

    async def until_over(self, commands: Commands, *ids: str) -> Heard:
        """What became of these commands; returns the first."""
        await self.listen(
            commands, lambda: all(id in self.heard and self.heard[id].state in OVER for id in ids)
        )
        return self.heard[ids[0]]

    async def run(
        self, commands: Commands, name: str, /, *, timeout: float = 60.0, **arguments: Any
    ) -> Heard:
        id = await self.execute(commands, name, timeout=timeout, **arguments)
        return await self.until_over(commands, id)


def execute(name: str, /, *, timeout: float = 60.0, **arguments: Any) -> Execute:
    id = f"test-{os.getpid()}-{next(NUMBERS)}"
    return Execute(id=id, name=name, arguments=arguments, issuer="alice", timeout=timeout)


def carrier_of(id: str) -> int:
    """The process that carries a command out."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            carries = b"encamp.agent.commands.carry" in words and words[-2].endswith(id.encode())
            # Its worker looks like it, but leads no session.
            if carries and os.getsid(int(name)) == int(name):
                return int(name)
    raise AssertionError(f"nobody carries {id} out")
