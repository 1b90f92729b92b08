"""Looks again and again at whether jobs may come to this host, and tells the batch system."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from encamp.agent.bait.failing import make_directory
from encamp.agent.bait.opening import STOPPED, Cause, Closing, Host, Nothing, Opening, step
from encamp.batch.system import BatchSystem
from encamp.home import Home
from encamp.model.batch import Bait, BaitState, BatchSettings
from encamp.model.errors import EncampError

ASK_AGAIN = 30.0
"""Seconds after which the batch system is asked how the host stands, if nothing is to be done: it
has many hosts, and administrators seldom change their minds."""
LAST_WORD = 10.0
"""Seconds that an agent which ends waits for the batch system to hear of it."""

LOG = logging.getLogger(__name__)


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the bait stood at the last look; properties read it."""

    state: BaitState
    reason: str = ""
    since: float


def read_told(home: Home) -> Told | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((home.root / "batch" / "bait.json").read_bytes(), type=Told)
    return None


class Watch:
    """`host` tells how this host is; it may take a while."""

    def __init__(
        self,
        home: Home,
        system: BatchSystem,
        settings: BatchSettings,
        host: Callable[[], Host],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = home.root / "batch" / "bait.json"
        self._system = system
        self._settings = settings
        self._host = host
        self._now = now
        self._causes: frozenset[Cause] | None = None
        self._trouble = ""
        self._looking = threading.Lock()
        self._known: Bait | None = None
        """How it stood when the batch system was last asked,"""
        self._asked = 0.0
        """and when that was."""
        self._told: Told | None = read_told(home)
        self._woken = asyncio.Event()

    @property
    def told(self) -> Told | None:
        return self._told

    def look_soon(self) -> None:
        """Something has changed that may matter: a machine failed, or has gone."""
        self._woken.set()

    def change(self, system: BatchSystem, settings: BatchSettings) -> None:
        """Of the same batch system. A look that has begun may end as it would have."""
        self._system, self._settings = system, settings
        self.look_soon()

    async def run(self) -> None:
        """Until cancelled. Then the bait is closed: nobody would take the jobs that come. The next
        agent knows it by the mark, and opens it."""
        try:
            while True:
                await asyncio.to_thread(self.look, sparing=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.every):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            await self._leave()

    def look(self, *, sparing: bool = False) -> None:
        """Look once, and do what follows. Takes as long as the batch system does. `sparing`: it is
        not asked if there is nothing to do as far as is known."""
        with self._looking:
            try:
                host = self._host()
                if sparing and self._is_as_it_should_be(host):
                    return
                self._known, self._asked = None, time.monotonic()
                said = self._system.bait()
                bait = self._do(said, host)
                # Whether what was done came about is looked at next time.
                self._known = bait if bait is said else None
                self._answered()
            except Exception as error:
                # Whatever it is: tomorrow's jobs need a bait, too.
                sentence = (
                    error.sentence
                    if isinstance(error, EncampError)
                    else f"{type(error).__name__}: {error}."
                )
                self._in_trouble(sentence)
                bait = Bait(state=BaitState.UNKNOWN, reason=sentence)
            self._tell(bait)

    def _is_as_it_should_be(self, host: Host) -> bool:
        bait = self._known
        if bait is None or bait.state is BaitState.UNKNOWN:
            return False
        if time.monotonic() - self._asked >= ASK_AGAIN:
            return False
        return isinstance(step(self._causes, host, bait, self._settings), Nothing)

    def _do(self, bait: Bait, host: Host) -> Bait:
        """How it stands afterwards."""
        decided = step(self._causes, host, bait, self._settings)
        match decided:
            case Closing():
                self._system.close(decided.reason)
                self._causes = decided.causes
                LOG.warning("The bait is closed: %s.", decided.reason)
                return Bait(state=BaitState.FULL, reason=decided.reason)
            case Opening():
                self._system.open()
                self._causes = None
                LOG.info("The bait is open: %s.", decided.reason)
                return Bait(state=BaitState.OPEN)
            case Nothing():
                if bait.state in (BaitState.OPEN, BaitState.CLOSED):
                    self._causes = None
                return bait

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(LAST_WORD):
                await asyncio.to_thread(self._close_for_good)
        except TimeoutError:
            LOG.warning("The batch system has not heard that the agent ends: it does not answer.")
        except Exception as error:
            LOG.warning("The batch system has not heard that the agent ends: %s", error)

    def _close_for_good(self) -> None:
        # A look that has begun may still open it.
        with self._looking:
            if self._system.bait().state is BaitState.OPEN:
                self._system.close(STOPPED)
                self._tell(Bait(state=BaitState.FULL, reason=STOPPED))

    def _in_trouble(self, sentence: str) -> None:
        if sentence != self._trouble:
            LOG.warning(
                "The bait cannot be looked at: %s It is tried again every %g s.",
                sentence,
                self._settings.every,
            )
        self._trouble = sentence

    def _answered(self) -> None:
        if self._trouble:
            LOG.info("The batch system answers again.")
        self._trouble = ""

    def _tell(self, bait: Bait) -> None:
        before, since = self._told, self._now()
        if before is not None and before.state is bait.state:
            if before.reason == bait.reason:
                return
            since = before.since
        told = Told(state=bait.state, reason=bait.reason, since=since)
        unfinished = self._path.with_name(f".{self._path.name}")
        try:
            make_directory(self._path.parent)
            unfinished.write_bytes(msgspec.json.encode(told))
            unfinished.rename(self._path)
        except OSError as error:
            LOG.warning("How the bait stands cannot be written down: %s.", error.strerror)
        # Last: whoever sees it here finds it in the file, too.
        self._told = told
