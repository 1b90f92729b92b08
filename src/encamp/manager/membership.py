"""Who belongs to the site, which groups each host may be in, and which hosts were removed.

It lies in the store, so that every manager of the site knows the same.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from encamp.manager.enrolment import Members, decoded, latest
from encamp.manager.site_files import MEMBERS
from encamp.manager.store.store import Store
from encamp.model.errors import Code, EncampError

KEY = "members"
"""In the store."""

log = logging.getLogger(__name__)


class Membership:
    """What the site's list of members says, in the store or in this host's directory, whichever is
    newer. Without a list, because the site's keys are kept elsewhere, hosts are believed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / MEMBERS
        self._stamp: object = None
        self._store: Store | None = None
        self._stored: Members | None = None
        """What lies in the store."""
        self._members: Members | None = None
        self._groups: dict[str, frozenset[str]] = {}

    async def load(self, store: Store) -> None:
        """What the store of this turn says."""
        self._store = store
        kept = await store.kept(KEY)
        self._stored = decoded(kept) if kept is not None else None
        self._take(self._stored)
        await self.look()

    def groups_of(self, host: str) -> frozenset[str] | None:
        """None: nobody knows."""
        self._look_here()
        return None if self._members is None else self._groups.get(host, frozenset())

    def groups(self) -> frozenset[str]:
        """All that some host may be in."""
        self._look_here()
        return frozenset().union(*self._groups.values())

    def removed(self) -> frozenset[str]:
        """Hosts whose credentials were taken back."""
        self._look_here()
        return frozenset() if self._members is None else frozenset(self._members.removed)

    async def look(self) -> None:
        """What was changed in this host's directory is to be known to other managers, too."""
        self._look_here()
        store, members = self._store, self._members
        if store is None or members is None or members is self._stored or store.trouble:
            return
        try:
            await store.keep(KEY, msgspec.json.encode(members))
            self._stored = members
        except EncampError as error:
            log.warning("Who belongs to the site is not written down: %s", error)

    def told(self) -> bytes:
        """The list that counts; nothing, if there is none."""
        self._look_here()
        return b"" if self._members is None else msgspec.json.encode(self._members)

    async def change(self, offered: bytes, site: str) -> None:
        """Take a list that was changed somewhere. One of another site is left aside."""
        changed, known = decoded(offered), self._members
        if changed.site != site or (known is not None and known.identity != changed.identity):
            return
        if known is not None and changed.changed <= known.changed:
            raise EncampError(
                Code.WRONG_STATE,
                "Somebody else has added or removed hosts of this site at the same time.",
                "Try again.",
                transient=True,
            )
        self._take(changed)
        await self.look()

    def _take(self, members: Members | None) -> None:
        self._members = members
        known = members.members if members is not None else {}
        self._groups = {name: frozenset(who.groups) for name, who in known.items()}

    def _look_here(self) -> None:
        try:
            status = os.stat(self._path)  # noqa: PTH116
        except OSError:
            return
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        try:
            found = decoded(self._path.read_bytes())
        except (OSError, EncampError):
            return  # Whoever writes it says what is wrong with it; until then as before.
        self._stamp = stamp
        if latest(self._members, found) is found:
            self._take(found)
