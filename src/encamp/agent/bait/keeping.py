"""All that keeps a bait: it is open when it can be, what came to it is written down and told to
those who may know, and what fails is left alone for a while."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from encamp.agent.bait.failing import Failing
from encamp.agent.bait.opening import Host
from encamp.agent.bait.records import Records, found
from encamp.agent.bait.room import host_now
from encamp.agent.bait.watching import Watch
from encamp.batch.system import BatchSystem
from encamp.door.peer import Peer
from encamp.door.places import AGENT_DOOR
from encamp.door.questions import AskBatchJobs, Question
from encamp.door.server import Door
from encamp.home import Home
from encamp.model.batch import BaitState, BatchSettings
from encamp.model.errors import Code, EncampError

MOST_TOLD = 10_000


class Keeping:
    """At work while `async with` lasts. At its end the bait is closed; what runs goes on.

    `host`: the agent's name. `door`: where it can be asked what came here; None: nowhere."""

    def __init__(
        self,
        home: Home,
        system: BatchSystem,
        settings: BatchSettings,
        *,
        host: str,
        door: Path | None = AGENT_DOOR,
        room: Callable[[], Host] | None = None,
    ) -> None:
        self.failing = Failing(home, settings, self._paused)
        self.records = Records(home, host)
        room = room or partial(host_now, home, self.failing, time.time)
        self.watch = Watch(home, system, settings, room)
        self._home = home
        self._door = door
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._load)
        async with AsyncExitStack() as held:
            if self._door is not None:
                await held.enter_async_context(self._opened(self._door))
            watching = asyncio.create_task(self.watch.run())
            held.push_async_callback(_ended, watching)
            self._held = held.pop_all()
        return self

    @asynccontextmanager
    async def _opened(self, path: Path) -> AsyncIterator[None]:
        """A door at which it can be asked what came here."""
        try:
            door = await Door(path, self._answer).__aenter__()
        except EncampError as error:
            raise EncampError(
                error.code,
                f"Nobody could be told what jobs came to this host: {error.sentence}",
                "One agent of root's is enough for a host.",
            ) from error
        try:
            yield
        finally:
            await door.__aexit__(None, None, None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._held.aclose()

    def change(self, system: BatchSystem, settings: BatchSettings) -> None:
        """From now on. It is the same batch system."""
        self.failing.change(settings)
        self.watch.change(system, settings)

    def is_full(self) -> bool:
        """Is there no room for another machine, as far as is known? A bait that is closed for what
        fails says nothing about that."""
        told = self.watch.told
        closed = told is not None and told.state is BaitState.FULL
        return closed and not self.failing.closing(time.time())

    def _load(self) -> None:
        self.failing.load()
        self.records.load()

    def _paused(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop has just ended.
                self._loop.call_soon_threadsafe(self.watch.look_soon)

    async def _answer(self, peer: Peer, question: Question) -> AsyncIterator[msgspec.Struct]:
        if not isinstance(question, AskBatchJobs):
            raise EncampError(
                Code.USAGE,
                "An agent tells of the batch jobs of its host, and of nothing else.",
                "Ask the manager.",
            )
        for record in await asyncio.to_thread(
            found,
            self._home,
            uid=None if peer.uid in (0, os.geteuid()) else peer.uid,
            id=question.id,
            last=max(0, min(question.last, MOST_TOLD)),
            under_way=question.under_way,
        ):
            yield record


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
