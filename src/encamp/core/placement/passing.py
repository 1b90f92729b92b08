"""One pass over the queue: those who wait are tried in their order, and whoever cannot be placed is
passed by others. What a pass costs does not depend on how many wait."""

from __future__ import annotations

import msgspec

from encamp.core.placement.books import Books
from encamp.core.placement.choosing import choose
from encamp.core.placement.claims import Claims
from encamp.core.placement.queue import Line
from encamp.core.placement.reasons import cause_of
from encamp.core.placement.reservation import Reservation, reserve
from encamp.core.placement.timers import Due
from encamp.model.request import Cause, Reason

FIRST = 64
"""Lines at the head of the queue that are always looked at."""
FURTHER = 64
"""Lines beyond them that are looked at in one step; the others have their turn in later ones."""
FEW = 16
"""With so many lines, there are none beyond the first."""
NEWS = 1.0
"""Seconds from one look at them to the next, if all that has changed is what hosts tell."""
SLICE = 16
A_GLANCE = 0.01
"""What it counts to see that a line need not be looked at."""
PACE = 0.05
"""Seconds from one such step to the next, if nothing else happens."""
MOST_PLACED = 200
"""Requests that are placed in one step."""
MOST_JUDGED = 10_000
"""Hosts that are looked at in one step, before it ends with what it has."""
AGAIN = 10.0
"""Seconds between two attempts to find hosts on which room could be kept."""


