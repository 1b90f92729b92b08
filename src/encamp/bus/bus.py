"""What a bus promises. The one in process and the one over NATS keep the same promises.

A participant has a name, which nobody else can speak under, and may be in groups. It may have a
rank: then it takes the name from one of a lower rank, to whom nobody listens any more.

- `send` and `request` reach one participant. They return when it has taken the message, so that
  whoever sends faster than the other works waits, and nothing piles up without bound. What is sent
  from one participant to another arrives in order, and once while both live. What has been taken
  and not yet handled is gone with whoever took it: if that matters, ask for an answer.
- `multicast` reaches all others who are in a group at that moment, in order, at most once: whoever
  has no room left for it goes without.
- Whoever watches is told who joined, who left with a goodbye, and who was lost without.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from encamp.model.errors import EncampError
from encamp.model.host import Presence

LARGEST_MESSAGE = 1_000_000
"""Bytes of a message's body. What is larger is refused where it is sent."""


class Message(msgspec.Struct, frozen=True):
    sender: str
    """Vouched for by the bus."""
    body: bytes
    group: str = ""
    """The group it was sent to; empty: to this participant."""
    rank: int = 0
    """The sender's; 0: it has none, or it was sent to a group."""


class Membership(msgspec.Struct, frozen=True):
    """Somebody came or went."""

    name: str
    presence: Presence
    groups: tuple[str, ...] = ()
    reason: str = ""
    """A sentence's end, such as "nothing was heard of it for 6 seconds"."""


Handler = Callable[[Message], Awaitable[bytes | None]]
"""Takes a message; what it returns answers a request. Messages of one sender are handled one after
the other. An `EncampError` that it raises reaches whoever sent a request; anything else it raises
is logged, and the sender of a request is told that there was a mistake."""

Watcher = Callable[[Membership], None]


class Bus(Protocol):
    """One participant's connection. Opened by `async with`; leaving says goodbye."""

    name: str

    @property
    def is_up(self) -> bool:
        """Does it reach anybody now?"""

    async def send(self, to: str, body: bytes, *, timeout: float = 10.0) -> None:
        """Returns when the participant has taken the message (not: handled it). Raises
        `EncampError` (UNREACHABLE, transient) if it is not there or does not take it in time."""

    async def request(self, to: str, body: bytes, *, timeout: float = 10.0) -> bytes:
        """Like `send`, and waits for what the handler there returns."""

    async def multicast(self, group: str, body: bytes) -> None: ...

    async def watch(self, watcher: Watcher) -> None:
        """Be told of everybody else who is there, and from now on of who comes and goes. Once.
        Over NATS, those who are there already are told of within `presence.interval`."""

    async def ended(self) -> EncampError:
        """Waits until the bus is of no use any more for good, and says why: its credential was
        revoked, or another participant goes under its name. A daemon has nothing left to do."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
