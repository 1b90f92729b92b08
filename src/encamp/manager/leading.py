"""Taking turns at leading a site: a manager stands by until it may lead, leads until it may not any
more, and stands by again.

What it knows when it begins is what is in the store, and what agents tell it: so nothing of a
former turn is kept, and taking over from another manager is the same as being started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from encamp import __version__
from encamp.bus.bus import Bus, Handler
from encamp.bus.reaching import Reach
from encamp.bus.refusals import OutrankedError
from encamp.door.frames import Item
from encamp.door.peer import Peer
from encamp.door.questions import (
    AskEvents,
    AskStatus,
    AskTriggerLog,
    FollowCommands,
    FollowRequest,
    Question,
    Status,
)
from encamp.door.server import Door
from encamp.door.socket_file import listening
from encamp.home import Home
from encamp.manager.answering import answer_once_more
from encamp.manager.daemon import Manager, Opening
from encamp.manager.led_bus import LedBus
from encamp.manager.passing_on import Answering, UnreachedError, pass_on
from encamp.manager.rights import asker
from encamp.manager.store.store import Store
from encamp.manager.store.tenure import SupersededError, Tenure, superseded
from encamp.model.errors import Code, EncampError
from encamp.model.leader import Leadership
from encamp.model.site import MANAGER, Site

if TYPE_CHECKING:
    from encamp.manager.api.standby import StandingBy

log = logging.getLogger(__name__)

SHORTEST = 3.0
"""Seconds that a tenure lasts at least, however soon agents are taken for lost."""
AT_ONCE = 0.5
"""Seconds in which a store that is free is ours."""
LOOK = 0.5
"""Seconds between two looks at whether the bus can be reached."""

UNKNOWN = Leadership(trouble="It has not answered yet.")

RankedOpening = Callable[[str, Sequence[str], Handler, int], Bus]
"""Opens the bus under a name, in groups, with a rank."""


class HandedOverError(SupersededError):
    """We could have gone on leading, and another can do it better."""


class Leading:
    def __init__(
        self,
        site: Site,
        home: Home,
        door: Path,
        opening: RankedOpening,
        begin: Callable[[Opening], Manager],
        say: Callable[[str], None] = log.warning,
    ) -> None:
        """`begin`: makes a manager that knows nothing yet. `say`: tells whoever started it how its
        turns change."""
        self.manager: Manager | None = None
        """While it leads."""
        self._site = site
        self._home = home
        self._door = door
        self._opening = opening
        self._begin = begin
        self._say = say
        self._host = site.host or os.uname().nodename
        self._instance = ""
        self._since = 0.0
        self._found = UNKNOWN
        self._seen = asyncio.Event()
        self._reach: Reach | None = None
        self._stands_by = False
        self._port: StandingBy | None = None
        self._gives_way = 0
        """The epoch that was just handed over: another is to have its place first."""

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Until cancelled, or until it is of no use any more. `ready`: called whenever it leads."""
        async with AsyncExitStack() as held:
            listener = held.enter_context(listening(self._door))
            if self._site.api is not None:
                from encamp.manager.api.standby import StandingBy

                # Open from the beginning to the end: who calls while this one gets ready to
                # lead, or does not lead any more, is told so.
                self._port = StandingBy(self._site.api, self._sentence, self._leads_soon)
                await held.enter_async_context(self._port)
            while True:
                try:
                    store = await self._turn(listener)
                    await self._lead(store, listener, ready)
                except SupersededError as error:
                    self._say(f"This manager does not lead any more. {error.sentence}")

    def reload(self) -> None:
        """Have the site's files read again. Whoever stands by reads them when it leads."""
        if self.manager is not None:
            self.manager.reload()

    # ── standing by ──────────────────────────────────────────────────────────────────────────────

    async def _turn(self, listener: socket.socket) -> Store:
        """The store, when it is ours."""
        loop = asyncio.get_running_loop()

        def told(found: Leadership) -> None:
            """In the store's thread."""
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(self._see, tenure, found)

        self._seen.clear()
        self._found = UNKNOWN
        seconds = max(SHORTEST, self._site.presence.silence)
        tenure = Tenure(
            uuid.uuid4().hex, self._host, seconds=seconds, told=told, gives_way=self._gives_way
        )
        self._gives_way = 0
        self._instance = tenure.instance
        store = Store.open(self._site.store, self._home.prepare(), tenure=tenure)
        opening = asyncio.create_task(store)
        seen = asyncio.create_task(self._seen.wait())
        try:
            await asyncio.wait(
                {opening, seen}, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED
            )
            if not opening.done():
                await self._stand_by(opening, listener)
            return await opening
        except BaseException:
            opening.cancel()
            [came_of_it] = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(came_of_it, Store):
                await came_of_it.close()
            raise
        finally:
            seen.cancel()

    async def _stand_by(self, opening: asyncio.Task[Store], listener: socket.socket) -> None:
        async with AsyncExitStack() as held:
            if self._site.bus:
                self._reach = await held.enter_async_context(Reach(self._site, MANAGER))
            await held.enter_async_context(Door(self._door, self._answer, listener))
            self._stands_by = True
            try:
                if self._found is not UNKNOWN:
                    self._say(self._sentence())
                await asyncio.wait({opening})
            finally:
                self._stands_by = False
        self._reach = None

    def _see(self, tenure: Tenure, found: Leadership) -> None:
        former, self._found = self._found, found
        tenure.trouble = self._reach.trouble if self._reach is not None else ""
        self._since = tenure.since
        if self._stands_by and (former is UNKNOWN or _differ(former, found)):
            self._say(self._sentence())
        self._seen.set()

    def _leads_soon(self) -> bool:
        return not self._stands_by

    def _sentence(self) -> str:
        if self._leads_soon():
            return "This manager is about to lead the site, and does not answer yet."
        if self._found.trouble:
            return f"This manager waits for its store. {self._found.trouble}"
        leader = self._found.leader
        if leader is None:
            return "This manager stands by: another one is about to lead the site."
        return (
            f"This manager stands by: the one on {leader.host} leads the site since"
            f" {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(leader.since))}."
        )

    async def _answer(self, peer: Peer, question: Question) -> AsyncIterator[msgspec.Struct]:
        if not isinstance(question, AskStatus):
            async with aclosing(self._pass_on(peer, question)) as parts:
                async for part in parts:
                    yield part
            return
        yield Status(
            site=self._site.name,
            version=__version__,
            instance=self._instance,
            started=self._since,
            hosts={},
            machines=0,
            commands_under_way=0,
            triggers=0,
            store=self._found.trouble,
            messages=0,
            leads=False,
            leadership=self._found,
            asker=asker(peer),
        )

    async def _pass_on(self, peer: Peer, question: Question) -> AsyncGenerator[Item, None]:
        """To the leader; while another takes over, that is waited for."""
        reach = self._reach
        patience = 2 * max(SHORTEST, self._site.presence.silence)
        try:
            if reach is None:
                raise UnreachedError(Code.UNREACHABLE, "There is no bus.", transient=True)
            async with aclosing(pass_on(reach, peer, question, patience)) as parts:
                async for part in parts:
                    yield part
        except UnreachedError as error:
            if _follows(question):
                # Whoever has the time for that waits for the next one.
                raise ConnectionError(error.sentence) from error
            leader = self._found.leader
            raise EncampError(
                Code.UNREACHABLE,
                self._sentence(),
                "'encamp status' tells more."
                if leader is None or self._found.trouble
                else f"Ask on {leader.host}, which cannot be reached from here.",
                transient=True,
                detail=error.sentence,
            ) from error

    # ── leading ──────────────────────────────────────────────────────────────────────────────────

    async def _lead(
        self, store: Store, listener: socket.socket, ready: Callable[[], None] | None
    ) -> None:
        """Raises SupersededError when it is over, and whatever else ends a manager."""
        buses: list[LedBus] = []
        answering = Answering(lambda peer, question: answer_once_more(manager, peer, question))

        def open_bus(name: str, groups: Sequence[str], handler: Handler) -> Bus:
            rank = store.tenure.rank
            opening = self._opening
            bus = LedBus(
                store.tenure,
                handler,
                answering.take,
                lambda take: opening(name, groups, take, rank),
            )
            buses.append(bus)
            return bus

        async with store:
            manager = self.manager = self._begin(open_bus)

            def begun() -> None:
                _spare_what_stays()
                if ready is not None:
                    ready()

            work = asyncio.create_task(manager.run(store, begun, listener, self._port))
            ends = [
                asyncio.create_task(store.superseded()),
                asyncio.create_task(self._until_unheard(store.tenure, buses)),
            ]
            try:
                await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    if end.done():
                        error = end.result()
                        if isinstance(error, HandedOverError):
                            self._gives_way = store.tenure.epoch
                        raise error
                await work
            except OutrankedError as error:
                store.abandon(superseded())
                raise superseded() from error
            except BaseExceptionGroup as group:
                if group.subgroup((OutrankedError, SupersededError)) is not None:
                    store.abandon(superseded())
                    raise superseded() from group
                raise
            finally:
                self.manager = None
                await answering.close()
                await _end(work, *ends)

    async def _until_unheard(self, tenure: Tenure, buses: Sequence[LedBus]) -> HandedOverError:
        """Waits until agents cannot be reached from here, and can from where another stands by.
        What is read from the store before takes its time, here as there."""
        loop = asyncio.get_running_loop()
        up = loop.time()
        while True:
            await asyncio.sleep(LOOK)
            if all(bus.is_up or not bus.was_tried for bus in buses):
                up = loop.time()
            ready = [other for other in tenure.standing_by if not other.trouble]
            if ready and loop.time() - up > tenure.seconds:
                return HandedOverError(
                    Code.UNREACHABLE,
                    f"It has not reached the bus for {tenure.seconds:g} seconds; the one on"
                    f" {ready[0].host} can.",
                    transient=True,
                )


def _follows(question: Question) -> bool:
    """Is it answered as long as there is something to tell?"""
    if isinstance(question, AskEvents | AskTriggerLog):
        return question.follow
    return isinstance(question, FollowCommands | FollowRequest)


def _differ(former: Leadership, found: Leadership) -> bool:
    """In what whoever reads the log should know."""
    return (former.epoch, bool(former.trouble)) != (found.epoch, bool(found.trouble))


async def _end(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _spare_what_stays() -> None:
    """Programs that were loaded stay. If the collector of garbage looked at them again and again,
    everything would stand still meanwhile, for a tenth of a second each time."""
    gc.collect()
    gc.freeze()
