"""The bus of a site: participants of many machines, over NATS."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Self

from encamp.bus import refusals, subjects
from encamp.bus.bus import Handler, Message, Watcher
from encamp.bus.connection import Connection
from encamp.bus.frames import (
    ALIVE,
    ANSWER,
    LEAVING,
    LIFE,
    MESSAGE,
    UNRANKED,
    Kind,
    Reply,
)
from encamp.bus.inbox import Inbox
from encamp.bus.incoming import Incoming
from encamp.bus.link import Access
from encamp.bus.naming import Naming
from encamp.bus.outgoing import Outgoing
from encamp.bus.watching import Watch
from encamp.model.errors import Code, EncampError
from encamp.model.site import MANAGER, Site

MOST_ASKERS = 16
"""Runs of others with our name that are remembered."""

log = logging.getLogger(__name__)


def credential_of(site: Site, name: str) -> str | None:
    """The file with a participant's credential: manager and agent of one host share a site.yaml."""
    return site.credential.replace("{name}", name) if site.credential else None


class NatsBus:
    def __init__(
        self,
        site: Site,
        name: str,
        groups: Sequence[str],
        handler: Handler,
        *,
        patience: float | None = None,
        rank: int = 0,
        only_asks: bool = False,
    ) -> None:
        """`only_asks`: it is not there for others, and the name may be another's, which it can make
        requests of."""
        self.name = name
        self._only_asks = only_asks
        self.groups = tuple(groups)
        self._site = site
        self._patience = patience
        self._run = rank or UNRANKED | secrets.randbits(63)
        self._inbox = Inbox(name, handler)
        self._incoming: dict[bytes, Incoming] = {}
        """By the subject that their messages arrive under."""
        self._askers: dict[int, Incoming] = {}
        """Runs of others with our name that only ask."""
        self._outgoing: dict[str, Outgoing] = {}
        self._names: dict[bytes, str] = {}
        self._life = LIFE.pack(ALIVE, self._run) + " ".join(self.groups).encode()
        self._here = subjects.here(name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: Watch | None = None
        self._is_open = False
        self._naming = Naming(
            name,
            self._run,
            probe=lambda seconds, kind: self._to(name).probe(seconds, kind),
            publish=lambda data: self._connection.publish(subjects.answer(name, name), data),
            stop=self._stop,
        )
        self._connection: Connection
        self._end: asyncio.Future[EncampError]

    # ── opening and closing ──────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        site = self._site
        self._connection = Connection(
            site.bus,
            Access(self.name, credential_of(site, self.name), site.authority),
            on_up=self._reconnected,
            on_refused=self._stop,
            presence=site.presence,
        )
        self._end = asyncio.get_running_loop().create_future()
        answers: tuple[str, ...] = (subjects.answers_for(self.name),)
        if self._only_asks:
            answers = subjects.answers_of(self.name, self.name)
        for subject in answers:
            await self._connection.subscribe(subject, self._take_answer)
        try:
            await self._connection.open(self._patience)
            if self._only_asks:
                self._is_open = True
                return self
            await self._naming.check()
            await self._connection.subscribe(subjects.messages_for(self.name), self._take)
            for group in self.groups:
                await self._connection.subscribe(
                    subjects.messages_for_group(group), self._take_multicast
                )
        except BaseException:
            await self._connection.close()
            raise
        self._is_open = True
        self._connection.publish(self._here, self._life)
        self._start(self._beat(), "signs of life")
        self._start(self._naming.claim(), "claim of the name")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._inbox.close()
        if not self._end.done() and not self._only_asks:
            self._connection.publish(self._here, LIFE.pack(LEAVING, self._run))
        # Where nothing arrives, there is nothing to wait for.
        await self._connection.close(flush=self.is_up)

    @property
    def is_up(self) -> bool:
        return self._connection.is_up and not (self._watch is not None and self._watch.is_cut_off)

    async def ended(self) -> EncampError:
        return await asyncio.shield(self._end)

    def _stop(self, reason: EncampError) -> None:
        if not self._end.done():
            # Whoever waits for the end says so, and need not read it twice.
            log.info("the bus has ended: %s", reason)
            self._end.set_result(reason)

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        """A participant without its signs of life, or its watch, would be there in name only."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the %s came to an unexpected end", task.get_name(), exc_info=error)
            self._stop(refusals.broken(self.name, task.get_name()))

    def _reconnected(self) -> None:
        if not self._is_open:
            return
        for outgoing in self._outgoing.values():
            outgoing.reconnected()
        if self._only_asks:
            return
        self._connection.publish(self._here, self._life)
        if self._watch is not None:
            self._watch.reconnected()
        self._start(self._naming.claim(), "claim of the name")

    # ── speaking ─────────────────────────────────────────────────────────────────────────────────

    async def send(self, to: str, body: bytes, *, timeout: float = 10.0) -> None:
        refusals.check_size(body)
        self._check_open()
        await self._to(to).deliver(Kind.SEND, body, timeout)

    async def request(self, to: str, body: bytes, *, timeout: float = 10.0) -> bytes:
        refusals.check_size(body)
        self._check_open()
        return await self._to(to).deliver(Kind.REQUEST, body, timeout)

    async def multicast(self, group: str, body: bytes) -> None:
        refusals.check_size(body)
        self._check_open()
        subject = subjects.group(group, self.name)
        await self._connection.wait_up()
        await self._connection.room()
        self._connection.publish(subject, body)

    def _to(self, name: str) -> Outgoing:
        outgoing = self._outgoing.get(name)
        if outgoing is None:
            outgoing = Outgoing(self._connection, self.name, name, self._run)
            self._outgoing[name] = outgoing
        return outgoing

    def _check_open(self) -> None:
        if self._is_open and self._end.done():
            raise self._end.result()
        if not self._is_open:
            raise refusals.closed(self.name)

    # ── listening ────────────────────────────────────────────────────────────────────────────────

    def _take(self, subject: bytes, data: bytes, headers: bytes | None) -> None:
        incoming = self._incoming.get(subject)
        if incoming is None:
            name = self._last_name(subject)
            if name == self.name:
                self._take_from_ourselves(data)
                return
            incoming = self._incoming[subject] = Incoming(
                self._connection, self._inbox, self.name, name, self._run
            )
        if self._watch is not None and len(data) >= MESSAGE.size:
            _, run, _, _ = MESSAGE.unpack_from(data)
            self._watch.notice(incoming.other, run)
        if not self._end.done():
            incoming.take(data)

    def _take_from_ourselves(self, data: bytes) -> None:
        """From one who has our credential, and asks for our name or something of us."""
        if len(data) < MESSAGE.size:
            return
        kind, run, _, _ = MESSAGE.unpack_from(data)
        if self._end.done() or run == self._run:
            return
        if kind in (Kind.PROBE, Kind.CLAIM):
            self._naming.answer(data)
        else:
            asker = self._askers.get(run)
            if asker is None:
                while len(self._askers) >= MOST_ASKERS:
                    del self._askers[next(iter(self._askers))]
                asker = self._askers[run] = Incoming(
                    self._connection, self._inbox, self.name, self.name, self._run
                )
            asker.take(data)

    def _take_answer(self, subject: bytes, data: bytes, headers: bytes | None) -> None:
        if headers is not None:
            self._take_absence(subject, headers)
            return
        if len(data) < ANSWER.size:
            return
        reply, run, number, other_run = ANSWER.unpack_from(data)
        outgoing = self._outgoing.get(self._last_name(subject))
        # Others' answers were meant for the run of this participant before.
        is_ours = run == self._run and other_run != self._run
        if is_ours and outgoing is not None and reply in _ON_THE_WIRE:
            outgoing.tell(number, Reply(reply), data[ANSWER.size :])

    def _take_absence(self, subject: bytes, headers: bytes) -> None:
        """The server says that nobody listens where a message went. The subject says which."""
        parts = subject.decode().split(".")
        if len(parts) != 5 or b" 503" not in headers[:13] or parts[3] != f"{self._run:x}":
            return
        outgoing = self._outgoing.get(subjects.name_of(parts[2]))
        if outgoing is not None:
            outgoing.tell(int(parts[4], 16), Reply.ABSENT, b"")

    def _take_multicast(self, subject: bytes, data: bytes, headers: bytes | None) -> None:
        sender = self._last_name(subject)
        if sender == self.name or self._end.done():
            return
        group = subjects.name_of(subject.split(b".")[1].decode())
        if self._inbox.has_room(sender, len(data)):
            self._inbox.put(Message(sender, data, group))
        else:
            log.warning("no room for a message of '%s' to '%s'", sender, group)

    def _last_name(self, subject: bytes) -> str:
        name = self._names.get(subject)
        if name is None:
            last = subject[subject.rindex(b".") + 1 :].decode(errors="replace")
            name = self._names[subject] = subjects.name_of(last)
        return name

    # ── presence ─────────────────────────────────────────────────────────────────────────────────

    async def _beat(self) -> None:
        """A sign of life in each interval, unless the manager has just taken something anyway."""
        loop = asyncio.get_running_loop()
        interval = self._site.presence.interval
        while not self._end.done():
            manager = self._outgoing.get(MANAGER)
            quiet = loop.time() - manager.heard if manager is not None else interval
            if quiet < interval / 2:
                await asyncio.sleep(interval - quiet)
                continue
            self._connection.publish(self._here, self._life)
            await asyncio.sleep(interval)

    async def watch(self, watcher: Watcher) -> None:
        self._check_open()
        if self._watch is not None:
            raise EncampError(Code.INTERNAL, "The bus is watched already.")
        self._watch = Watch(
            self.name,
            self._site.presence,
            watcher,
            probe=lambda name, seconds: self._to(name).probe(seconds),
            came_back=self._came_back,
            forget=self._forget,
        )
        await self._connection.subscribe(subjects.EVERYBODYS_LIFE, self._take_life)
        self._connection.publish(self._here, self._life)
        self._start(self._watch.run(), "watch of who is there")

    def _take_life(self, subject: bytes, data: bytes, headers: bytes | None) -> None:
        if self._watch is not None:
            self._watch.hear(self._last_name(subject), data)

    def _came_back(self, name: str) -> None:
        outgoing = self._outgoing.get(name)
        if outgoing is not None:
            outgoing.reconnected()

    def _forget(self, name: str) -> None:
        """Its run is over."""
        self._incoming.pop(subjects.to(self.name, name).encode(), None)
        for subject in (
            *(subjects.to(self.name, name), subjects.answer(self.name, name)),
            subjects.here(name),
        ):
            self._names.pop(subject.encode(), None)
        outgoing = self._outgoing.get(name)
        if outgoing is not None and outgoing.is_idle:
            del self._outgoing[name]


_ON_THE_WIRE = frozenset(Reply) - {Reply.ABSENT, Reply.RECONNECTED}
