"""How far commands are on their hosts: a line on a terminal, taken back for whatever is printed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from encamp.cli.patience import CLEAR_LINE, PATIENCE
from encamp.cli.tables import some
from encamp.model.command import CommandRecord

EVERY = 1.0
"""Seconds after which the line is drawn anew."""


class Standing:
    """Programs that read standard error, and those who asked for silence, are told nothing."""

    def __init__(self, records: Iterable[CommandRecord]) -> None:
        self._hosts = {record.id: record.host for record in records}
        self._sent = len(self._hosts)
        self._began = time.monotonic()
        self._shown = False

    @asynccontextmanager
    async def shown(self, allowed: Callable[[], bool]) -> AsyncIterator[None]:
        """While this is on; but only where a line may stand that is taken back later."""
        if not sys.stderr.isatty() or os.environ.get("ENCAMP_QUIET"):
            yield
            return
        drawing = asyncio.create_task(self._draw(allowed))
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.wait([drawing])
            self.take_back()

    def over(self, id: str) -> None:
        self._hosts.pop(id, None)

    def take_back(self) -> None:
        if self._shown:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()
            self._shown = False

    async def _draw(self, allowed: Callable[[], bool]) -> None:
        await asyncio.sleep(PATIENCE)
        while True:
            if allowed():
                # What goes on in a second line could not be taken back.
                width = shutil.get_terminal_size().columns - 1
                sys.stderr.write(CLEAR_LINE + f"encamp: {self._sentence()}"[:width])
                sys.stderr.flush()
                self._shown = True
            await asyncio.sleep(EVERY)

    def _sentence(self) -> str:
        seconds = f"{time.monotonic() - self._began:.0f} s"
        ended = self._sent - len(self._hosts)
        before = f"{ended} of {self._sent} are over, waiting" if self._sent > 1 else "Waiting"
        return f"{before} for {some(list(self._hosts.values()))} ({seconds})"
