"""The queue: who waits, and in which order they are looked at.

Requests that are alike stand in one line, and only its head is ever tried: if there is no place for
it, there is none for those behind it. Those who have waited for long come first; then owners by
what they have used, and of each owner the most urgent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from encamp.core.placement.counted import Counted, counted
from encamp.core.placement.ordered import Ordered
from encamp.core.placement.shares import Shares
from encamp.core.placement.view import Shape, View
from encamp.model.errors import Code
from encamp.model.request import Cause, Reason, Request, RequestRecord, Together
from encamp.model.size import Size

LINES_OF_OWNER = 16
"""Lines of one owner that are looked at before it is the others' turn."""

SWEEP = 10.0
"""Seconds after which all owners are sorted anew by what they have used."""

Place = tuple[float, int, str]
"""When a request was submitted, how many had come before it, and its id."""

Order = tuple[int, float, int, str]
"""A place, after how urgent it is."""

Turn = tuple[float, int, str]
"""What an owner has used, how many had come before, and the name."""

NOWHERE: Place = (-1.0, 0, "")


class Entry(msgspec.Struct, eq=False, gc=False):
    """A request that is not over, and what is kept about it beside its record. There may be very
    many, and none of them leads back to itself: the collector of garbage need not look at them."""

    record: RequestRecord
    number: int = 0
    """How many had come before it."""
    place: Place = NOWHERE
    line: Line | None = None
    """While it waits."""
    passed: dict[str, float] = {}
    """Hosts that have refused it, and until when they are not asked again."""
    lost_hosts: dict[str, float] = {}
    """Hosts of its machines that are not there, and until when they are waited for."""
    history: tuple[tuple[float, str], ...] = ()
    """What came before."""
    blame: str = ""
    """Why the attempt that is under way will end, if it is not by itself."""
    cut_short: bool = False
    """Its attempt ends since its host was restarted, or a process of it killed."""
    blamed: tuple[str, ...] = ()
    """Hosts that are spared since it has failed there."""
    final: bool = False
    """It would fail everywhere."""
    code: Code | None = None
    """What is wrong with it then, in a word,"""
    hint: str = ""
    """and what to do about it."""
    is_lost: bool = False
    """A host with a machine of it will not come back."""
    was_tried: bool = True
    """Did it come to making machines?"""

    def __post_init__(self) -> None:
        self.place = (self.request.submitted, self.number, self.request.id)

    def forget_attempt(self) -> None:
        self.blame = self.hint = ""
        self.code = None
        self.final = self.is_lost = self.cut_short = False
        self.was_tried = True

    @property
    def request(self) -> Request:
        return self.record.request

    @property
    def waits_until(self) -> float | None:
        """When it is withdrawn. One that was lost with its host waits anew."""
        most = self.request.wait_at_most
        since = self.record.changed if self.record.lost else self.request.submitted
        return None if most is None else since + most


class LineKey(NamedTuple):
    counted: Counted
    shape: Shape
    size: Size
    machines: int
    together: Together
    priority: int


class Line:
    __slots__ = (
        "counted",
        "entries",
        "head",
        "head_since",
        "key",
        "reason",
        "seen",
        "stuck",
        "told",
        "view",
    )

    def __init__(self, key: LineKey, view: View) -> None:
        self.key = key
        self.counted = key.counted
        self.view = view
        self.entries: Ordered[Place] = Ordered()
        self.head = NOWHERE
        self.head_since = 0.0
        """Since when it is the head."""
        self.stuck = -1
        """The last epoch in which there was no place for its head."""
        self.seen = 0
        """What its view had news of then."""
        self.reason = Reason(cause=Cause.BEHIND)
        """Why; its sentence is made when somebody asks."""
        self.told: tuple[tuple[object, ...], Reason] | None = None
        """What was told then, and what it was made of."""

    @property
    def order(self) -> Order:
        """Among lines of the same owner."""
        return (-self.key.priority, *self.head)


