"""Forgetting what is old, a little at a time: what is more urgent is written in between."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, delete, func, select, tuple_

from encamp.manager.store.tables import audit, commands, events, judged, outputs, requests

AT_ONCE = 500
"""Rows that are removed in one transaction."""
OUTPUTS_AT_ONCE = 64
"""They are larger."""

Piece = Callable[[float, Connection], bool]


def _old_events(before: float, connection: Connection) -> bool:
    old = select(events.c.number).where(events.c.at < before).limit(AT_ONCE)
    removed = connection.execute(delete(events).where(events.c.number.in_(old)))
    return removed.rowcount == AT_ONCE


def _old_judgements(before: float, connection: Connection) -> bool:
    old = select(judged.c.number).where(judged.c.at < before).limit(AT_ONCE)
    removed = connection.execute(delete(judged).where(judged.c.number.in_(old)))
    return removed.rowcount == AT_ONCE


def _old_audit(before: float, connection: Connection) -> bool:
    old = select(audit.c.number).where(audit.c.at < before).limit(AT_ONCE)
    removed = connection.execute(delete(audit).where(audit.c.number.in_(old)))
    return removed.rowcount == AT_ONCE


def _old_commands(before: float, connection: Connection) -> bool:
    """Those that are over; what they printed goes first."""
    old = (
        select(commands.c.id)
        .where(commands.c.over_since < before)
        # The latest stays: hosts know its number, and would take the store for an older one.
        .where(commands.c.number < select(func.max(commands.c.number)).scalar_subquery())
        .order_by(commands.c.over_since)
        .limit(AT_ONCE)
    )
    ids = connection.scalars(old).all()
    place = tuple_(outputs.c.command, outputs.c.start)
    printed = (
        select(outputs.c.command, outputs.c.start)
        .where(outputs.c.command.in_(ids))
        .limit(OUTPUTS_AT_ONCE)
    )
    removed = connection.execute(delete(outputs).where(place.in_(printed)))
    if removed.rowcount == OUTPUTS_AT_ONCE:
        return True
    connection.execute(delete(commands).where(commands.c.id.in_(ids)))
    return len(ids) == AT_ONCE


def _old_requests(before: float, connection: Connection) -> bool:
    old = select(requests.c.id).where(requests.c.over_since < before).limit(AT_ONCE)
    removed = connection.execute(delete(requests).where(requests.c.id.in_(old)))
    return removed.rowcount == AT_ONCE


PIECES: tuple[Piece, ...] = (
    _old_events,
    _old_judgements,
    _old_audit,
    _old_commands,
    _old_requests,
)
"""Each removes some of what is older, and says whether there may be more."""
