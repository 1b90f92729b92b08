"""Which groups a host may be in, and which hosts were removed from the site."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from encamp.manager.enrolment import Members
from encamp.manager.site_files import MEMBERS


class Membership:
    """What the site's list of members says. Without a list, because the site's keys are kept
    elsewhere, hosts are believed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / MEMBERS
        self._stamp: object = None
        self._groups: dict[str, frozenset[str]] | None = None
        self._removed: frozenset[str] = frozenset()

    def groups_of(self, host: str) -> frozenset[str] | None:
        """None: nobody knows."""
        self._look()
        return None if self._groups is None else self._groups.get(host, frozenset())

    def groups(self) -> frozenset[str]:
        """All that some host may be in."""
        self._look()
        return frozenset().union(*(self._groups or {}).values())

    def removed(self) -> frozenset[str]:
        """Hosts whose credentials were taken back."""
        self._look()
        return self._removed

    def _look(self) -> None:
        try:
            status = os.stat(self._path)  # noqa: PTH116
        except OSError:
            self._groups = None
            return
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        try:
            members = msgspec.json.decode(self._path.read_bytes(), type=Members)
        except (OSError, msgspec.MsgspecError):
            return  # Whoever writes it says what is wrong with it; until then as before.
        self._stamp = stamp
        self._removed = frozenset(members.removed)
        self._groups = {name: frozenset(who.groups) for name, who in members.members.items()}
