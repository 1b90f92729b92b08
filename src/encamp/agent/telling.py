"""Telling the manager: one thing after the other, only what has changed, until it has taken it.

While the manager is away or slow nothing piles up: of each property the latest reading is kept,
commands keep their output on disk, and the list of machines is read when it is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from encamp.agent.commands.stage import RUNNING
from encamp.agent.fitting import ROOM, fitted, fitting_jobs, fitting_machines, portions
from encamp.bus.bus import Bus
from encamp.bus.messages import (
    Claim,
    CommandNews,
    Execute,
    Hello,
    JobsWanted,
    News,
    Report,
    Taken,
    Welcome,
    decode_answer,
    encode,
)
from encamp.model.batch_record import BatchRecord
from encamp.model.command import OVER
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine
from encamp.model.property import Reading
from encamp.model.site import MANAGER

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0
"""Seconds between two tries to reach a manager that does not answer."""

PATIENCE = 30.0
"""Seconds that a manager has for an answer."""

SENSELESS = frozenset({Code.PROTOCOL, Code.USAGE})
"""What is refused so is refused for what it says; the manager's store has other troubles."""


CLOCK_TOLERANCE = 1.0
"""Seconds that two clocks may differ."""


class _AnotherManagerError(EncampError):
    """The one that was being told something has a successor."""


class Facts(Protocol):
    """What an agent can tell of its host, and what it can be told to do there."""

    def hello(self) -> Hello:
        """Everything but the readings."""

    def readings(self) -> dict[str, Reading]:
        """All of them, as they were last read."""

    def machines(self) -> tuple[Machine, ...]: ...

    async def look(self) -> bool:
        """See now what has become of machines: is there something to tell?"""

    def news(self) -> tuple[CommandNews, ...]:
        """Of commands: what the manager has not taken yet; none, if there is nothing."""

    def taken(self, outputs: dict[str, int], told: tuple[CommandNews, ...]) -> None: ...

    def start_again(self) -> None:
        """The manager may be another one: what it has not confirmed is to be told again."""

    async def execute(self, message: Execute) -> None:
        """Write a command down and begin it; an error, if it will not be done."""

    async def cancel(self, command_id: str) -> None: ...

    async def claim(self, message: Claim) -> None:
        """Promise to make a machine; an error, if there is no room for it."""

    def release(self, claim_id: str) -> None: ...

    async def read(self, properties: tuple[str, ...]) -> dict[str, Reading]:
        """Read properties, or all of them, now."""

    async def jobs(self, wanted: JobsWanted) -> Sequence[BatchRecord]:
        """Jobs of a batch system that came here, the latest first."""


