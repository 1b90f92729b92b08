"""Commands in the store, and their output."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from encamp.manager.store import commands
from encamp.manager.store.part import MOST, PAGE, Part, page_size
from encamp.model.command import CommandRecord

LOOKED_THROUGH = 20_000
"""Commands among which one issuer's are looked for."""


class CommandRecords(Part):
    _next_command = 1
    written = 0
    """The number of the latest command that is known to be on the disk."""

    async def add_commands(self, records: Sequence[CommandRecord]) -> None:
        """All of them are on the disk when it returns, or none."""
        rows = commands.rows(records, self._next_command)
        self._next_command += len(rows)
        latest = await self._worker.write(lambda connection: commands.add(connection, rows))
        self.written = max(self.written, latest)

    async def move_command(self, record: CommandRecord) -> CommandRecord:
        """The record that is in effect then: a move that may not be leaves it as it was."""
        return await self._worker.write(lambda connection: commands.move(connection, record))

    async def add_output(self, id: str, offset: int, piece: bytes) -> int:
        """How many bytes of the command's output have arrived. A gap is refused."""
        return await self._worker.write(
            lambda connection: commands.add_output(connection, id, offset, piece)
        )

    async def output(self, id: str, offset: int, most: int) -> bytes:
        return await self._worker.read(
            lambda connection: commands.output(connection, id, offset, most)
        )

    async def command(self, prefix: str, issuer: str = "") -> CommandRecord:
        """The one command whose id begins so; of one issuer, if one is given."""
        return await self._worker.read(
            lambda connection: commands.beginning(connection, prefix, issuer)
        )

    async def commands(
        self, hosts: Collection[str] = (), last: int = 100, issuer: str = ""
    ) -> list[CommandRecord]:
        """The latest first; one issuer's are looked for among the latest of all."""
        wanted = frozenset(hosts)
        last = max(0, min(last, MOST))
        found: list[CommandRecord] = []
        before: int | None = None
        size = PAGE if issuer else page_size(wanted, last)
        looked = 0
        while len(found) < last and not (issuer and looked >= LOOKED_THROUGH):
            page, before = await self._worker.read(
                partial(commands.latest, hosts=wanted, before=before, most=size)
            )
            found += [record for record in page if issuer in ("", record.issuer)]
            looked += size
            if before is None:
                break
        return found[:last]

    async def under_way(self) -> list[CommandRecord]:
        """Those that wait or run, the oldest first."""
        found: list[CommandRecord] = []
        after: int | None = 0
        while after is not None:
            page, after = await self._worker.read(partial(commands.under_way, after=after))
            found += page
        return found

    async def known_commands(self, ids: Sequence[str]) -> list[CommandRecord]:
        """Those of them that were ever issued and are remembered."""
        found: list[CommandRecord] = []
        for start in range(0, len(ids), commands.PAGE):
            some = ids[start : start + commands.PAGE]
            found += await self._worker.read(partial(commands.these, ids=some))
        return found
