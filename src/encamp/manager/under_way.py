"""The commands that are under way: what is known of each, and the only way to move one on."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from encamp.manager.following import Followers
from encamp.manager.recording import Signal
from encamp.manager.store.store import Store
from encamp.model.command import OVER, CommandRecord, CommandState
from encamp.model.errors import Code, EncampError

Moved = Callable[[CommandRecord], None]


class UnderWay:
    def __init__(self, store: Store, moved: Moved, phased: Moved | None = None) -> None:
        """`moved`: called with what has come into another state; `phased`: with what has not, but
        has got on with its machine."""
        self._store = store
        self._moved = moved
        self._phased = phased
        self.records: dict[str, CommandRecord] = {}
        self.tried: set[str] = set()
        """Those that may have arrived without our having heard so."""
        self.to_stop: set[str] = set()
        """Those that somebody has cancelled, until they are over."""
        self.missing: set[str] = set()
        """Running ones that their agent did not speak of when it introduced itself."""
        self.asked: set[str] = set()
        """Those of them that it did not speak of again, and is to tell the end of."""
        self.news = Signal()
        """A command, or its output, has got on."""
        self.followers = Followers()

    def tell(self, command_id: str) -> None:
        """Whoever waits for news of a command has some."""
        self.news.set()
        self.followers.tell(command_id)

    async def find(self, command_id: str) -> CommandRecord | None:
        try:
            return await self._store.command(command_id)
        except EncampError as error:
            if error.code is not Code.USAGE:
                raise
            return None

    async def move(
        self, record: CommandRecord, state: CommandState, reason: str, **more: object
    ) -> CommandRecord:
        """Write down that it is in this state now; the record in effect."""
        # How far it is with its machine may have been heard since.
        known = self.records.get(record.id, record)
        more = {"phase": known.phase, "machine": known.machine, **more}
        wanted = msgspec.structs.replace(
            record,
            state=state,
            reason=reason,
            changed=time.time(),
            to_stop=record.id in self.to_stop and state not in OVER,
            **more,
        )
        moved = await self._store.move_command(wanted)
        # Another may have moved it while this was being written.
        former = self.records.get(record.id, record)
        if moved.state in OVER:
            self.records.pop(record.id, None)
            for ids in (self.tried, self.missing, self.asked, self.to_stop):
                ids.discard(record.id)
        else:
            self.records[record.id] = moved
        if moved.state is not former.state:
            self._moved(moved)
        elif moved.phase != former.phase and self._phased is not None:
            self._phased(moved)
        self.tell(record.id)
        return moved

    def get_on(self, command_id: str, phase: str, machine: str) -> None:
        """It is further with its machine. That is not worth a write of its own: its agent tells it
        again to a manager that has not heard it."""
        record = self.records.get(command_id)
        if record is None or phase == record.phase:
            return
        machine = machine or record.machine
        further = msgspec.structs.replace(record, phase=phase, machine=machine)
        self.records[command_id] = further
        if self._phased is not None:
            self._phased(further)

    async def is_known(self, command_id: str) -> bool:
        """Was a command of this id ever issued?"""
        return command_id in self.records or await self.find(command_id) is not None

    async def end_of(self, command_id: str) -> CommandRecord:
        """Wait until a command is over."""
        while command_id in self.records:
            await self.news.wait()
        return await self._store.command(command_id)
