"""What is small and kept under a name: hosts, the triggers' memory, keys."""

from __future__ import annotations

import msgspec
from sqlalchemy import delete, select

from encamp.manager.store import tables
from encamp.manager.store.documents import LARGEST_DOCUMENT, decoded, document, exact_key, key
from encamp.manager.store.part import Part
from encamp.manager.store.statements import put
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host

OWN = "store."
"""Keys that begin so are the store's own."""

HOSTS = msgspec.json.Decoder(Host)


class SmallThings(Part):
    async def save_host(self, host: Host) -> None:
        """As it is known to be, without its readings, which its agent tells anew. It waits in
        memory while the store is in trouble."""
        data = document(msgspec.structs.replace(host, readings={}), f"Host {key(host.name)}")
        self._backlog.put_host(key(host.name), data)
        await self._write_backlog()

    async def forget_host(self, name: str) -> None:
        self._backlog.put_host(key(name), None)
        await self._write_backlog()

    async def hosts(self) -> list[Host]:
        """Sorted by name."""
        documents = await self._worker.read(self._backlog.read_hosts)
        return [host for _, host in decoded(HOSTS, sorted(documents.items()))]

    async def keep(self, key: str, value: bytes) -> None:
        """Remember something small: the triggers' memory, the site's id."""
        name = exact_key(key, "The key")
        if name.startswith(OWN):
            raise EncampError(Code.USAGE, f"Keys that begin with '{OWN}' are the store's own.")
        if len(value) > LARGEST_DOCUMENT:
            raise EncampError(Code.USAGE, f"'{name}' is too large to be kept: {len(value)} bytes.")
        row = {"key": name, "value": bytes(value)}
        await self._worker.write(lambda connection: put(connection, tables.kept, [row]))

    async def kept(self, key: str) -> bytes | None:
        name = exact_key(key, "The key")
        query = select(tables.kept.c.value).where(tables.kept.c.key == name)
        value = await self._worker.read(lambda connection: connection.scalar(query))
        return None if value is None else bytes(value)

    async def kept_under(self, prefix: str) -> dict[str, bytes]:
        """What is kept under keys that begin so."""
        column = tables.kept.c.key
        query = select(column, tables.kept.c.value).where(
            column.startswith(prefix, autoescape=True)
        )
        rows = await self._worker.read(lambda connection: connection.execute(query).all())
        return {str(row[0]): bytes(row[1]) for row in rows}

    async def drop(self, key: str) -> None:
        """Do not remember it any more."""
        statement = delete(tables.kept).where(tables.kept.c.key == exact_key(key, "The key"))
        await self._worker.write(lambda connection: connection.execute(statement).rowcount)
