"""Who follows what: commands, or requests. Nothing is missed between two looks, however long a look
takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Follower:
    """Collects which of its commands have got on."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self._fresh = set(wanted)
        self._wake = asyncio.Event()
        self._wake.set()

    def tell(self, command_id: str) -> None:
        self._fresh.add(command_id)
        self._wake.set()

    async def next(self) -> list[str]:
        """Those that have got on since this was last asked; at first, all of them."""
        await self._wake.wait()
        self._wake.clear()
        fresh, self._fresh = sorted(self._fresh), set()
        return fresh


class Followers:
    def __init__(self) -> None:
        self._of: dict[str, set[Follower]] = {}

    def tell(self, command_id: str) -> None:
        """A command, or its output, has got on."""
        for follower in self._of.get(command_id, ()):
            follower.tell(command_id)

    def follows(self, command_id: str) -> bool:
        """Does anybody?"""
        return command_id in self._of

    @contextmanager
    def follow(self, wanted: Iterable[str]) -> Iterator[Follower]:
        ids = set(wanted)
        follower = Follower(ids)
        for command_id in ids:
            self._of.setdefault(command_id, set()).add(follower)
        try:
            yield follower
        finally:
            for command_id in ids:
                self._of[command_id].discard(follower)
                if not self._of[command_id]:
                    del self._of[command_id]