class Queue:
    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self.entries: dict[str, Entry] = {}
        """Those that wait, by id."""
        self._lines: dict[LineKey, Line] = {}
        self._by_age: Ordered[Place] = Ordered()
        """The heads of all lines."""
        self._of_owner: dict[str, Ordered[Order]] = {}
        self._owners: Ordered[Turn] = Ordered()
        self._turns: dict[str, Turn] = {}
        self._came = 0
        self.fresh: dict[Line, None] = {}
        """Lines that have another head, and were not looked at since."""
        self._swept = 0.0
        self._cursor = NOWHERE

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def lines(self) -> int:
        return len(self._lines)

    def causes(self) -> dict[Cause, int]:
        """How many wait for what."""
        found: dict[Cause, int] = {}
        for line in self._lines.values():
            cause = line.reason.cause
            found[cause] = found.get(cause, 0) + 1
            found[Cause.BEHIND] = found.get(Cause.BEHIND, 0) + len(line.entries) - 1
        return {cause: count for cause, count in found.items() if count}

    # ── coming and going ─────────────────────────────────────────────────────────────────────────

    def add(self, entry: Entry, key: LineKey, view: View, now: float) -> Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key, view)
            view.lines += 1
        self.entries[entry.request.id] = entry
        entry.line = line
        line.entries.add(entry.place)
        self._follow_head(line, now)
        return line

    def remove(self, entry: Entry, now: float) -> None:
        line = entry.line
        assert line is not None
        entry.line = None
        del self.entries[entry.request.id]
        line.entries.remove(entry.place)
        self._follow_head(line, now)
        if not line.entries:
            del self._lines[line.key]
            line.view.lines -= 1

    def _follow_head(self, line: Line, now: float) -> None:
        head = line.entries.first()
        if head == line.head:
            return
        owner = line.counted.owner
        if line.head[2]:
            self._by_age.remove(line.head)
            self._of_owner[owner].remove(line.order)
        if head is None:
            if not self._of_owner[owner]:
                del self._of_owner[owner]
                self._owners.remove(self._turns.pop(owner))
            line.head = NOWHERE
            self.fresh.pop(line, None)
            return
        line.head, line.head_since = head, now
        line.stuck = -1
        self.fresh[line] = None
        self._by_age.add(head)
        if owner not in self._of_owner:
            self._of_owner[owner] = Ordered()
            self._came += 1
            turn = self._turns[owner] = (self._shares.standing(owner, now), self._came, owner)
            self._owners.add(turn)
        self._of_owner[owner].add(line.order)

    def reorder(self, owner: str, now: float) -> None:
        """What an owner has used, or has, is another."""
        before = self._turns.get(owner)
        if before is None:
            return
        turn = (self._shares.standing(owner, now), before[1], owner)
        if turn != before:
            self._owners.remove(before)
            self._owners.add(turn)
            self._turns[owner] = turn

    def sweep(self, now: float) -> None:
        """What those who have something use grows while nothing happens."""
        if abs(now - self._swept) < SWEEP:
            return
        self._swept = now
        self._turns = {
            owner: (self._shares.standing(owner, now), came, owner)
            for owner, (_, came, _) in self._turns.items()
        }
        self._owners.fill(list(self._turns.values()))

    # ── the order ────────────────────────────────────────────────────────────────────────────────

    def in_order(self, aged: float, of_owner: int = LINES_OF_OWNER) -> Iterator[Line]:
        """Lines as they are to be looked at; those whose heads were submitted before `aged` come
        first. Nothing may come or go on the way."""
        first = set()
        for place in self._by_age:
            if place[0] > aged:
                break
            line = self._line_of(place[2])
            first.add(line)
            yield line
        for _, _, owner in self._owners:
            for number, order in enumerate(self._of_owner[owner]):
                if number >= of_owner:
                    break
                line = self._line_of(order[3])
                if line not in first:
                    yield line

    def further(self, count: int) -> Iterator[Line]:
        """So many lines from where this was left the last time, round and round."""
        for found, place in enumerate(self._by_age.after(self._cursor)):
            if found == count:
                return
            self._cursor = place
            yield self._line_of(place[2])
        self._cursor = NOWHERE

    def oldest(self) -> Entry | None:
        first = self._by_age.first()
        return self.entries[first[2]] if first is not None else None

    def position(self, entry: Entry, aged: float) -> int:
        """How many come before it, and itself."""
        before = 0
        for line in self.in_order(aged, of_owner=1 << 30):
            if line is entry.line:
                return before + line.entries.before(entry.place) + 1
            before += len(line.entries)
        return before

    def _line_of(self, request: str) -> Line:
        line = self.entries[request].line
        assert line is not None
        return line


def line_key(request: Request, shape: Shape) -> LineKey:
    return LineKey(
        counted(request), shape, request.size, request.count, request.together, request.priority
    )