class Passing:
    def __init__(self, books: Books, claims: Claims) -> None:
        self._books = books
        self._claims = claims
        self.kept: Reservation | None = None
        self.next_look: float | None = None
        """When to go on with those who were not looked at since something changed; 0: at once."""
        self._swept = -1
        """The epoch in which those beyond the first began to be looked at."""
        self._left = 0
        """How many of them are still to be."""
        self._news = 0
        """What the views had news of then."""
        self._next_news = 0.0
        """When they are looked at for that again."""
        self._announced: set[str] = set()
        self._not_before = 0.0
        """When hosts may be gone through again to keep room on some."""

    def go(self, now: float) -> None:
        books = self._books
        self._see_news()
        if not len(books.queue):
            self.kept = None
            self.next_look = None
            return
        books.queue.sweep(now)
        self._check_kept()
        budget = _Budget(books)
        stopped = self._first(now, budget)
        stopped = stopped or self._fresh(now, budget)
        if not stopped:
            self._further(now, budget)
            self._reserve(now)
        self.next_look = 0.0 if stopped else self._go_on_at(now)
        books.views.trim()

    def _go_on_at(self, now: float) -> float | None:
        if self._left > 0:
            return now + PACE
        return max(now, self._next_news) if self._has_news() else None

    def _has_news(self) -> bool:
        """Has anything changed that those beyond the first may have been waiting for, since they
        were looked at?"""
        books = self._books
        return books.views.news != self._news and books.queue.lines > FEW

    def _news_is_due(self, now: float) -> bool:
        return now >= self._next_news and self._has_news()

    def _first(self, now: float, budget: _Budget) -> bool:
        """Returns whether it had to stop before its end."""
        books = self._books
        placed = True
        while placed:
            placed = False
            for number, line in enumerate(books.queue.in_order(now - books.policy.aging)):
                if number >= FIRST:
                    break
                if self._is_stuck(line):
                    continue
                if budget.is_used_up():
                    return True
                placed = self._try(line, now)
                if placed:
                    # It may be another owner's turn.
                    budget.placed += 1
                    self._see_news()
                    break
        return False

    def _see_news(self) -> None:
        books = self._books
        if books.views.moved:
            books.views.moved = False
            books.epoch += 1

    def _is_stuck(self, line: Line) -> bool:
        """Has nothing happened since there was no place for its head?"""
        return line.stuck == self._books.epoch and line.seen == line.view.news

    def _fresh(self, now: float, budget: _Budget) -> bool:
        """Those who have just come, wherever they stand. Whoever stands before them could not be
        placed. Returns whether it had to stop before its end."""
        books = self._books
        while books.queue.fresh:
            if budget.is_used_up():
                return True
            line = next(iter(books.queue.fresh))
            del books.queue.fresh[line]
            if not self._is_stuck(line) and self._is_worth_it(line, now) and self._try(line, now):
                budget.placed += 1
        return False

    def _is_worth_it(self, line: Line, now: float) -> bool:
        """For those who stand far behind: is there a host with so much left at all?"""
        if self._books.roomiest.may_have(line.view.shape.size):
            return True
        self._stick(line, Cause.NO_ROOM, now)
        return False

    def _further(self, now: float, budget: _Budget) -> None:
        """Go on with the others where this was left, until all were looked at."""
        books = self._books
        if books.queue.lines <= FEW:
            self._left = 0
            return
        if self._swept != books.epoch or (self._news_is_due(now) and self._left <= 0):
            self._swept = books.epoch
            self._left = books.queue.lines
            self._news, self._next_news = books.views.news, now + NEWS
        while self._left > 0 and not budget.is_used_up() and budget.further < FURTHER:
            lines = list(books.queue.further(min(SLICE, self._left)))
            self._left -= max(len(lines), 1)
            for line in lines:
                budget.further += A_GLANCE
                if not line.entries or self._is_stuck(line) or not self._is_worth_it(line, now):
                    continue
                budget.further += 1
                while line.entries and not budget.is_used_up() and self._try(line, now):
                    budget.placed += 1

    def _try(self, line: Line, now: float) -> bool:
        books = self._books
        entry = books.queue.entries[line.head[2]]
        key = line.key
        tally = books.limits.reached(line.counted, key.size, key.machines)
        if tally is not None:
            self._stick(line, Cause.LIMIT, now, tally.limit.name)
            return False
        books.views.look(line.view, now)
        chosen = choose(books, entry, line.view, self.kept, now)
        if chosen is None:
            self._stick(line, cause_of(line.view), now)
            return False
        self._claims.ask(entry, chosen, now)
        return True

    def _stick(self, line: Line, cause: Cause, now: float, limit: str = "") -> None:
        books = self._books
        line.stuck, line.seen = books.epoch, line.view.news
        former = line.reason
        if former.cause is not cause or former.limit != limit or line.head_since > former.since:
            line.reason = Reason(cause=cause, since=now, limit=limit)
            books.world.put("request", line.head[2], {"cause": cause.value})
        view = line.view
        if view.wide and view.next_wide > max(now, view.announced):
            view.announced = view.next_wide
            books.timers.add(view.next_wide, Due.AGAIN)

    # ── room that is kept ────────────────────────────────────────────────────────────────────────

    def _check_kept(self) -> None:
        if self.kept is None:
            return
        entry = self._books.queue.entries.get(self.kept.request.id)
        line = entry.line if entry is not None else None
        if (
            line is None
            # One like it that has come back stands before it: that is tried, and this is not.
            or line.head[2] != self.kept.request.id
            or not self.kept.holds(line.view)
            or (self._is_stuck(line) and line.reason.cause is not Cause.NO_ROOM)
        ):
            self.kept = None
            self._books.epoch += 1

    def _reserve(self, now: float) -> None:
        """Keep room for the first that has waited for it long enough."""
        books = self._books
        if self.kept is not None or now < self._not_before:
            return
        aged = now - books.policy.aging
        for number, line in enumerate(books.queue.in_order(aged)):
            if number >= FIRST:
                return
            if not self._is_stuck(line) or line.reason.cause is not Cause.NO_ROOM:
                continue
            entry = books.queue.entries[line.head[2]]
            due = entry.request.submitted + books.policy.reservation
            if now < due:
                self._announce(entry.request.id, due)
                return
            self.kept = reserve(entry.request, line.view, books.rooms)
            self._not_before = now + AGAIN
            return

    def _announce(self, request: str, due: float) -> None:
        if request not in self._announced:
            if len(self._announced) > 1000:
                self._announced.clear()
            self._announced.add(request)
            self._books.timers.add(due, Due.AGAIN)


class _Budget(msgspec.Struct):
    """What one step may cost."""

    books: Books
    placed: int = 0
    further: float = 0.0
    judged: int = 0

    def __post_init__(self) -> None:
        self.judged = self.books.views.judged

    def is_used_up(self) -> bool:
        return self.placed >= MOST_PLACED or self.books.views.judged - self.judged >= MOST_JUDGED
