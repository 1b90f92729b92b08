"""Listening to agents: who is there, who introduces itself, and what each of them says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import msgspec

from encamp.bus.bus import Bus, Membership, Message
from encamp.bus.messages import (
    Hello,
    News,
    Report,
    SayHello,
    Taken,
    Welcome,
    Written,
    decode_from_agent,
    encode,
)
from encamp.core.happenings import Gone, Happening
from encamp.core.picture import Picture
from encamp.manager.dispatching import Dispatcher
from encamp.manager.querying import Querier
from encamp.manager.recording import Recorder
from encamp.manager.taking import Account, Shared, nonsense
from encamp.model.errors import Code, EncampError
from encamp.model.event import EventKind
from encamp.model.host import Host, Presence
from encamp.model.meeting import Meeting
from encamp.model.site import EVERYBODY, MANAGER, Presences

HELLO_PATIENCE = 5.0
"""Seconds in which an agent that is on the bus should have introduced itself."""
PROMPT = 2.0
"""Seconds in which an agent that is well answers."""
UNHEARD = "nothing was heard of it since the manager started"
HELLOS_A_SECOND = 500.0
"""How many agents a manager that has just started asks to introduce themselves."""


class Listener:
    def __init__(
        self,
        instance: str,
        presence: Presences,
        picture: Picture,
        recorder: Recorder,
        happened: Callable[[Happening], None],
        groups_of: Callable[[str], frozenset[str] | None],
        look: Callable[[str, Written | None], Awaitable[None]],
    ) -> None:
        """`groups_of`: the groups that a host may be in, if that is known. `look`: is told what a
        host knows of the store, before anything is sent there."""
        self._look = look
        self._instance = instance
        self._presence = presence
        self._picture = picture
        self._recorder = recorder
        self._happened = happened
        self._groups_of = groups_of
        self._dispatcher: Dispatcher
        self._querier: Querier
        self._bus: Bus
        self._accounts: dict[str, Account] = {}
        self._shared = Shared()
        self._introducing: dict[str, asyncio.Task[None]] = {}
        self.expected: dict[str, Host] = {}
        """Hosts that a former manager knew, and that have not been heard of yet."""
        self.gathered = asyncio.Event()
        """All are heard of who answer at once. Before that, what is asked about the site would be
        answered wrongly."""
        self.messages = 0
        """Taken since it began."""

    def tell(self, bus: Bus, dispatcher: Dispatcher, querier: Querier) -> None:
        """Whom to tell what agents say."""
        self._bus = bus
        self._dispatcher = dispatcher
        self._querier = querier

    def home_of(self, host: str) -> str:
        """Which home its agent works in; empty: that is not known."""
        account = self._accounts.get(host)
        return account.home if account is not None else ""

    def meeting_of(self, host: str) -> Meeting | None:
        """Where clients can speak with what runs on a host that is here."""
        account = self._accounts.get(host)
        return None if account is None else account.meeting

    async def find_everybody(self) -> None:
        """Ask those who are there to introduce themselves; who does not in time is lost."""
        within = len(self.expected) / HELLOS_A_SECOND
        hello = SayHello(manager=self._instance, within=within)
        await self._bus.multicast(EVERYBODY, encode(hello))
        if not self.expected:
            self.gathered.set()
            # Those who are on the bus, and whom nobody knew before, are heard of in this time.
            await asyncio.sleep(self._presence.interval + 1.0)
        await self._until_heard(within + PROMPT)
        self._show_expected()
        self.gathered.set()
        await self._until_heard(HELLO_PATIENCE + self._presence.silence)
        for host in list(self.expected.values()):
            self._picture.put_host(host)
            self._gone(host.name, Presence.LOST, UNHEARD)
        self.expected.clear()

    def _show_expected(self) -> None:
        """Whoever asks now is told of all hosts. That those are lost is told when they have had
        their time."""
        for host in self.expected.values():
            unheard = msgspec.structs.replace(host, presence=Presence.LOST, reason=UNHEARD)
            state = self._picture.put_host(unheard)
            self._picture.lose_sight(state, UNHEARD)

    async def _until_heard(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.expected:
                    await self._recorder.news.wait()

    # ── who is there ─────────────────────────────────────────────────────────────────────────────

    def membership(self, membership: Membership) -> None:
        name = membership.name
        if membership.presence is Presence.JOINED:
            if name != MANAGER and name not in self._introducing:
                self._introducing[name] = asyncio.create_task(self._introduction(name))
            return
        self._stop_waiting_for(name)
        account = self._accounts.pop(name, None)
        if account is not None:
            self._gone(name, membership.presence, membership.reason)

    def _gone(self, name: str, presence: Presence, reason: str) -> None:
        self._happened(Gone(name, presence, reason))
        self._recorder.host(self._picture.hosts[name].record)

    async def _introduction(self, name: str) -> None:
        """An agent that is on the bus and does not introduce itself is asked to."""
        while name not in self._accounts:
            await asyncio.sleep(HELLO_PATIENCE)
            if name not in self._accounts:
                await self._ask_hello(name)
        self._introducing.pop(name, None)

    async def _ask_hello(self, name: str) -> None:
        with contextlib.suppress(EncampError):
            await self._bus.send(name, encode(SayHello(manager=self._instance)))

    def _stop_waiting_for(self, name: str) -> None:
        task = self._introducing.pop(name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._introducing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ── what agents say ──────────────────────────────────────────────────────────────────────────

    async def take(self, message: Message) -> bytes | None:
        self.messages += 1
        try:
            said = decode_from_agent(message.body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._trouble(message.sender, nonsense(str(error)[:200])) from error
        try:
            if isinstance(said, Report):
                return self._report(message.sender, said, len(message.body))
            if isinstance(said, News):
                return await self._news(message.sender, said)
            return await self._hello(message.sender, said, len(message.body))
        except EncampError as error:
            if not error.transient:
                self._trouble(message.sender, error)
            raise

    def _trouble(self, host: str, error: EncampError) -> EncampError:
        self._recorder.trouble(EventKind.HOST_TROUBLE, f"Host {host}: {error.sentence}", host)
        return error

    def _account(self, name: str, instance: str) -> Account:
        account = self._accounts.get(name)
        if account is None or account.instance != instance:
            raise EncampError(
                Code.WRONG_STATE,
                f"The manager does not know this run of the agent on {name}.",
                "It has to introduce itself first.",
                transient=True,
            )
        return account

    def _report(self, name: str, report: Report, length: int) -> bytes | None:
        account = self._account(name, report.instance)
        self._happened(account.reported(name, report, length))
        if report.machines is not None:
            self._recorder.machines(name, self._picture.hosts[name].seen)
        if report.query:
            self._querier.answered(report.query, name, report.jobs)
        return None

    async def _news(self, name: str, news: News) -> bytes:
        account = self._account(name, news.instance)
        outputs = {}
        for one in news.commands:
            had = await self._dispatcher.take_news(name, account.checked(one))
            if had is not None:
                outputs[one.id] = had
        return encode(Taken(outputs=outputs))

    async def _hello(self, name: str, hello: Hello, length: int) -> bytes:
        now = time.time()
        former = self._accounts.get(name)
        if former is not None and former.home != hello.home:
            sentence = f"Another agent is joined to the site as {name}, in another home."
            self._recorder.trouble(
                EventKind.HOST_REFUSED, f"A second agent was refused: {sentence}", name
            )
            raise EncampError(
                Code.WRONG_STATE,
                sentence,
                "Give one of them another name ('host' in site.yaml), or stop the other first.",
                transient=True,
            )
        await self._look(name, hello.written)
        hello = self._shared.hello(self._in_its_groups(name, hello))
        account = Account(hello, now)
        joined = account.joined(name, hello, length)
        self._accounts[name] = account
        former_record = self.expected.pop(name, None)
        if former_record is not None and former_record.instance == hello.instance:
            # It was joined all the time: the manager was away, not the host.
            self._picture.put_host(former_record)
        self._stop_waiting_for(name)
        self._happened(joined)
        state = self._picture.hosts[name]
        self._recorder.host(state.record)
        self._recorder.machines(name, state.seen)
        if await self._dispatcher.host_joined(name, hello.under_way):
            self._introducing[name] = asyncio.create_task(self._hello_again(name))
        return encode(
            Welcome(
                manager=self._instance,
                time=now,
                interval=self._presence.interval,
                silence=self._presence.silence,
            )
        )

    def _in_its_groups(self, name: str, hello: Hello) -> Hello:
        """No host says by itself which groups it is in: others' commands would come to it."""
        allowed = self._groups_of(name)
        if allowed is None or allowed.issuperset(hello.groups):
            return hello
        refused = ", ".join(sorted(set(hello.groups) - allowed))[:200]
        self._recorder.trouble(
            EventKind.HOST_TROUBLE,
            f"Host {name} says that it is in groups that its credential does not name: {refused}.",
            name,
        )
        return msgspec.structs.replace(
            hello, groups=tuple(group for group in hello.groups if group in allowed)
        )

    async def _hello_again(self, name: str) -> None:
        await asyncio.sleep(HELLO_PATIENCE)
        await self._ask_hello(name)
        self._introducing.pop(name, None)
