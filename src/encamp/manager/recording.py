"""Recording what happens: into the store, and to whoever follows."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from encamp.core.actions import Judged
from encamp.core.picture import Seen
from encamp.manager.store.store import Store
from encamp.model.errors import EncampError
from encamp.model.event import Event, EventKind
from encamp.model.host import Host
from encamp.model.property import Value

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds in which the same trouble with the same host is told once."""

MACHINES = "machines of "
"""With a host's name: the key in the store of what was told of its machines."""

FOLLOWED = 1000
"""Entries of the triggers' log that a follower may be behind."""

LOUD = {
    EventKind.HOST_LOST,
    EventKind.HOST_REFUSED,
    EventKind.HOST_TROUBLE,
    EventKind.TRIGGERS_REFUSED,
    EventKind.TRIGGER_STOPPED,
    EventKind.STORE_TROUBLE,
    EventKind.STORE_RESTORED,
}
"""What an administrator should see without looking for it."""


PLENTIFUL = {
    EventKind.PROPERTY_FAILED,
    EventKind.PROPERTY_RECOVERED,
    EventKind.MACHINE_APPEARED,
    EventKind.MACHINE_CHANGED,
    EventKind.MACHINE_GONE,
}
"""Of these a host can make as many as it likes; of each host"""
MOST_EVENTS = 2000
"""are recorded in a minute."""


class Signal:
    """Wakes everybody who waits for it."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None
        self.count = 0
        """How often it was set."""

    async def wait(self, since: int | None = None) -> None:
        """Until it is set; not at all, if it was since it had been set so often."""
        if since is not None and since != self.count:
            return
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiting)

    def set(self) -> None:
        self.count += 1
        if self._waiting is not None:
            self._waiting.set_result(None)
            self._waiting = None


class Recorder:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._events: list[Event] = []
        self._judged: list[Judged] = []
        self._hosts: dict[str, Host] = {}
        self._machines: dict[str, dict[str, Seen]] = {}
        self._told: dict[tuple[str, str], float] = {}
        self._counts: Counter[str] = Counter()
        """Such events of each host in this minute."""
        self._minute = 0
        self._wake = asyncio.Event()
        self.news = Signal()
        """Something was recorded."""
        self._log: deque[Judged] = deque(maxlen=FOLLOWED)
        self.logged = 0
        """Entries of the triggers' log since we began."""

    def events(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind not in PLENTIFUL or self._has_room(event):
                self._record(event)
        self._wake.set()

    def _record(self, event: Event) -> None:
        log.log(logging.WARNING if event.kind in LOUD else logging.INFO, "%s", event.sentence)
        self._events.append(event)

    def _has_room(self, event: Event) -> bool:
        """A host whose machines come and go by the thousand does not fill the store with it."""
        minute = int(event.at // PATIENCE)
        if minute != self._minute:
            self._minute, former, self._counts = minute, self._counts, Counter()
            for host, count in former.items():
                if count > MOST_EVENTS:
                    left_out = count - MOST_EVENTS
                    sentence = (
                        f"{left_out} events of host {host} were left out: there were too many."
                    )
                    self._record(
                        Event(
                            at=event.at, kind=EventKind.HOST_TROUBLE, sentence=sentence, host=host
                        )
                    )
        self._counts[event.host] += 1
        return self._counts[event.host] <= MOST_EVENTS

    def event(
        self,
        kind: EventKind,
        sentence: str,
        host: str = "",
        subject: str = "",
        owner: str | None = None,
    ) -> None:
        """`owner`: whose business it is, as that of a `Judged`."""
        event = Event(
            at=time.time(),
            kind=kind,
            sentence=sentence,
            host=host,
            subject=subject,
            facts=whose(owner),
        )
        self.events([event])

    def trouble(self, kind: EventKind, sentence: str, host: str) -> None:
        """The same as an event, but whoever makes trouble all the time is told of now and then."""
        now = time.time()
        for known, since in list(self._told.items()):
            if now - since >= PATIENCE:
                del self._told[known]
        if (host, kind.value) not in self._told:
            self._told[host, kind.value] = now
            self.event(kind, sentence, host)

    def judged(self, entries: Iterable[Judged]) -> None:
        self._judged += entries
        self._wake.set()

    def judged_since(self, logged: int) -> list[Judged]:
        """The entries of the triggers' log after so many; those that are kept for followers."""
        behind = min(self.logged - logged, len(self._log))
        return list(self._log)[len(self._log) - behind :] if behind > 0 else []

    async def machines_before(self, host: str) -> dict[str, Seen]:
        """What a former manager told of a host's machines."""
        kept = await self._store.kept(f"{MACHINES}{host}")
        return {} if kept is None else msgspec.msgpack.decode(kept, type=dict[str, Seen])

    def host(self, host: Host) -> None:
        """Remember a host, without what it reads."""
        self._hosts[host.name] = host
        self._wake.set()

    def machines(self, host: str, seen: dict[str, Seen]) -> None:
        """Remember which machines were told of, so that after a restart only news is."""
        self._machines[host] = seen
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled; then what is left."""
        try:
            while True:
                await self._wake.wait()
                await self._write()
        finally:
            await self._write()

    async def _write(self) -> None:
        self._wake.clear()
        events, self._events = self._events, []
        judged, self._judged = self._judged, []
        hosts, self._hosts = self._hosts, {}
        machines, self._machines = self._machines, {}
        try:
            if events:
                await self._store.add_events(events)
            if judged:
                await self._store.add_judged(judged)
                self._log += judged
                self.logged += len(judged)
            for host in hosts.values():
                await self._store.save_host(host)
            for name, seen in machines.items():
                await self._store.keep(f"{MACHINES}{name}", msgspec.msgpack.encode(seen))
        except EncampError as error:
            log.warning("%s", error)
        self.news.set()


def whose(owner: str | None) -> dict[str, Value]:
    """How an event tells whose it is; None: only the administrators'."""
    return {} if owner is None else {"owner": owner}
