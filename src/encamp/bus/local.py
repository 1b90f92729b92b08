"""The bus in one process: manager and agent of a machine that is a site by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from encamp.bus import refusals
from encamp.bus.bus import Bus, Handler, Membership, Message, Watcher
from encamp.bus.inbox import Inbox, Outcome
from encamp.model.errors import EncampError
from encamp.model.host import Presence

log = logging.getLogger(__name__)


class LocalHub:
    """Where the participants of one process meet."""

    def __init__(self) -> None:
        self.present: dict[str, LocalBus] = {}
        self.watchers: dict[str, Watcher] = {}

    def participant(self, name: str, groups: Sequence[str], handler: Handler) -> Bus:
        return LocalBus(self, name, tuple(groups), handler)

    def tell(self, membership: Membership) -> None:
        for name, watcher in list(self.watchers.items()):
            if name != membership.name:
                watcher(membership)


class LocalBus:
    def __init__(self, hub: LocalHub, name: str, groups: tuple[str, ...], handler: Handler) -> None:
        self.name = name
        self.groups = groups
        self.inbox = Inbox(name, handler)
        self._hub = hub
        self._turns: dict[str, asyncio.Lock] = {}
        """One message at a time to each participant, so that they arrive in order."""
        self._is_open = False

    async def __aenter__(self) -> Self:
        if self.name in self._hub.present:
            raise refusals.name_taken(self.name)
        self._is_open = True
        self._hub.present[self.name] = self
        self._hub.tell(Membership(self.name, Presence.JOINED, self.groups))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        self._hub.watchers.pop(self.name, None)
        del self._hub.present[self.name]
        await self.inbox.close()
        self._hub.tell(Membership(self.name, Presence.LEFT, self.groups, reason="it said goodbye"))

    @property
    def is_up(self) -> bool:
        return self._is_open

    async def send(self, to: str, body: bytes, *, timeout: float = 10.0) -> None:
        refusals.check_size(body)
        try:
            async with asyncio.timeout(timeout):
                await self._deliver(to, body, None)
        except TimeoutError:
            raise refusals.not_taken(to, timeout) from None

    async def request(self, to: str, body: bytes, *, timeout: float = 10.0) -> bytes:
        refusals.check_size(body)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        taken = False
        try:
            async with asyncio.timeout(timeout):
                await self._deliver(to, body, answer)
                taken = True
                outcome = await answer
        except TimeoutError:
            late = refusals.not_answered if taken else refusals.not_taken
            raise late(to, timeout) from None
        if isinstance(outcome, EncampError):
            raise outcome
        return outcome or b""

    async def multicast(self, group: str, body: bytes) -> None:
        refusals.check_size(body)
        self._check_open()
        message = Message(self.name, body, group)
        for other in list(self._hub.present.values()):
            if group not in other.groups or other is self:
                continue
            if other.inbox.has_room(self.name, len(body)):
                other.inbox.put(message)
            else:
                log.warning("'%s' has no room for a message to '%s'", other.name, group)

    async def watch(self, watcher: Watcher) -> None:
        self._check_open()
        self._hub.watchers[self.name] = watcher
        for other in list(self._hub.present.values()):
            if other is not self:
                watcher(Membership(other.name, Presence.JOINED, other.groups))

    async def ended(self) -> EncampError:
        """In one process nothing comes between."""
        never: asyncio.Future[EncampError] = asyncio.get_running_loop().create_future()
        return await never

    async def _deliver(self, to: str, body: bytes, answer: asyncio.Future[Outcome] | None) -> None:
        """Returns when the message has been taken."""

        def settle(outcome: Outcome) -> None:
            if answer is not None and not answer.done():
                answer.set_result(outcome)

        turn = self._turns.get(to)
        if turn is None:
            turn = self._turns[to] = asyncio.Lock()
        async with turn:
            while True:
                self._check_open()
                other = self._hub.present.get(to)
                if other is None:
                    raise refusals.not_there(to)
                if other.inbox.has_room(self.name, len(body)):
                    other.inbox.put(Message(self.name, body), settle if answer else None)
                    return
                await self._wait_for_room(other, len(body))

    async def _wait_for_room(self, other: LocalBus, size: int) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if not room.done():
                room.set_result(None)

        other.inbox.when_room(self.name, size, tell)
        try:
            await room
        finally:
            other.inbox.forget(self.name)

    def _check_open(self) -> None:
        if not self._is_open:
            raise refusals.closed(self.name)
