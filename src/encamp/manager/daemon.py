"""The manager: the daemon that knows the site, decides, and tells agents."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from encamp.bus.bus import Bus, Handler
from encamp.bus.messages import Written
from encamp.bus.refusals import OutrankedError
from encamp.core.happenings import (
    CommandMoved,
    EnvironmentsRead,
    Forgotten,
    Happening,
    PolicyRead,
    StoodStill,
    TimePassed,
)
from encamp.core.step import Core
from encamp.door.peer import Peer
from encamp.door.questions import Question
from encamp.door.server import Door
from encamp.home import Home
from encamp.local_time import local_zone
from encamp.manager import trigger_memory
from encamp.manager.answering import answer_once_more
from encamp.manager.auditing import Auditor
from encamp.manager.carrying_out import Hands
from encamp.manager.desk import Desk, ticket_key
from encamp.manager.dispatching import Dispatcher
from encamp.manager.listening import Listener
from encamp.manager.loading import Loading
from encamp.manager.membership import Membership
from encamp.manager.notifying import Notifier
from encamp.manager.parts import RUN
from encamp.manager.querying import Querier
from encamp.manager.recording import Recorder
from encamp.manager.restoration import HINT, Restoration
from encamp.manager.store.store import Store
from encamp.manager.store.tenure import superseded
from encamp.manager.tokens import Tokens
from encamp.manager.traffic import Pace
from encamp.manager.workplace import Workplace
from encamp.model.command import CommandDefinition, CommandRecord
from encamp.model.errors import Code, EncampError
from encamp.model.event import EventKind
from encamp.model.host import Host, Presence
from encamp.model.property import PropertyDefinition, Value
from encamp.model.site import MANAGER, Api, Site

if TYPE_CHECKING:
    from encamp.manager.api.server import ApiServer, Listening

log = logging.getLogger(__name__)

REMOVED_EVERY = 1.0
"""Seconds between two looks at which hosts were removed from the site."""
STILL_LOOK = 1.0
"""Seconds between two looks at what has waited long enough, while nothing is started."""
PRUNE = 3600.0
"""Seconds between two looks at what is old enough to be forgotten."""

Opening = Callable[[str, Sequence[str], Handler], Bus]


class Manager:
    def __init__(
        self,
        site: Site,
        home: Home,
        door: Path,
        opening: Opening,
        definitions: Iterable[PropertyDefinition],
        commands: Mapping[str, CommandDefinition],
        environments: dict[str, dict[str, Value]],
        members: Membership | None = None,
    ) -> None:
        """`members`: who was given which credential, if that is known here."""
        self.site = site
        self.home = home
        self.instance = uuid.uuid4().hex
        self.started = time.time()
        self.core = Core(definitions, commands, settled=False, zone=local_zone())
        self.store: Store
        self.restoration: Restoration
        self.auditor: Auditor
        self.tokens: Tokens
        self.api: ApiServer | None = None
        """Where it answers over HTTP, if it does."""
        self.recorder: Recorder
        self.listener: Listener
        self.dispatcher: Dispatcher
        self.querier: Querier
        self.desk: Desk
        self._door = door
        self._opening = opening
        self._environments = environments
        self.members = members
        self.loading = Loading(self, members)
        self._poked = asyncio.Event()
        self._everybody_found = False
        self._hands: Hands

    async def run(
        self,
        store: Store,
        ready: Callable[[], None] | None = None,
        listener: socket.socket | None = None,
        port: Listening | None = None,
    ) -> None:
        """Until cancelled, or until the bus will not have us. `listener`: the socket of the door,
        and `port`: where HTTP is answered, if somebody keeps them."""
        self.store = store
        self.instance = store.tenure.instance
        async with AsyncExitStack() as held:
            self.recorder = Recorder(self.store)
            self.store.watch_trouble(self._store_trouble)
            self.auditor = Auditor(self.store)
            self.tokens = Tokens(self.store)
            await self.auditor.load()
            await self.tokens.load()
            held.push_async_callback(self.auditor.close)
            self.restoration = Restoration(self.store, self._stand_still)
            self.listener = Listener(
                self.instance,
                self.site.presence,
                self.core.picture,
                self.recorder,
                self.happened,
                self.members.groups_of if self.members is not None else lambda host: None,
                self._before_hello,
            )
            bus = self._opening(MANAGER, (), self.listener.take)
            pace = Pace(self.site.traffic.limit)
            hosts = self.core.picture.hosts
            self.dispatcher = Dispatcher(
                hosts,
                self.store,
                bus,
                pace,
                self._command_moved,
                self._phased,
                lambda: bool(self.restoration.sentence),
            )
            self.querier = Querier(hosts, bus, pace)
            self.listener.tell(bus, self.dispatcher, self.querier)
            notifier = Notifier(self.recorder, self.site.mail_program)
            self._hands = Hands(
                self.dispatcher,
                self.querier,
                notifier,
                self.recorder,
                self.store,
                lambda: trigger_memory.remember(self.core.engine, self.store),
                lambda wanted, request: self.desk.requests.place(wanted, request),
            )
            self.desk = Desk(
                Workplace(
                    core=self.core,
                    store=self.store,
                    dispatcher=self.dispatcher,
                    bus=bus,
                    pace=pace,
                    recorder=self.recorder,
                    happened=self.happened,
                    site=lambda: self.site,
                    ticket_key=await ticket_key(self.store),
                )
            )
            await self.restoration.load()
            if self.members is not None:
                await self.members.load(self.store)
            await self._remember_site()
            recording = asyncio.create_task(self.recorder.run())
            held.push_async_callback(_end, recording)
            held.push_async_callback(notifier.close)
            await held.enter_async_context(bus)
            held.push_async_callback(self.querier.close)
            held.push_async_callback(self.dispatcher.close)
            held.push_async_callback(self.listener.close)
            held.push_async_callback(self.desk.close)
            await held.enter_async_context(Door(self._door, self._answer, listener))
            if self.site.api is not None:
                await held.enter_async_context(self._open_api(self.site.api, port))
            await bus.watch(self.listener.membership)
            self.recorder.event(EventKind.MANAGER_STARTED, store.tenure.announcement)
            async with asyncio.TaskGroup() as tasks:
                for work in (
                    self._hands.run(),
                    self.desk.run(),
                    self._watch_clock(),
                    self._find_everybody(),
                    self.dispatcher.sweep(),
                    self._prune(),
                    self._forget_removed(),
                    self._until_ended(bus),
                ):
                    tasks.create_task(work)
                if self.site.traffic.poll is not None:
                    tasks.create_task(self.querier.poll(self.site.traffic.poll))
                if ready is not None:
                    ready()

    def _open_api(self, api: Api, port: Listening | None) -> ApiServer:
        """What it is made of is loaded only where it is wanted."""
        from encamp.manager.api.server import ApiServer

        self.api = ApiServer(self, api, port)
        return self.api

    async def _until_ended(self, bus: Bus) -> None:
        error = await bus.ended()
        if isinstance(error, OutrankedError):
            # Nobody waits for a store that is another's: it may not answer any more.
            self.store.abandon(superseded())
        raise error

    # ── beginning ────────────────────────────────────────────────────────────────────────────────

    async def _remember_site(self) -> None:
        """What the store knows from before; hosts count only once they are heard of."""
        for host in await self.store.hosts():
            self.core.picture.learn(host.properties, host.groups, host.name)
            self.core.know_commands(host.commands)
            seen = await self.recorder.machines_before(host.name)
            self.core.picture.seen_before[host.name] = seen
            if host.presence is Presence.JOINED:
                self.listener.expected[host.name] = host
            else:
                state = self.core.picture.put_host(host)
                reason = f"host {host.name} is {host.presence.value}"
                self.core.picture.lose_sight(state, reason)
        self.happened(EnvironmentsRead(self._environments))
        self.happened(PolicyRead(self.site.placement))
        await self.desk.remember()
        for record in await self.dispatcher.resume():
            if record.name != RUN:
                self.happened(CommandMoved(record))
        with contextlib.suppress(EncampError):  # It was told.
            self.load_triggers()
        await trigger_memory.recall(self.core.engine, self.store)

    async def _find_everybody(self) -> None:
        """Then the picture is whole, and triggers may look at it."""
        await self.listener.find_everybody()
        await self.restoration.over()
        self._everybody_found = True
        self.core.settled = True
        self.happened(TimePassed())
        self.loading.check_policy()
        await self.desk.successor.go_on()

    async def _before_hello(self, host: str, written: Written | None) -> None:
        await self.restoration.look(host, written)
        if self.members is not None:
            await self.members.look()

    def _stand_still(self, sentence: str) -> None:
        """Nothing is placed and no trigger is looked at: it may all have been done."""
        self.core.settled = False
        self.poke()
        self.recorder.event(EventKind.STORE_RESTORED, f"{sentence} Nothing is started. {HINT}")

    def go_on(self) -> None:
        """An administrator has dealt with a store that was put back."""
        self.recorder.event(
            EventKind.STORE_RESTORED,
            "An administrator has said what becomes of what waited in the store: things are"
            " started again.",
        )
        if self._everybody_found:
            self.core.settled = True
            self.happened(TimePassed())
        self.dispatcher.try_again()

    def reload(self) -> None:
        """Go by the site's files as they are now."""
        self.loading.reload()

    def load_triggers(self) -> None:
        """Watch the triggers that are in the site's files now."""
        self.loading.triggers()

    async def forget(self, name: str) -> Host:
        """A host that will not come back is no longer part of the site."""
        state = self.core.picture.hosts.get(name)
        if state is None:
            raise EncampError(
                Code.USAGE, f"No host of this site is '{name}'.", "'encamp hosts' lists them."
            )
        if state.record.presence is Presence.JOINED:
            raise EncampError(
                Code.WRONG_STATE,
                f"Host {name} is joined to the site.",
                f"Stop its agent first; 'encamp site remove {name}' keeps it from coming back.",
            )
        await self.store.forget_host(name)
        self.recorder.machines(name, {})
        self.happened(Forgotten(name))
        await self.dispatcher.host_forgotten(name)
        return state.record

    async def _forget_removed(self) -> None:
        """What waits for a host that was removed from the site waits for nothing: it will not come
        back. As long as the servers let it stay, it goes on."""
        while self.members is not None:
            await asyncio.sleep(REMOVED_EVERY)
            gone = self.core.picture.hosts.keys() & self.members.removed()
            for name in sorted(gone) if self.core.settled else ():
                if self.core.picture.hosts[name].record.presence is not Presence.JOINED:
                    try:
                        await self.forget(name)
                    except EncampError as error:
                        log.warning(
                            "Host %s was removed, and is not forgotten yet: %s", name, error
                        )

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    def happened(self, happening: Happening) -> None:
        following = self.desk.see(happening)
        known = self.loading.before(happening)
        decision = self.core.step(happening, time.time())
        self.loading.after(known)
        if decision.events:
            self.recorder.events(decision.events)
        if decision.actions:
            self._hands.take(decision.actions)
        if decision.placement:
            self.desk.take(decision.placement)
        self.poke()
        for moved in following:
            self.happened(moved)

    def poke(self) -> None:
        """What is due may be another time."""
        self._poked.set()

    async def _watch_clock(self) -> None:
        """Look at what is due though nothing happens."""
        looked = 0.0
        while True:
            self._poked.clear()
            still = bool(self.restoration.sentence)
            due = looked + STILL_LOOK if still else self.core.next_look()
            wait = None if due is None else max(0.0, due - time.time())
            try:
                async with asyncio.timeout(wait):
                    await self._poked.wait()
            except TimeoutError:
                looked = time.time()
                self.happened(StoodStill() if still else TimePassed())

    def _command_moved(self, record: CommandRecord) -> None:
        if record.name == RUN:
            self.desk.command_moved(record)
        else:
            self.happened(CommandMoved(record))

    def _phased(self, record: CommandRecord) -> None:
        if record.name == RUN:
            self.desk.command_moved(record)

    def _store_trouble(self, trouble: str) -> None:
        self.recorder.event(
            EventKind.STORE_TROUBLE, trouble or "The store can be written to again."
        )

    async def _prune(self) -> None:
        while True:
            try:
                await self.store.prune(time.time() - self.site.keep_events)
            except EncampError as error:
                log.warning("%s", error)
            await asyncio.sleep(PRUNE)

    def _answer(self, peer: Peer, question: Question) -> AsyncIterator[msgspec.Struct]:
        return answer_once_more(self, peer, question)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
