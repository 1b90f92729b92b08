"""The bait of this host, with all that belongs to it: open as long as its agent runs, whether that
has a manager or not, and as long as there is a batch system to work with."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from encamp.model.errors import EncampError
from encamp.own_files import check_readable_by

if TYPE_CHECKING:
    from encamp.agent.commands.supervising import Commands
    from encamp.batch.system import BatchSystem
    from encamp.home import Home
    from encamp.model.batch import BatchSettings

    Change = Callable[[BatchSystem, BatchSettings], None]

ANYBODY = "nobody"
"""An account like everybody's."""
ANEW = 5.0
"""Seconds after which what has failed is begun anew."""

LOG = logging.getLogger(__name__)


def wanted_bait() -> BatchSettings | None:
    """How this host works with its batch system; None: it has none, or this is not root's agent.
    Jobs are anybody's, and only root can become anybody."""
    if os.geteuid() != 0:
        return None
    from encamp.describe.batch_file import load_batch_settings

    return load_batch_settings()


class Serving:
    """The bait is closed when `async with` ends. `name`: the host's."""

    def __init__(self, home: Home, commands: Commands, name: str) -> None:
        self.settings: BatchSettings | None = None
        """As they are in force; None: there is no bait."""
        self._home = home
        self._commands = commands
        self._name = name
        self._lasts = False
        self._changing = asyncio.Lock()
        self._held = AsyncExitStack()
        self._change: Change | None = None
        self._system: BatchSystem | None = None
        """Which remembers the jobs that came."""

    async def __aenter__(self) -> Self:
        self._lasts = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with self._changing:
            self._lasts = False
            await self._close()

    async def begin(self, settings: BatchSettings | None) -> None:
        if settings is None:
            # What is left of a former bait is of no interest any more.
            self._commands.own.tell(lambda tracked: None)
        await self.change(settings)

    async def change(self, settings: BatchSettings | None) -> None:
        """For jobs that come from now on; what has failed may be tried again. After an error all is
        as before, unless the bait was to be opened, and could not be."""
        async with self._changing:
            if not self._lasts or settings is self.settings is None:
                return
            if settings is None:
                await self._close()
                LOG.warning("The bait is closed: there is no batch system to work with any more.")
                return
            from encamp.batch.adapters import open_batch_system

            system = self._system
            if system is None or settings != self.settings:
                system = await asyncio.to_thread(open_batch_system, settings)
            if self._change is not None and _is_same(self.settings, settings):
                self._change(system, settings)
                LOG.info("The bait of %s has read its settings.", settings.system)
            else:
                await self._close()
                await asyncio.to_thread(_warn_of_own_files)
                self._change = await self._held.enter_async_context(
                    _open(self._home, self._commands, self._name, system, settings)
                )
            self.settings, self._system = settings, system

    async def _close(self) -> None:
        """What runs goes on, and is written down as before."""
        self.settings = self._change = self._system = None
        await self._held.aclose()


def _warn_of_own_files() -> None:
    """There may be accounts that can read more than this one."""
    try:
        check_readable_by(pwd.getpwnam(ANYBODY))
    except KeyError:
        return
    except EncampError as error:
        LOG.warning("Jobs may fail on this host: %s %s", error.sentence, error.hint)


def _is_same(before: BatchSettings | None, after: BatchSettings) -> bool:
    """Is it the same batch system, found in the same way?"""
    return before is not None and (before.system, before.programs) == (
        after.system,
        after.programs,
    )


@asynccontextmanager
async def _open(
    home: Home, commands: Commands, name: str, system: BatchSystem, settings: BatchSettings
) -> AsyncIterator[Change]:
    """Gives what has it go on with other settings."""
    from encamp.agent.bait.door import BaitDoor
    from encamp.agent.bait.keeping import Keeping
    from encamp.agent.bait.probing import Probing
    from encamp.agent.bait.taking import Taking

    async with Keeping(home, system, settings, host=name) as keeping:
        probing = Probing(commands, keeping.failing, keeping.is_full)
        taking = Taking(
            commands, system, settings, keeping.failing, keeping.records, probing.got_on
        )
        watching = [asyncio.create_task(_lasting(one.watch)) for one in (taking, probing)]

        def change(system: BatchSystem, settings: BatchSettings) -> None:
            taking.change(system, settings)
            keeping.change(system, settings)
            keeping.failing.forget()

        try:
            # So that the first job need not wait for it.
            commands.own.prepare()
            async with BaitDoor(taking.take) as door:
                LOG.info("The bait of %s is open at %s.", settings.system, door.path)
                yield change
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            taking.close()


async def _lasting(watch: Callable[[], Awaitable[None]]) -> None:
    """Until cancelled: nobody would notice if it ended."""
    while True:
        try:
            await watch()
            LOG.error("A part of the bait has ended, and is begun anew.")
        except Exception:
            LOG.exception("A part of the bait has failed, and is begun anew.")
        await asyncio.sleep(ANEW)


def trouble_of(error: EncampError, settings: BatchSettings | None) -> str:
    """`settings`: those that are in force nevertheless."""
    first = error.detail.splitlines()[0] if error.detail else ""
    what = "This host has no bait" if settings is None else "The bait goes on as before"
    return f"{what}: {error.sentence} {first}".rstrip()
