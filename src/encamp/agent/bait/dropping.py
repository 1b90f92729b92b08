"""Lets connections go of which nothing was taken, without waiting for what is in them.

Files that were sent along and not taken are closed with their connection, and of those some take as
long as their sender likes. The kernel does not wait for that where a task ends: so one that has
files of its own, the same, holds them until they are closed here, and ends. A driver that waits
even then keeps that thread, and what it holds, but no place and no number of a file.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from encamp.agent.bait.starter import Visit

MOST = 64
"""Connections that wait for it before no more are to come."""
LATER = 1.0
"""Seconds after which it is tried again to begin a thread, and that the last may take."""
CLONE_FILES = 0x400

LOG = logging.getLogger(__name__)


class Dropping:
    """For one event loop."""

    def __init__(self, dropped: Callable[[], None]) -> None:
        self._dropped = dropped
        """Called when there is room again."""
        self._waiting: list[Visit] = []
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MOST

    def drop(self, visit: Visit) -> None:
        """At once, if that is all that is to be closed; else soon."""
        if not visit.may_hold_files():
            visit.close()
            return
        self._waiting.append(visit)
        if self._is_idle.is_set():
            self._is_idle.clear()
            self._begin()

    async def end(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LATER):
                await self._is_idle.wait()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        some, closed = self._waiting[:], threading.Event()

        def hold() -> None:
            try:
                have_files_of_its_own()
            except OSError as error:
                LOG.warning("Connections are closed slowly: %s.", error.strerror)
                for visit in some:
                    visit.close()
            with suppress(RuntimeError):  # The agent has ended.
                loop.call_soon_threadsafe(self._close, some, closed)
                closed.wait()

        try:
            threading.Thread(target=hold, daemon=True).start()
        except RuntimeError as error:
            LOG.warning("Connections are closed later: %s.", error)
            loop.call_later(LATER, self._begin)

    def _close(self, some: list[Visit], closed: threading.Event) -> None:
        """While they are open elsewhere, too, which is why it takes no time."""
        for visit in some:
            visit.close()
        closed.set()
        del self._waiting[: len(some)]
        if self._waiting:
            self._begin()
        else:
            self._is_idle.set()
        self._dropped()


def have_files_of_its_own() -> None:
    """This thread: from now on what it has open, and what the others have, are two things."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_FILES) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
