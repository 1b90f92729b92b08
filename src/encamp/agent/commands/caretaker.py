"""Looking after commands under way: starting the processes that carry them out, one turn after the
other, and finding out what became of those that were killed."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from encamp.agent.commands.directory import Result, held, is_own
from encamp.agent.commands.family import end_marked
from encamp.agent.commands.prepared import Prepared
from encamp.agent.commands.records import Records
from encamp.agent.commands.starting import recover_machines, start_carrier
from encamp.agent.commands.tracked import Tracked
from encamp.home import Home
from encamp.model.command import CommandState
from encamp.model.errors import EncampError
from encamp.model.program import AT_ONCE

TICK = 1.0
"""Seconds between two looks at commands under way whose processes give no sign."""

GATHER = 0.02
"""Seconds in which signs of many processes become one look."""

FORGET_EVERY = 3600.0
ATTEMPTS = 5
"""How often a process is started that ends before it begins its command."""

LOG = logging.getLogger(__name__)


class Caretaker:
    """Looks after all that is `tracked`. `news` is called when there is something to tell."""

    def __init__(self, home: Home, records: Records, news: Callable[[], None]) -> None:
        self.tracked: dict[str, Tracked] = {}
        """In the order they were taken in."""
        self.at_once = AT_ONCE
        self._home = home
        self._records = records
        self._news = news
        self._wake = asyncio.Event()
        self._to_recover = asyncio.Event()
        self._to_recover.set()
        self._left: set[str] = {""}
        """Machines that killed commands have left; empty: they could be any."""
        self._children: set[int] = set()
        """Processes we have started, and have not yet seen the end of."""
        self.prepared = Prepared(home, self._fork_ended)
        """Makes those of commands that wait for no turn."""
        self.own: Callable[[Tracked], None] | None = None
        """Called with each command of the agent's own that has got on."""
        self.over: Callable[[str], None] = lambda id: None
        """Called with the id of each command that has ended."""
        self._free = 0
        self._forgotten = -math.inf
        """By a clock that begins with the host: 0 may be just now."""

    def find_left(self) -> None:
        """Go on with what former agents left."""
        for directory, request in self._records.under_way():
            tracked = Tracked(directory, is_new=False, internal=request.internal)
            self.tracked[directory.id] = tracked

    def look(self) -> None:
        """There is something new."""
        self._wake.set()

    def signalled(self, sign: int) -> None:
        """A command's process says that there is something new."""
        with suppress(BlockingIOError):
            while os.read(sign, 4096):
                pass
        self._wake.set()

    def settle(self, tracked: Tracked) -> None:
        """The manager knows all about it."""
        if self._records.settle(tracked.directory):
            del self.tracked[tracked.directory.id]

    async def run(self) -> None:
        while True:
            self._wake.clear()
            self._reap()
            busy = sum(
                not (tracked.is_over() or tracked.is_waiting() or tracked.internal)
                for tracked in self.tracked.values()
            )
            self._free = self.at_once - busy
            for tracked in list(self.tracked.values()):
                turn = tracked.internal or self._free > 0
                if not turn and tracked.is_waiting() and not tracked.to_stop:
                    continue  # There may be thousands, and nothing to see.
                await self.look_after(tracked)
            try:
                self._forget()
            except Exception:
                # Commands are looked after whatever is wrong with what others have left.
                LOG.exception("What nobody needs any more cannot be cleared away.")
            unfinished = any(not tracked.is_over() for tracked in self.tracked.values())
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK if unfinished or self._children else FORGET_EVERY):
                    await self._wake.wait()
            await asyncio.sleep(GATHER)

    async def recover(self) -> None:
        """Commands that were killed may have left something of machines."""
        while True:
            await self._to_recover.wait()
            self._to_recover.clear()
            left, self._left = self._left, set()
            try:
                await asyncio.to_thread(recover_machines, self._home, left)
            except (EncampError, OSError) as error:
                LOG.warning("%s", error)

    async def look_after(self, tracked: Tracked) -> None:
        """Do what there is to do about one command, unless that is being done."""
        if tracked.is_over() or tracked.attended:
            return
        tracked.attended = True
        try:
            await self._look_after(tracked)
        except Exception:
            # Whatever is wrong with one must not keep the others from being looked after.
            LOG.exception("Command %s cannot be looked after.", tracked.directory.id)
        finally:
            tracked.attended = False

    async def _look_after(self, tracked: Tracked) -> None:
        children = self._children | self.prepared.children
        # One whose end nobody would tell of may still be there: it holds the command's lock then.
        ended = tracked.child is not None and tracked.child not in children
        if ended:
            tracked.child = None
        changed = tracked.refresh()
        if tracked.child is not None:
            # Whoever has stopped it: it has a time limit to look after, and may be told to end.
            with suppress(ProcessLookupError):
                os.kill(tracked.child, signal.SIGCONT)
        if not tracked.is_over() and tracked.child is None:
            given_up = tracked.attempts >= ATTEMPTS
            if ended or tracked.to_stop or given_up or not tracked.is_waiting():
                await asyncio.to_thread(self._judge, tracked)
                changed |= tracked.refresh()
            turn = tracked.internal or self._free > 0
            if tracked.is_waiting() and turn and not given_up:
                tracked.attempts += 1
                await self._start(tracked)
        if tracked.is_over():
            # Somebody else's turn has come.
            self._wake.set()
            self.over(tracked.directory.id)
            if tracked.result is not None and tracked.was_ended():
                self._left.add(tracked.result.stage.machine)
                self._to_recover.set()
        if is_own(tracked.directory.id):
            if self.own is not None and (changed or tracked.is_over()):
                self.own(tracked)
        elif changed:
            self._news()

    async def _start(self, tracked: Tracked) -> None:
        if tracked.internal:
            tracked.child = await self.prepared.start(tracked.directory)
            if tracked.child is not None:
                return
        else:
            self._free -= 1
        tracked.child = start_carrier(tracked.directory, self._home)
        self._children.add(tracked.child)

    def _fork_ended(self, pid: int) -> None:
        self._wake.set()

    def _judge(self, tracked: Tracked) -> None:
        """No process of ours carries the command out. Somebody else's may; if none does, say what
        became of it, unless it can still begin. Blocks: for a thread."""
        directory = tracked.directory
        with held(directory.lock) as ours:
            if ours is None or directory.result.exists():
                return
            started = directory.started()
            if started:
                end_marked(directory.id, self._home)
                state = CommandState.LOST
                reason = "Its process was killed, or the host was restarted under it."
            elif tracked.to_stop:
                state, reason = CommandState.CANCELLED, "It was cancelled before it began."
            elif tracked.attempts >= ATTEMPTS:
                state, reason = CommandState.FAILED, "Its process could not be started."
            else:
                return
            reason = f"{reason} {directory.complaint()}".rstrip()
            directory.end(Result(state=state, reason=reason, started=started, ended=time.time()))

    def _reap(self) -> None:
        for pid in list(self._children):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                ended = True  # Somebody else in this process has seen to it.
            if ended:
                self._children.discard(pid)

    def _forget(self) -> None:
        if time.monotonic() - self._forgotten < FORGET_EVERY:
            return
        self._forgotten = time.monotonic()
        self.prepared.end_if_idle()
        for tracked in list(self.tracked.values()):
            if tracked.settled:
                self.settle(tracked)
        self._records.forget(time.time())
