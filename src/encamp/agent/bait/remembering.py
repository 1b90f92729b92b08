"""What is carried out for jobs of the batch system, and what became of the last try of each: looked
at when a starter comes again, and told to those who keep records of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from encamp.agent.bait.errand import KILLED, Carried, Errand
from encamp.agent.bait.policy import Failing, Records
from encamp.agent.bait.settling import Settling
from encamp.agent.bait.starter import is_there
from encamp.agent.commands.stage import ENDED, RUNNING, Stage
from encamp.agent.commands.supervising import Commands
from encamp.agent.commands.tracked import Tracked
from encamp.model.batch import SCRIPTS
from encamp.model.batch_record import Outcome
from encamp.model.errors import EncampError

MOST = 2000
"""Jobs whose last try is remembered."""
LOOK, SOON = 2.0, 0.02
"""Seconds between two looks at starters that are to come again; and after a try has failed, which
may have been for want of its starter."""
DESERTED = 10.0
"""Seconds in which a try ends by itself whose starter is gone. Its owner can have stopped it."""
DECIDED = 60.0
"""Seconds in which it is known what becomes of a job whose starter is gone."""

Key = tuple[str, str, int]

LOG = logging.getLogger(__name__)


class Former:
    """One try at a job."""

    def __init__(self, id: str, errand: Errand) -> None:
        self.id = id
        self.errand = errand
        self.stage = Stage()
        self.over = asyncio.Event()
        self.settled = asyncio.Event()
        """It has begun, or is over."""
        self.carried = Carried()
        self.told = False
        """That its machine is there."""

    @property
    def began(self) -> bool:
        return self.carried.began or self.stage.phase in (RUNNING, ENDED)

    @property
    def ended(self) -> int | None:
        """How its command ended, if that is known."""
        return self.stage.ended if self.carried.ended is None else self.carried.ended


class Formers:
    """`probed`: whether a command was another of the agent's own."""

    def __init__(
        self,
        commands: Commands,
        failing: Failing,
        records: Records,
        settling: Settling,
        probed: Callable[[Tracked], bool] = lambda tracked: False,
    ) -> None:
        self._commands = commands
        self._probed = probed
        self._failing = failing
        self._records = records
        self._settling = settling
        self._woken = asyncio.Event()
        self._deserted: dict[str, float] = {}
        """Since when starters of what is under way have been gone."""
        self._under_way: dict[str, Former] = {}
        self._last: OrderedDict[Key, Former] = OrderedDict()
        self._awaited: dict[str, Former] = {}
        """By their records: those that failed, and whose starters are to come again."""
        running = records.running()
        self._begun = {record.key for record in running if record.begun}
        """Records of former agents that say so."""
        self._orphans = {record.key: record for record in running}
        """Records of former agents, as long as their jobs may come again."""
        settling.settled = lambda record: self._orphans.pop(record, None)
        commands.own.tell(self._got_on)

    def coming(self, id: str, errand: Errand) -> Former:
        """It is about to be begun."""
        former = self._under_way[id] = Former(id, errand)
        self.closed(errand.record)
        return former

    def not_begun(self, id: str, failure: str) -> None:
        """It could not be: its starter is told to come again, or what else to do."""
        former = self._under_way.get(id)
        if former is not None:
            former.carried = Carried(failure=failure)
            self._over(former)

    def under_way(self, key: Key) -> list[Former]:
        return [one for one in self._under_way.values() if one.errand.key == key]

    def of_job(self, id: str) -> list[Former]:
        """All that is under way of a job."""
        return [one for one in self._under_way.values() if one.errand.job.id == id]

    def last(self, key: Key) -> Former | None:
        return self._last.get(key)

    def is_over(self, id: str) -> bool:
        return id not in self._under_way

    def record_of(self, key: Key) -> str:
        """Of the try before, if its job was not done with; empty: there is none."""
        former = self._last.get(key)
        if former is not None and former.errand.record in self._awaited:
            return former.errand.record
        for orphan in self._orphans.values():
            same = orphan.step == key[1] or {orphan.step, key[1]} <= SCRIPTS
            if same and orphan.id == key[0]:
                return orphan.key
        return ""

    def concerns(self, key: Key) -> bool:
        """Is it to be decided yet what becomes of this job?"""
        return bool(self.under_way(key) or self.record_of(key) or self._settling.concerns(key[0]))

    async def decided(self, key: Key, is_vain: Callable[[], bool]) -> bool:
        """Whether it is known now what becomes of a job that was here, or nobody wants to know any
        more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DECIDED):
                while not is_vain() and self.concerns(key):
                    await asyncio.sleep(SOON)
        return not self.concerns(key)

    def closed(self, record: str) -> None:
        """Its job is done with, or under way again."""
        self._awaited.pop(record, None)
        self._orphans.pop(record, None)
        self._settling.drop(record)

    async def ended(self, former: Former, patience: float) -> bool:
        """Have it ended, if it is not; whether it is over then."""
        with suppress(EncampError):
            await self._commands.own.cancel(former.id)
        try:
            async with asyncio.timeout(patience):
                await former.over.wait()
        except TimeoutError:
            return False
        return True

    async def watch(self) -> None:
        """Until cancelled: what becomes of those whose starters will not come again is found
        out."""
        try:
            await asyncio.sleep(LOOK)
            while True:
                self._begin_settling()
                with going_on():
                    await self._end_deserted()
                self._woken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK):
                        await self._woken.wait()
                await asyncio.sleep(SOON)
        finally:
            await self._settling.close()

    def _begin_settling(self) -> None:
        """Of what is settled already, nothing is begun anew."""
        for orphan in list(self._orphans.values()):
            with going_on():
                self._settling.begin_orphan(orphan)
        for record, former in list(self._awaited.items()):
            with going_on():
                if not is_there(former.errand.starter):
                    self._settling.begin(record, former.errand.job, former.errand.task)
                    del self._awaited[record]

    async def _end_deserted(self) -> None:
        """Nobody keeps room on a host for a job that is over."""
        now = time.monotonic()
        used = {former.errand.host for former in self._under_way.values()}
        self._deserted = {
            id: self._deserted.get(id, now)
            for id, former in self._under_way.items()
            if former.errand.record not in used and not is_there(former.errand.starter)
        }
        for id, since in list(self._deserted.items()):
            if now - since > DESERTED:
                self._deserted[id] = now
                LOG.warning("Command %s is ended: its starter is gone, and it goes on.", id)
                with suppress(EncampError):
                    await self._commands.own.cancel(id)

    # ── what commands do ─────────────────────────────────────────────────────────────────────────

    def _got_on(self, tracked: Tracked) -> None:
        former = self._under_way.get(tracked.directory.id)
        if former is None:
            former = None if self._probed(tracked) else _read(tracked)
            if former is None:
                return
            former.told = former.errand.record in self._begun
            self._under_way[former.id] = former
        if self._orphans.pop(former.errand.record, None) is not None:
            self._settling.drop(former.errand.record)
        former.stage = tracked.stage
        if former.stage.machine:
            self._records.change(former.errand.record, machine=former.stage.machine)
        if former.began:
            former.settled.set()
        if former.began and not former.told:
            former.told = True
            self._records.change(former.errand.record, begun=time.time())
            self._came_up(former.errand)
        if tracked.result is not None:
            former.carried = _carried(tracked, former)
            self._over(former)

    def _came_up(self, errand: Errand) -> None:
        self._failing.came_up(errand.environment, errand.job.uid, time.time())

    def _over(self, former: Former) -> None:
        del self._under_way[former.id]
        self._last[former.errand.key] = former
        self._last.move_to_end(former.errand.key)
        while len(self._last) > MOST:
            self._last.popitem(last=False)
        former.over.set()
        former.settled.set()
        errand, carried = former.errand, former.carried
        if carried.came_up and not former.told:
            self._came_up(errand)
        if carried.fault is not None:
            self._failing.failed(
                errand.environment,
                carried.failure,
                errand.job.uid,
                time.time(),
                carried.fault,
            )
        if errand.tasks and not errand.host:
            return  # What its tasks have come to is told by each of them.
        used = {"cpu_seconds": carried.cpu_seconds, "peak_memory": carried.peak_memory}
        if former.ended is not None:
            outcome, how = _outcome(former.ended)
            self._records.over(errand.record, outcome, reason=carried.failure, **how, **used)
        else:
            self._awaited[errand.record] = former
            self._woken.set()
            self._records.change(
                errand.record, reason=carried.failure, tries=errand.tries + 1, **used
            )


@contextmanager
def going_on() -> Iterator[None]:
    """Whatever fails: others are not concerned, and the next look may go well."""
    try:
        yield
    except Exception:
        LOG.exception("It could not be looked at what becomes of a job.")


def _outcome(code: int) -> tuple[Outcome, dict[str, int]]:
    if code >= KILLED:
        return Outcome.KILLED, {"signal": code - KILLED}
    return Outcome.DONE, {"exit_code": code}


def _read(tracked: Tracked) -> Former | None:
    """One that a former agent has begun."""
    request = tracked.directory.read_request()
    if request is None:
        return None
    try:
        errand = msgspec.convert(request.arguments.get("errand"), Errand)
    except msgspec.ValidationError as error:
        LOG.warning("Command %s cannot be understood: %s.", tracked.directory.id, error)
        return None
    return Former(tracked.directory.id, errand)


def _carried(tracked: Tracked, former: Former) -> Carried:
    """What its process has said of it; if it could not, as much as is known."""
    result = tracked.result
    assert result is not None
    if result.value is not None:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(result.value, Carried)
    stage = result.stage
    return Carried(
        machine=stage.machine,
        began=stage.phase in (RUNNING, ENDED),
        came_up=stage.phase in (RUNNING, ENDED),
        ended=stage.ended,
        cpu_seconds=stage.cpu_seconds,
        peak_memory=stage.peak_memory,
        # One that has told its end is over, whatever became of its process.
        failure="" if stage.ended is not None else result.reason or "It was ended.",
    )
