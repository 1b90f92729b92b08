"""A manager's right to use the store: who has it, since when, and who waits for it.

Whoever uses a store in PostgreSQL holds a lock there as long as it is connected; nobody else can
write. That it still does so it says by renewing its tenure: one that is stuck, or cut off without
the database's noticing, is thrown out when its tenure has run out, by the database's clock. Before
that, by its own, it has stopped.

Each tenure has a number, the epoch, larger than those before it. It is at least the time in
seconds, so that also one of another store, or of a backup that was put back, is not smaller.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    cast,
    delete,
    exists,
    extract,
    func,
    literal,
    select,
)

from encamp.bus.frames import LINE
from encamp.manager.store.address import Database
from encamp.manager.store.statements import put
from encamp.manager.store.tables import leadership, managers
from encamp.manager.store.transactions import transaction
from encamp.model.errors import Code, EncampError
from encamp.model.leader import Leadership, SeenManager

SECONDS = 6.0
"""For which a tenure is good unless it is renewed."""
RENEWALS = 6
"""In that time, and at least every"""
RARELY = 1.0
"""seconds: a broken connection is noticed then."""
MARGIN = 4
"""A manager stops when the last fourth of its tenure begins, and at most"""
LARGEST_MARGIN = 1.0
"""seconds before its end."""
BEGINNING = 60.0
"""Seconds for which it is good at first."""
PRESENT = 3.0
"""Tenures after which a manager that stood by, and has not said so again, does not any more."""

STORES = 22
"""Bits of the number that tells a store from others."""

Told = Callable[[Leadership], None]


class SupersededError(EncampError):
    """The store is another manager's now, or may be."""


