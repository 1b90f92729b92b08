"""The bus of a manager that leads: when it does not any more, it neither speaks nor listens.

That it is known to others takes a moment. Until they know, a manager that was stuck or cut off and
goes on must do nothing for which it does not lead any more: its own clock tells it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from encamp.bus.bus import Bus, Handler, Message, Watcher
from encamp.manager.store.tenure import Tenure, not_leading
from encamp.model.errors import EncampError


class LedBus:
    def __init__(
        self,
        tenure: Tenure,
        handler: Handler,
        passed_on: Handler,
        opening: Callable[[Handler], Bus],
    ) -> None:
        """`passed_on`: takes what managers say that stand by."""
        self._tenure = tenure
        self._handler = handler
        self._passed_on = passed_on
        self._bus = opening(self._take)
        self._is_open = False
        self.was_tried = False
        """Until then, that it is not up means nothing."""
        self.name = self._bus.name

    @property
    def is_up(self) -> bool:
        return self._is_open and self._bus.is_up

    def _check(self) -> None:
        if not self._tenure.holds():
            raise not_leading()

    async def _take(self, message: Message) -> bytes | None:
        self._check()
        taking = self._passed_on if message.sender == self.name else self._handler
        answer = await taking(message)
        # It may have waited long for something.
        self._check()
        return answer

    async def send(self, to: str, body: bytes, *, timeout: float = 10.0) -> None:
        self._check()
        await self._bus.send(to, body, timeout=timeout)

    async def request(self, to: str, body: bytes, *, timeout: float = 10.0) -> bytes:
        self._check()
        return await self._bus.request(to, body, timeout=timeout)

    async def multicast(self, group: str, body: bytes) -> None:
        self._check()
        await self._bus.multicast(group, body)

    async def watch(self, watcher: Watcher) -> None:
        await self._bus.watch(watcher)

    async def ended(self) -> EncampError:
        return await self._bus.ended()

    async def __aenter__(self) -> Self:
        self.was_tried = True
        await self._bus.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        await self._bus.__aexit__(kind, error, traceback)
