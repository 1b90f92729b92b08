"""A store that was put back from a backup: how it is noticed, and what is not done until an
administrator has said what is to become of what waits in it.

What waited when the backup was made may have run since, and tokens may have been revoked: the store
cannot know. Hosts can: each command that they are told carries how far the store had come. A host
that knows of more than was in the store when this manager opened it gives the store away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from encamp.bus.frames import LINE
from encamp.bus.messages import Written
from encamp.core.happenings import EndWanted
from encamp.door.questions import GoneOn
from encamp.manager.store.store import Store
from encamp.model.errors import EncampError
from encamp.model.request import RequestState

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

KEY = "restoration"
"""In the store."""
HINT = (
    "An administrator says how it goes on, on the manager's host: 'encamp site restored"
    " --cancel-waiting', or --keep-waiting."
)
IN_ONE_GO = 100
"""Requests that are cancelled before others get a turn."""

log = logging.getLogger(__name__)


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    sentence: str = ""
    """How it was noticed; empty: nothing was, or it was dealt with."""
    settled: int = 0
    """The epoch in which an administrator last dealt with it. What hosts know of earlier epochs
    says nothing any more."""


class Restoration:
    def __init__(self, store: Store, noticed: Callable[[str], None]) -> None:
        """`noticed`: told a sentence, once."""
        self._store = store
        self._noticed = noticed
        self._state = State()
        self._over = asyncio.Event()
        self._over.set()

    @property
    def sentence(self) -> str:
        """Why nothing is started; empty: it is."""
        return self._state.sentence

    async def load(self) -> None:
        """A manager that was started anew stands still like the one before."""
        kept = await self._store.kept(KEY)
        if kept is not None:
            self._take(msgspec.json.decode(kept, type=State))

    def _take(self, state: State) -> None:
        noticed = state.sentence and not self._state.sentence
        self._state = state
        if state.sentence:
            self._over.clear()
        else:
            self._over.set()
        if noticed:
            self._noticed(state.sentence)

    async def over(self) -> None:
        """Waits until nothing is in question."""
        await self._over.wait()

    async def look(self, host: str, written: Written | None) -> None:
        """Does a host know more than the store did?"""
        if written is None or self.sentence or not self._is_later(written):
            return
        sentence = (
            f"The store was put back from a backup: host {host} was told of command"
            f" {written.number} by the manager of epoch {_epoch(written.rank)}, and the store"
            f" knew commands up to {self._store.begun} and epoch {self._store.tenure.former}."
        )
        state = State(sentence, self._state.settled)
        self._take(state)
        try:
            await self._keep(state)
        except EncampError as error:
            log.warning("That this manager stands still is not written down: %s", error)

    def _is_later(self, written: Written) -> bool:
        tenure, epoch = self._store.tenure, _epoch(written.rank)
        if written.rank >> LINE != tenure.rank >> LINE or epoch == tenure.epoch:
            return False  # Of another store, or told by ourselves.
        if epoch < self._state.settled:
            return False
        return written.number > self._store.begun or epoch > tenure.former

    async def settle(self) -> None:
        """An administrator has dealt with it."""
        state = State(settled=self._store.tenure.epoch)
        await self._keep(state)
        self._take(state)

    async def _keep(self, state: State) -> None:
        await self._store.keep(KEY, msgspec.json.encode(state))


async def go_on(manager: Manager, by: str, *, cancel_waiting: bool, keep_tokens: bool) -> GoneOn:
    """As an administrator wants it. Tokens first: if this breaks off, none is valid too many."""
    tokens = 0 if keep_tokens else await manager.tokens.revoke_all()
    waiting = [
        record.request.id
        for record in manager.core.placement.records.values()
        if record.state in (RequestState.WAITING, RequestState.CLAIMING)
    ]
    for number, request in enumerate(waiting if cancel_waiting else (), 1):
        manager.happened(EndWanted(request, f"{by}, since the store was put back from a backup,"))
        if number % IN_ONE_GO == 0:
            await asyncio.sleep(0)
    if cancel_waiting:
        for request in waiting:
            await manager.desk.writing.written(request)
    await manager.restoration.settle()
    manager.go_on()
    return GoneOn(at=time.time(), waiting=len(waiting), tokens=tokens)


def _epoch(rank: int) -> int:
    """Without what says of which store."""
    return rank & ((1 << LINE) - 1)