class Tenure:
    """Changed in the store's thread, looked at in any."""

    def __init__(
        self,
        instance: str,
        host: str,
        *,
        seconds: float = SECONDS,
        told: Told | None = None,
        gives_way: int = 0,
    ) -> None:
        """`told`: is told who leads, while this one stands by. Without it nobody does: a store that
        another uses is refused. `gives_way`: the epoch that was given up for others in line."""
        self.instance = instance
        self.host = host
        self.seconds = seconds
        self.told = told
        self.gives_way = gives_way
        self.trouble = ""
        """Why we could not lead now, as others are to know it."""
        self.epoch = 0
        """0: we have not begun."""
        self.former = 0
        """The epoch of whoever led before, as the store knows it."""
        self.since = 0.0
        """When we began to lead, or to stand by."""
        self.announcement = f"The manager on {host} leads the site."
        """With whom it follows, once it leads."""
        self.standing_by: tuple[SeenManager, ...] = ()
        """Those who wait for our place."""
        self._store = 0
        self._until = 0.0
        """By our own clock, which nobody sets."""
        self._due = 0.0
        self._is_over = False

    @property
    def rank(self) -> int:
        """On the bus, among managers that have the same store."""
        return self._store << LINE | self.epoch

    def tell(self, found: Leadership) -> None:
        if self.told is not None:
            self.told(found)

    def leadership(self) -> Leadership:
        """While we lead."""
        us = SeenManager(instance=self.instance, host=self.host, since=self.since)
        return Leadership(epoch=self.epoch, leader=us, standing_by=self.standing_by)

    # ── by our own clock ─────────────────────────────────────────────────────────────────────────

    @property
    def left(self) -> float:
        """Seconds for which it is sure that nobody else leads."""
        return self._until - time.monotonic()

    def holds(self) -> bool:
        """May we go on? If nobody stands by, also without hearing from the database."""
        return not self._is_over and (not self.standing_by or self.left > 0)

    def end(self) -> None:
        self._is_over = True

    @property
    def due(self) -> float:
        """Seconds until it is to be renewed."""
        return self._due - time.monotonic()

    # ── on a connection that holds the lock ──────────────────────────────────────────────────────

    def begin(self, connection: Connection, database: Database) -> None:
        """Ours from now on. What is to be done first, such as bringing the schema up to date, has
        its time before it has to be renewed."""
        asked = time.monotonic()
        with transaction(connection, database, writes=True):
            former = connection.execute(select(leadership)).first()
            since = float(connection.scalar(select(_now(connection))) or 0.0)
            epoch = max(int(since), former.epoch + 1 if former is not None else 1)
            store = former.store if former is not None else secrets.randbits(STORES)
            row = {
                "place": 1,
                "store": store,
                "epoch": epoch,
                "instance": self.instance,
                "host": self.host,
                "since": since,
                "until": since + BEGINNING,
            }
            put(connection, leadership, [row])
            connection.execute(delete(managers).where(managers.c.host == self.host))
            self._look_round(connection)
        self.epoch, self.since, self._store = epoch, since, store
        self.former = former.epoch if former is not None else 0
        if former is not None and former.host != self.host:
            self.announcement = (
                f"The manager on {self.host} leads the site, after the one on {former.host}."
            )
        self._until, self._due = asked + BEGINNING - LARGEST_MARGIN, asked

    def begin_unwritten(self) -> None:
        """The store is ours, and there is no room in it to say so."""
        self.since = time.time()
        self.epoch = int(self.since)
        self._store = secrets.randbits(STORES)

    def renew(self, connection: Connection, database: Database) -> None:
        asked = time.monotonic()
        self._due = asked + min(self.seconds / RENEWALS, RARELY)
        change = (
            leadership.update()
            .where(leadership.c.epoch == self.epoch)
            .values(until=_now(connection) + self.seconds)
        )
        with transaction(connection, database, writes=True):
            if not connection.execute(change).rowcount:
                raise superseded()
            self._look_round(connection)
        margin = min(LARGEST_MARGIN, self.seconds / MARGIN)
        self._until = asked + self.seconds - margin

    def give_up(self, connection: Connection) -> None:
        """Nobody need wait until it has run out."""
        ours = leadership.c.epoch == self.epoch
        connection.execute(leadership.update().where(ours).values(until=0.0))

    def _look_round(self, connection: Connection) -> None:
        """Who stands by? Those who have gone without a word are forgotten."""
        gone = managers.c.seen < _now(connection) - PRESENT * self.seconds
        connection.execute(delete(managers).where(gone))
        self.standing_by = _standing_by(connection)

    def check(self, connection: Connection) -> None:
        """Is it still ours, after we were cut off?"""
        if connection.scalar(select(leadership.c.epoch)) != self.epoch:
            raise superseded()

    # ── for those who stand by ───────────────────────────────────────────────────────────────────

    def stand_by(self, connection: Connection) -> Leadership:
        """Say that we do, and see who leads."""
        time_there = float(connection.scalar(select(_now(connection))) or 0.0)
        if not self.since:
            # Whoever stood by on this host is gone: there is one manager on a host.
            connection.execute(delete(managers).where(managers.c.host == self.host))
            self.since = time_there
        row = {
            "instance": self.instance,
            "host": self.host,
            "since": self.since,
            "seen": time_there,
            "trouble": self.trouble,
        }
        put(connection, managers, [row])
        found = connection.execute(select(leadership)).first()
        return Leadership(
            epoch=found.epoch if found is not None else 0,
            leader=None
            if found is None
            else SeenManager(instance=found.instance, host=found.host, since=found.since),
            standing_by=_standing_by(connection),
        )

    def leave(self, connection: Connection) -> None:
        connection.execute(delete(managers).where(managers.c.instance == self.instance))


def has_run_out(connection: Connection) -> ColumnElement[bool]:
    """Of whoever leads."""
    return exists().where(leadership.c.until < _now(connection))


def superseded() -> SupersededError:
    return SupersededError(
        Code.WRONG_STATE,
        "Another manager has used the store since this one lost its connection.",
        "It leads the site now; this one stands by.",
        transient=True,
    )


def not_leading() -> SupersededError:
    return SupersededError(
        Code.WRONG_STATE,
        "This manager does not lead the site any more.",
        "Another one does, or will in a moment.",
        transient=True,
    )


def cut_off(tenure: Tenure) -> SupersededError:
    return SupersededError(
        Code.UNREACHABLE,
        f"The database was not heard of for {tenure.seconds:g} seconds, and another manager stands"
        " by.",
        "It may lead the site now; this one stands by.",
        transient=True,
    )


def _standing_by(connection: Connection) -> tuple[SeenManager, ...]:
    found = connection.execute(select(managers).order_by(managers.c.since))
    return tuple(
        SeenManager(instance=row.instance, host=row.host, since=row.since, trouble=row.trouble)
        for row in found
    )


def _now(connection: Connection) -> ColumnElement[float]:
    """By the clock that all who use the store have in common."""
    if connection.dialect.name == "sqlite":
        return literal(time.time())
    return cast(extract("epoch", func.clock_timestamp()), Double)
