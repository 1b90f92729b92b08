"""Somewhere to meet: in one process, or on a site's NATS servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from encamp.bus.bus import Bus, Handler, Membership, Message
from encamp.bus.local import LocalHub
from encamp.bus.opening import open_bus
from tests.bus.nats_server import NatsSite


class Meeting(Protocol):
    def join(self, name: str, groups: Sequence[str] = (), handler: Handler | None = None) -> Bus:
        """To be opened by `async with`."""


class LocalMeeting:
    def __init__(self) -> None:
        self.hub = LocalHub()

    def join(self, name: str, groups: Sequence[str] = (), handler: Handler | None = None) -> Bus:
        return self.hub.participant(name, groups, handler or ignore)


class NatsMeeting:
    def __init__(self, site: NatsSite) -> None:
        self.site = site

    def join(self, name: str, groups: Sequence[str] = (), handler: Handler | None = None) -> Bus:
        member = self.site.member(name, groups)
        return open_bus(member, name, groups, handler or ignore, patience=10)


async def ignore(message: Message) -> None:
    return None


class Kept:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def of(self, sender: str) -> list[bytes]:
        return [message.body for message in self.messages if message.sender == sender]


class Watched:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Membership] = []

    def __call__(self, membership: Membership) -> None:
        self.told.append(membership)

    def of(self, name: str) -> list[str]:
        return [told.presence.value for told in self.told if told.name == name]

    def reason(self, name: str) -> str:
        return [told.reason for told in self.told if told.name == name][-1]


async def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)
