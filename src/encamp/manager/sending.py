"""Sending commands to their hosts: each gets its own in order, and none waits for another's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from encamp.bus.bus import Bus
from encamp.bus.messages import Cancel, Execute, Written, encode
from encamp.core.picture import HostState, joined
from encamp.manager.parts import RUN
from encamp.manager.recording import Signal
from encamp.manager.traffic import Pace
from encamp.manager.under_way import UnderWay
from encamp.model.command import CommandRecord, CommandState
from encamp.model.errors import Code, EncampError

log = logging.getLogger(__name__)

ANSWER = 10.0
"""Seconds that an agent has to write a command down."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0


class Sender:
    def __init__(
        self,
        hosts: Mapping[str, HostState],
        bus: Bus,
        pace: Pace,
        under_way: UnderWay,
        written: Callable[[], Written],
        stands_still: Callable[[], bool],
    ) -> None:
        """`written`: how far the store has come. `stands_still`: is nothing to be begun now?"""
        self._written = written
        self._stands_still = stands_still
        self._hosts = hosts
        self._bus = bus
        self._pace = pace
        self._commands = under_way
        self._waiting: dict[str, deque[str]] = {}
        """The ids of commands that each host has not taken yet, in order."""
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._again = Signal()

    def try_again(self) -> None:
        """Somebody has joined: whoever waits for that need not wait any longer."""
        self._again.set()

    def send(self, host: str, records: Sequence[CommandRecord]) -> None:
        """See to it that these are among those that wait to be sent."""
        queue = self._waiting.setdefault(host, deque())
        waiting = set(queue)
        queue.extend(record.id for record in records if record.id not in waiting)
        self._send_to(host)

    def _send_to(self, host: str) -> None:
        if self._waiting.get(host) and host not in self._sending:
            task = asyncio.create_task(self._send_all(host), name=f"commands to {host}")
            self._sending[host] = task
            task.add_done_callback(lambda _: self._sent_all(host))

    def _sent_all(self, host: str) -> None:
        del self._sending[host]
        self._send_to(host)  # One may have come while the last was going.

    async def _send_all(self, host: str) -> None:
        queue = self._waiting[host]
        pause = FIRST_PAUSE
        while queue:
            record = self._commands.records.get(queue[0])
            wanted = record is not None and (
                record.state is CommandState.WAITING or record.id in self._commands.to_stop
            )
            if record is None or not wanted:
                queue.popleft()
                continue
            if await self._settled(record):
                queue.popleft()
                pause = FIRST_PAUSE
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._again.wait()
                pause = min(pause * 2, LONGEST_PAUSE)
        self._waiting.pop(host, None)

    async def _settled(self, record: CommandRecord) -> bool:
        """One try; one that cannot be written down is made again."""
        try:
            return await self._send(record)
        except EncampError as error:
            log.warning("What became of %s on %s: %s", record.name, record.host, error)
            return False

    async def _send(self, record: CommandRecord) -> bool:
        """Is it settled?"""
        if time.time() > record.issued + record.timeout and record.id not in self._commands.to_stop:
            await self.expire(record)
            return True
        state = self._hosts.get(record.host)
        if state is None or not joined(state.record):
            return False
        if self._stands_still() and record.id not in self._commands.to_stop:
            return False
        await self._pace.turn()
        try:
            if record.id not in self._commands.to_stop:
                self._commands.tried.add(record.id)
                await self._bus.request(record.host, encode(self._execute(record)), timeout=ANSWER)
            if record.id in self._commands.to_stop:  # Perhaps only since it was sent.
                await self.ask_to_stop(record)
                return True
        except EncampError as error:
            # Room for a machine that was promised and is not there any more is not waited for here.
            lapsed = record.name == RUN and error.code is Code.NO_ROOM
            if error.transient and not lapsed:
                log.info("%s is told again about %s: %s", record.host, record.name, error)
                return False
            await self._commands.move(record, CommandState.REFUSED, str(error))
        else:
            await self._commands.move(record, CommandState.RUNNING, "its agent has it")
        return True

    async def expire(self, record: CommandRecord) -> None:
        if record.id in self._commands.tried:
            reason = "whether its agent has taken it is not known"
            await self._commands.move(record, CommandState.LOST, reason)
        else:
            reason = "its agent was not there to take it in time"
            await self._commands.move(record, CommandState.TIMED_OUT, reason)

    async def ask_to_stop(self, record: CommandRecord) -> None:
        """Its agent tells its end from then on, even if it never had it."""
        await self._bus.request(record.host, encode(Cancel(id=record.id)), timeout=ANSWER)

    async def close(self) -> None:
        tasks = list(self._sending.values())
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _execute(self, record: CommandRecord) -> Execute:
        return Execute(
            id=record.id,
            name=record.name,
            arguments=record.arguments,
            issuer=record.issuer,
            timeout=record.timeout,
            written=self._written(),
        )
