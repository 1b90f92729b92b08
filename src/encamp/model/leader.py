"""Managers of one site: one leads, others stand by."""

from __future__ import annotations

import msgspec


class SeenManager(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A manager, as the others know it."""

    instance: str
    """Which run of it."""
    host: str
    since: float
    """When it began to lead, or to stand by; by the store's clock."""
    trouble: str = ""
    """Why it could not lead now; empty: it could."""


class Leadership(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who leads, and who waits for it."""

    epoch: int = 0
    """Counts up with every manager that begins to lead; 0: it is not known."""
    leader: SeenManager | None = None
    """None: nobody that is known of."""
    standing_by: tuple[SeenManager, ...] = ()
    trouble: str = ""
    """Why this may be how it was, and not how it is."""