class Teller:
    def __init__(self, instance: str, facts: Facts) -> None:
        self._bus: Bus
        self._instance = instance
        self._facts = facts
        self._readings: dict[str, Reading] = {}
        self._answers: list[Report] = []
        self._machines = False
        self._standing: set[str] = set()
        """Commands whose machines stand, as was told."""
        self._known = False
        """Does the manager know us?"""
        self._spread = 0.0
        self._ahead: float | None = None
        """Seconds that our clock is ahead of the manager's, if it is."""
        self._wake = asyncio.Event()
        self._called = asyncio.Event()
        self._manager = ""
        """Which run of it we speak with, as far as we know."""
        self._request_under_way: asyncio.Task[bytes] | None = None
        self.welcome: Welcome | None = None
        self.welcomed = asyncio.Event()

    # ── there is something to tell ───────────────────────────────────────────────────────────────

    def readings(self, changed: dict[str, Reading]) -> None:
        self._readings.update(changed)
        self._wake.set()

    def machines(self) -> None:
        self._machines = True
        self._wake.set()

    def commands(self) -> None:
        self._wake.set()

    def answer(self, query: str, readings: dict[str, Reading]) -> None:
        """What a query asked for."""
        self._answers += [
            Report(instance=self._instance, readings=part, query=query)
            for part in portions(readings)
        ]
        self._wake.set()

    def answer_jobs(self, query: str, jobs: Sequence[BatchRecord]) -> None:
        """The same of jobs of a batch system: as many of the latest as fit."""
        told = fitting_jobs(jobs)
        self._answers.append(Report(instance=self._instance, query=query, jobs=told))
        self._wake.set()

    def hello(self, within: float = 0.0, manager: str = "") -> None:
        """Introduce ourselves again, at some moment within so many seconds. `manager`: to whom, if
        that is known. If it is another, nothing is waited for any more that the former one was
        being told."""
        self._known = False
        self._spread = within
        self._wake.set()
        if manager and manager != self._manager:
            self._manager = manager
            self._called.set()
            if self._request_under_way is not None:
                self._request_under_way.cancel()

    # ── telling it ───────────────────────────────────────────────────────────────────────────────

    async def run(self, bus: Bus) -> None:
        """Until cancelled."""
        self._bus = bus
        pause = FIRST_PAUSE
        while True:
            try:
                if not self._known:
                    await self._introduce()
                await self._tell_all()
                pause = FIRST_PAUSE
            except _AnotherManagerError:
                continue
            except EncampError as error:
                # Whoever is there after that may be another manager.
                self.hello()
                level = logging.INFO if error.transient else logging.WARNING
                log.log(level, "The manager cannot be told: %s", error)
                if await self._pause(pause * random.uniform(0.5, 1.0)):
                    pause = FIRST_PAUSE
                else:
                    pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if self._known:
                await self._wake.wait()

    async def _pause(self, seconds: float) -> bool:
        """Before the next try. True: there is no need to, a manager that is new has come."""
        self._called.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._called.wait()
        except TimeoutError:
            return False
        return True

    async def _introduce(self) -> None:
        if self._spread:
            await asyncio.sleep(random.uniform(0, self._spread))
            self._spread = 0.0
        self._known = True  # Unless we are told to say hello again meanwhile.
        hello = fitted(self._facts.hello())
        first, *rest = portions(self._facts.readings(), ROOM - len(encode(hello)))
        self._readings = {}
        self._machines = False
        self._facts.start_again()
        sent = time.time()
        hello = msgspec.structs.replace(hello, readings=first, time=sent, ahead=self._ahead)
        answer = decode_answer(await self._request(hello))
        if not isinstance(answer, Welcome):
            raise ValueError("the manager did not say welcome")
        self._compare_clocks(sent, answer.time, time.time())
        if self.welcome is None or self.welcome.manager != answer.manager:
            log.info("The manager knows this host.")
        self.welcome = answer
        self.welcomed.set()
        self._manager = answer.manager
        for part in rest:
            await self._tell(Report(instance=self._instance, readings=part))

    def _compare_clocks(self, sent: float, manager: float, received: float) -> None:
        """The manager read its clock somewhen between our sending and receiving. If ours cannot
        have been right, we say by how much it is ahead."""
        ahead = (sent + received) / 2 - manager
        doubt = (received - sent) / 2 + CLOCK_TOLERANCE
        if abs(ahead - (self._ahead or 0.0)) > doubt:
            self._ahead = ahead if abs(ahead) > doubt else None
            self.hello()

    async def _tell_all(self) -> None:
        """Until there is nothing more to tell."""
        self._wake.clear()
        while self._answers:
            await self._tell(self._answers[0])
            del self._answers[0]
        while self._readings or self._machines:
            await self._report()
        while told := self._facts.news():
            if self._concerns_machines(told):
                # Whoever waits for that finds what the command has done to machines.
                self._machines |= await self._facts.look()
                if self._machines:
                    await self._report()
            await self._tell_news(told)

    def _concerns_machines(self, told: tuple[CommandNews, ...]) -> bool:
        """Has one ended, or come to the point where its machine stands?"""
        over = {news.id for news in told if news.state in OVER}
        standing = {news.id for news in told if news.phase == RUNNING} - over
        concerns = bool(over or standing - self._standing)
        self._standing = (self._standing | standing) - over
        return concerns

    async def _tell_news(self, told: tuple[CommandNews, ...]) -> None:
        """If the manager will not have something of it, each is told by itself; and what it will
        never have is not told again."""
        news = News(instance=self._instance, commands=told)
        try:
            answer = decode_answer(await self._request(news))
        except EncampError as error:
            if error.code not in SENSELESS:
                raise
            if len(told) == 1:
                log.warning("The manager refuses news of command %s: %s", told[0].id, error)
                self._facts.taken({}, told)
            for one in told if len(told) > 1 else ():
                await self._tell_news((one,))
            return
        if isinstance(answer, Taken):
            self._facts.taken(answer.outputs, told)

    async def _report(self) -> None:
        machines = fitting_machines(self._facts.machines()) if self._machines else None
        self._machines = False
        readings, self._readings = self._readings, {}
        first, *rest = portions(readings, ROOM - len(encode(machines)))
        for number, part in enumerate([first, *rest]):
            report = Report(
                instance=self._instance,
                readings=part,
                machines=machines if number == 0 else None,
            )
            await self._tell(report)

    async def _tell(self, report: Report) -> None:
        """What the manager will not have is not told again: it would keep back everything else."""
        try:
            await self._request(report)
        except EncampError as error:
            if error.transient:
                raise
            log.warning("The manager refuses a report: %s", error)

    async def _request(self, message: msgspec.Struct) -> bytes:
        request = self._bus.request(MANAGER, encode(message), timeout=PATIENCE)
        under_way = self._request_under_way = asyncio.create_task(request)
        manager = self._manager
        try:
            return await under_way
        except asyncio.CancelledError:
            us = asyncio.current_task()
            if manager == self._manager or (us is not None and us.cancelling()):
                raise
            raise _AnotherManagerError(Code.UNREACHABLE, "Another manager is there.") from None
        finally:
            under_way.cancel()
            self._request_under_way = None
