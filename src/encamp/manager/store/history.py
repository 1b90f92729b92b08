"""What happened: events, and the triggers' log. While the store is in trouble, they wait in
memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial

import msgspec

from encamp.core.actions import Judged
from encamp.manager.store.documents import decoded, key, lenient_document
from encamp.manager.store.log import Entry, Log
from encamp.manager.store.part import MOST, Part, page_size
from encamp.model.event import Event

LARGEST_NUMBER = 2**63 - 1

EVENTS = msgspec.json.Decoder(Event)
JUDGED = msgspec.json.Decoder(Judged)


class History(Part):
    async def add_events(self, events: Sequence[Event]) -> list[Event]:
        """With their numbers. While the store is in trouble they wait in memory; those for which
        there is no room there get the number 0."""
        log = self._backlog.events
        numbers = [
            await self._add(log, event.at, event.host, lenient_document(event)) for event in events
        ]
        await self._write_backlog(log)
        return [
            msgspec.structs.replace(event, number=number)
            for event, number in zip(events, numbers, strict=True)
        ]

    async def events(
        self, since: int = 0, last: int | None = None, hosts: Collection[str] = ()
    ) -> list[Event]:
        """Those after number `since`, or the latest of them; the oldest first."""
        found = await self._entries(self._backlog.events, hosts, since, last)
        return [
            msgspec.structs.replace(event, number=number)
            for number, event in decoded(EVENTS, _documents(found))
        ]

    async def add_judged(self, entries: Sequence[Judged]) -> None:
        """Like events, they wait in memory while the store is in trouble."""
        log = self._backlog.judged
        for entry in entries:
            await self._add(log, entry.at, entry.trigger, lenient_document(entry))
        await self._write_backlog(log)

    async def judged(self, name: str = "", last: int = 100) -> list[Judged]:
        """The latest entries of one trigger's log, or of all; the oldest first."""
        found = await self._entries(self._backlog.judged, (name,) if name else (), 0, last)
        return [entry for _, entry in decoded(JUDGED, _documents(found))]

    async def _add(self, log: Log, at: float, name: str, data: bytes) -> int:
        if not log.has_room(len(data)) and not self._worker.trouble:
            await self._write_backlog(log)
        return log.add(at if math.isfinite(at) else 0.0, key(name), data)

    async def _entries(
        self, log: Log, names: Collection[str], since: int, last: int | None
    ) -> list[Entry]:
        """Page by page, so that others get a turn in between."""
        keys = frozenset(key(name) for name in names)
        since = max(0, min(since, LARGEST_NUMBER))
        if last is None:
            look = partial(log.newer, names=keys)
        else:
            look = partial(log.older, names=keys, since=since)
        most = MOST if last is None else max(0, min(last, MOST))
        found: list[Entry] = []
        place: int | None = since if last is None else None
        size = page_size(keys, most)
        while len(found) < most:
            page = await self._worker.read(partial(look, place=place, most=size))
            found += [entry for entry in page if not keys or entry.name in keys]
            if len(page) < size:
                break
            place = page[-1].number
        found = found[:most]
        return found if last is None else found[::-1]


def _documents(entries: Sequence[Entry]) -> list[tuple[int, bytes]]:
    return [(entry.number, entry.document) for entry in entries]
