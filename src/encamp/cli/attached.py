"""A request that its caller waits for: followed at the manager, spoken with at its hosts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial

from encamp.cli import requests
from encamp.door.client import AnyDoor
from encamp.meeting.client import Client, Files, Streams
from encamp.meeting.frames import Role
from encamp.model.errors import EncampError
from encamp.model.job import Outcome
from encamp.model.request import (
    REQUEST_OVER,
    PartState,
    Request,
    RequestRecord,
    RequestState,
)
from encamp.progress import Progress

VERDICT = 20.0
"""Seconds within which the manager knows what became of a part whose conversation has failed."""
LAST_WORD = 5.0
"""Seconds that the host of a part that never began has to say why, after the manager knows."""

ENDING = 10.0
"""Seconds that a request may take to be gone whose caller does not want it any more."""

MET = frozenset({PartState.STARTING, PartState.RUNNING, PartState.OVER})


class Attached:
    """Steers the commands of all its parts as if they were one."""

    def __init__(
        self,
        door: AnyDoor,
        request: Request,
        *,
        part: Callable[[int], tuple[Streams, Files]],
        progress: Progress,
        window: tuple[int, int] | None = None,
    ) -> None:
        """`part`: the streams and files of one of its machines, by its number."""
        self.record: RequestRecord | None = None
        self.on_submit: Callable[[RequestRecord], None] = lambda record: None
        """Called when the manager has it."""
        self.on_start: Callable[[], None] = lambda: None
        self._door = door
        self._request = request
        self._part = part
        self._progress = progress
        self._window = window
        self._attempt = -1
        self._waited = False
        self._clients: dict[int, Client] = {}
        self._talks: dict[int, asyncio.Task[Outcome | None]] = {}
        self._outcomes: dict[int, Outcome | None] = {}
        self._errors: dict[int, EncampError] = {}
        self._begun: set[int] = set()
        self._result: asyncio.Future[list[Outcome | None]]
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> list[Outcome | None]:
        """How the command of each part ended; of a detached request: until each has its files, and
        has begun. If this does not come to its end, the request does not go on."""
        self._result = asyncio.get_running_loop().create_future()
        following: asyncio.Task[None] | None = None
        try:
            self.record = await requests.submit(self._door, self._request)
            self.on_submit(self.record)
            following = asyncio.create_task(self._follow(self.record))
            following.add_done_callback(self._followed)
            return await self._result
        except BaseException:
            await self._end(following)
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            tasks = [*self._talks.values(), *([] if following is None else [following])]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            self._result.cancel()

    async def _end(self, following: asyncio.Task[None] | None) -> None:
        """Nothing is left of it when whoever asked for it goes, if that can be waited for."""
        if self.record is None or self.record.state in REQUEST_OVER:
            return
        with suppress(EncampError, TimeoutError):
            async with asyncio.timeout(ENDING):
                await requests.end(self._door, self.record.request.id)
                if following is not None:
                    await asyncio.wait({following})

    # ── steering ─────────────────────────────────────────────────────────────────────────────────

    @property
    def started(self) -> bool:
        return bool(self._begun)

    def signal(self, number: signal.Signals) -> None:
        for client in self._clients.values():
            client.signal(number)

    def resize(self, rows: int, columns: int) -> None:
        self._window = rows, columns
        for client in self._clients.values():
            client.resize(rows, columns)

    # ── what the manager says ────────────────────────────────────────────────────────────────────

    async def _follow(self, record: RequestRecord) -> None:
        self._hear(record)
        if record.state in REQUEST_OVER:
            return
        async with aclosing(requests.follow(self._door, record.request.id)) as records:
            async for news in records:
                self._hear(news)

    def _followed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and not self._result.done():
            self._result.set_exception(task.exception() or AssertionError)

    def _hear(self, record: RequestRecord) -> None:
        self.record = record
        if record.attempt != self._attempt or record.state is RequestState.WAITING:
            self._begin_anew(record.attempt)
        if not self._begun:
            self._waited = requests.tell(record, self._progress, waited=self._waited)
        for part in record.parts:
            if part.state in MET and part.number not in self._talks:
                self._talk(record, part.number)
        if record.state in REQUEST_OVER:
            self._limit(LAST_WORD, self._unless_begun)
            self._judge()

    def _begin_anew(self, attempt: int) -> None:
        """What was meant for an earlier attempt does not count."""
        self._attempt = attempt
        for task in self._talks.values():
            task.cancel()
        self._clients.clear()
        self._talks.clear()
        self._outcomes.clear()
        self._errors.clear()
        self._begun.clear()
        if self._timer is not None:
            self._timer.cancel()

    # ── what its hosts say ───────────────────────────────────────────────────────────────────────

    def _talk(self, record: RequestRecord, number: int) -> None:
        task = asyncio.create_task(self._converse(record, number))
        self._talks[number] = task
        task.add_done_callback(lambda done: self._talked(number, done))

    async def _converse(self, record: RequestRecord, number: int) -> Outcome | None:
        ticket = await requests.ticket(self._door, record, number)
        streams, files = self._part(number)
        role = Role.BRING if self._request.detached else Role.RUN
        client = Client(ticket, role, streams=streams, files=files, window=self._window)

        def begun() -> None:
            if not self._begun:
                self.on_start()
            self._begun.add(number)

        client.renew = partial(requests.ticket, self._door, record, number)
        client.on_begin = begun
        client.on_said = self._progress.update
        client.on_break = lambda error: self._progress.update(error.sentence)
        self._clients[number] = client
        return await client.run()

    def _talked(self, number: int, task: asyncio.Task[Outcome | None]) -> None:
        if self._talks.get(number) is not task or task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._outcomes[number] = task.result()
        elif isinstance(error, EncampError):
            self._errors[number] = error
            # The manager knows better: it may be tried elsewhere.
            self._limit(VERDICT, self._give_up)
        elif not self._result.done():
            self._result.set_exception(error)
        self._judge()

    # ── what follows from both ───────────────────────────────────────────────────────────────────

    def _judge(self) -> None:
        """It is over when all parts have said how they ended; or when the manager says so, and
        nothing more is to be heard of any."""
        if self._result.done() or self.record is None:
            return
        if len(self._outcomes) == self._request.count:
            self._result.set_result([self._outcomes[one] for one in sorted(self._outcomes)])
        elif self.record.state in REQUEST_OVER and not any(
            not task.done() for task in self._talks.values()
        ):
            self._give_up()

    def _give_up(self) -> None:
        if self._result.done():
            return
        assert self.record is not None
        told = [
            error
            for number, error in self._errors.items()
            if number in self._clients and self._clients[number].told_by_host
        ]
        if told:
            self._result.set_exception(told[0])
        elif self.record.state in REQUEST_OVER or not self._errors:
            self._result.set_exception(requests.verdict(self.record))
        else:
            self._result.set_exception(next(iter(self._errors.values())))

    def _unless_begun(self) -> None:
        for number, task in self._talks.items():
            if number not in self._begun:
                task.cancel()
                task.add_done_callback(lambda _: self._judge())

    def _limit(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)
