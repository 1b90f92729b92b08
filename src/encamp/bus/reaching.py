"""Reaching the manager's bus without being the manager: one that stands by knows whether it could
lead, and can ask the one that does."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from encamp.bus.bus import Message
from encamp.bus.nats import NatsBus
from encamp.model.errors import Code, EncampError
from encamp.model.site import Site


class Reach:
    """While `async with` lasts: a connection that shows the participant's credential and does not
    take its name. It comes about by itself, sooner or later."""

    def __init__(self, site: Site, name: str) -> None:
        self._servers = ", ".join(site.bus)
        self._name = name
        self._bus = NatsBus(site, name, (), _nobody, only_asks=True)
        self._refused: EncampError | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_open = False
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def trouble(self) -> str:
        """Why it could not be on the bus; empty: it could."""
        if self._refused is not None:
            return self._refused.sentence
        if self._is_open and self._bus.is_up:
            return ""
        return f"No server of the bus answers: {self._servers}."

    async def request(self, body: bytes, *, timeout: float = 10.0) -> bytes:
        """Of whoever has the name."""
        if not self._is_open:
            raise EncampError(Code.UNREACHABLE, self.trouble, transient=True)
        return await self._bus.request(self._name, body, timeout=timeout)

    def tell(self, body: bytes) -> None:
        """The same, without waiting for anything."""
        task = asyncio.create_task(self._tell(body))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, body: bytes) -> None:
        with contextlib.suppress(EncampError):
            await self.request(body)

    async def _open(self) -> None:
        try:
            await self._bus.__aenter__()
            self._is_open = True
            self._refused = await self._bus.ended()
        except EncampError as error:
            self._refused = error

    async def __aenter__(self) -> Self:
        self._opening = asyncio.create_task(self._open(), name="reaching the bus")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tasks = [*self._telling, *([self._opening] if self._opening is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._is_open:
            self._is_open = False
            await self._bus.__aexit__(kind, error, traceback)


async def _nobody(message: Message) -> None:
    """Nothing is listened to."""
