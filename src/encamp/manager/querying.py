"""Asking hosts for their properties: one, some or all, now or periodically.

Without a limit on traffic all hosts are asked with one message. With one they are asked one after
the other, and so their answers come one after the other too.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence

from encamp.bus.bus import Bus
from encamp.bus.messages import JobsWanted, Query, encode
from encamp.core.picture import HostState, joined
from encamp.manager.traffic import Pace
from encamp.model.batch_record import BatchRecord
from encamp.model.errors import EncampError
from encamp.model.site import EVERYBODY

log = logging.getLogger(__name__)

ANSWERS_A_SECOND = 2000.0
"""How many answers a query of many hosts is to bring at once."""


class _Round:
    """One query to several hosts, and who has not answered yet."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.open = set(hosts)
        self.jobs: dict[str, tuple[BatchRecord, ...]] = {}
        """What was told of jobs, if they were asked for."""
        self.done = asyncio.Event()
        if not self.open:
            self.done.set()


class Querier:
    def __init__(self, hosts: Mapping[str, HostState], bus: Bus, pace: Pace) -> None:
        self._hosts = hosts
        self._bus = bus
        self._pace = pace
        self._rounds: dict[str, _Round] = {}
        self._asking: dict[tuple[tuple[str, ...] | None, tuple[str, ...]], asyncio.Task[None]] = {}

    def ask(self, hosts: tuple[str, ...] | None, properties: tuple[str, ...] = ()) -> None:
        """Ask hosts (None: all) to report, and do not wait. What is being asked already is not
        asked again: with a limit, a round may take longer than the time to the next."""
        key = (hosts, properties)
        if key not in self._asking:
            count = len(self._hosts) if hosts is None else len(hosts)
            within = 0.0 if self._pace.limited else count / ANSWERS_A_SECOND
            query = Query(id=uuid.uuid4().hex, properties=properties, within=within)
            task = asyncio.create_task(self._send(hosts, query))
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))

    async def answers(
        self, hosts: Sequence[str], properties: tuple[str, ...], timeout: float
    ) -> list[str]:
        """Have hosts read properties anew, and wait for the answers. Returns who gave none."""
        there = [name for name in hosts if self._is_there(name)]
        query = Query(id=uuid.uuid4().hex, properties=properties, fresh=True)
        return sorted((await self._round(there, query, timeout)).open)

    async def _round(self, hosts: Sequence[str], query: Query, timeout: float) -> _Round:
        waited_for = self._rounds[query.id] = _Round(hosts)
        try:
            async with asyncio.timeout(timeout):
                await self._send(tuple(hosts), query)
                await waited_for.done.wait()
        except TimeoutError:
            pass
        finally:
            del self._rounds[query.id]
        return waited_for

    async def jobs(
        self, hosts: Sequence[str], wanted: JobsWanted, timeout: float
    ) -> tuple[dict[str, tuple[BatchRecord, ...]], list[str]]:
        """What hosts have taken of batch systems, and who does not say."""
        there = [name for name in hosts if self._is_there(name)]
        query = Query(id=uuid.uuid4().hex, jobs=wanted)
        waited_for = await self._round(there, query, timeout)
        return waited_for.jobs, sorted({*hosts} - waited_for.jobs.keys())

    def answered(self, query: str, host: str, jobs: tuple[BatchRecord, ...] = ()) -> None:
        waited_for = self._rounds.get(query)
        # Nobody answers for another, nor twice.
        if waited_for is not None and host in waited_for.open:
            waited_for.jobs[host] = jobs
            waited_for.open.discard(host)
            if not waited_for.open:
                waited_for.done.set()

    async def poll(self, seconds: float) -> None:
        """Ask all hosts for everything, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.ask(None)

    async def _send(self, hosts: tuple[str, ...] | None, query: Query) -> None:
        body = encode(query)
        try:
            if hosts is None and not self._pace.limited:
                await self._bus.multicast(EVERYBODY, body)
                return
            for name in list(self._hosts) if hosts is None else hosts:
                if self._is_there(name):
                    await self._pace.turn()
                    await self._send_one(name, body)
        except EncampError as error:
            log.info("Hosts could not be asked: %s", error)

    async def _send_one(self, name: str, body: bytes) -> None:
        try:
            await self._bus.send(name, body)
        except EncampError as error:
            log.info("Host %s could not be asked: %s", name, error)

    def _is_there(self, name: str) -> bool:
        state = self._hosts.get(name)
        return state is not None and joined(state.record)

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
