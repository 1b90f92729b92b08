"""Choosing hosts for a request: the best that are open to it, for all of its machines or none."""

from __future__ import annotations

from collections.abc import Callable

from encamp.core.placement.books import Books
from encamp.core.placement.queue import Entry
from encamp.core.placement.reservation import Reservation
from encamp.core.placement.view import View
from encamp.model.request import Request, Together


def choose(
    books: Books, entry: Entry, view: View, kept: Reservation | None, now: float
) -> list[str] | None:
    """The host of each machine; their room is taken. None: there is no place for all of them."""
    request = entry.request
    if entry.passed:
        entry.passed = {host: until for host, until in entry.passed.items() if until > now}
    if kept is not None and kept.request.id == request.id:
        kept = None
    count = request.count

    def suits(machines: int) -> Callable[[str], bool]:
        return lambda host: _may(books, entry, host, kept, machines)

    if request.together is Together.ONE_HOST or count == 1:
        hosts = view.best(1, suits(count)) * count
        return _take(books, request, hosts, now) if hosts else None
    if request.together is Together.APART:
        hosts = view.best(count, suits(1)) if len(view.keys) >= count else []
        return _take(books, request, hosts, now) if len(hosts) == count else None
    if view.slots < count:
        return None
    return _one_by_one(books, entry, view, suits(1), now)


def _one_by_one(
    books: Books, entry: Entry, view: View, suits: Callable[[str], bool], now: float
) -> list[str] | None:
    """Each machine changes how its host ranks for the next, and whether it is open at all."""
    request = entry.request
    chosen: list[str] = []
    moved = books.views.moved
    for number in range(request.count):
        best = view.best(1, suits)
        if not best:
            for taken, former in enumerate(chosen):
                books.give_back(request, taken, former, now)
                books.sparing.end_trial(former, request)
            # All is as it was: nobody else has more room now.
            books.views.moved = moved
            books.views.look(view, now)
            return None
        chosen += best
        _take_one(books, request, number, best[0], now)
        books.views.look(view, now)
    return chosen


def _take(books: Books, request: Request, hosts: list[str], now: float) -> list[str]:
    for number, host in enumerate(hosts):
        _take_one(books, request, number, host, now)
    return hosts


def _take_one(books: Books, request: Request, number: int, host: str, now: float) -> None:
    books.promise(request, number, host, now)
    if books.sparing.only_one(host, request.environment, request.owner):
        books.sparing.begin_trial(host, request)


def _may(books: Books, entry: Entry, host: str, kept: Reservation | None, count: int) -> bool:
    if host in entry.passed:
        return False
    request = entry.request
    if count > 1 and books.sparing.only_one(host, request.environment, request.owner):
        return False
    return kept is None or kept.leaves(books.rooms[host], request.size, count)
