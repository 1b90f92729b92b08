"""A view: how the hosts look to requests that are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from encamp.core.expressions import Expression
from encamp.core.placement.following import Followed
from encamp.core.placement.ranks import Rank, Wanted
from encamp.core.placement.verdicts import Verdict
from encamp.core.schema import Schema
from encamp.model.request import Request, Together
from encamp.model.size import Size

Key = tuple[float | str, ...]
"""What a host ranks, turned round so that the smallest is best, and then its name."""

SLACK = 64
"""What hosts ranked before is cleared away when there is more of it than of them, by so many."""


class Shape(NamedTuple):
    """What makes requests alike in the eyes of a host."""

    environment: str
    size: Size
    """What must fit into one host at once."""
    requirements: str
    rank: str
    owner: str
    """Only if hosts differ in whom they make machines for, if the environment has failed for the
    owner somewhere, or if neighbours are asked for."""
    label: str
    near: tuple[str, ...]
    away: tuple[str, ...]
    image: str
    """If it is another than the environment's."""


def shape_of(request: Request, *, owned: bool) -> Shape:
    neighbours = request.near or request.away
    size = request.size
    if request.together is Together.ONE_HOST and request.count > 1:
        count = request.count
        size = Size(size.cpus * count, size.memory * count, size.disk * count)
    return Shape(
        request.environment,
        size,
        request.requirements.strip(),
        request.rank.strip(),
        request.owner if owned or neighbours else "",
        request.label if neighbours else "",
        request.near,
        request.away,
        request.machine.image or "",
    )


class View:
    __slots__ = (
        "_heap",
        "announced",
        "broken",
        "built",
        "counts",
        "followed",
        "grouped",
        "incomplete",
        "keys",
        "lines",
        "met",
        "next_wide",
        "ranked",
        "ranks",
        "requirements",
        "schema",
        "seen",
        "shape",
        "slots",
        "times",
        "verdicts",
        "wanted",
        "wide",
        "wide_pause",
    )

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.lines = 0
        """How many lines of the queue look at it."""
        self.followed = Followed()
        """Whether its expressions may have another value for some host."""
        self.grouped = False
        """Does one of them want several machines? Then it is counted how many each host takes."""
        self.requirements: Expression | None = None
        self.ranks: tuple[Rank, ...] = ()
        self.broken = ""
        """Why its expressions make no sense, with what is known now."""
        self.schema: Schema | None = None
        """What they were checked against."""
        self.wanted = Wanted(shape.environment, "")
        self.incomplete = True
        """Are some of them to be read anew when more is known?"""
        self.wide_pause = 0.0
        """Seconds between two looks at all hosts, if it needs them."""
        self.met: dict[str, bool] | None = None
        """Whether hosts meet the requirements, if these are the same until a host tells more."""
        self.ranked: list[dict[str, float] | None] = []
        """What they rank, for each rank of which that is so."""
        self.clear()

    @property
    def news(self) -> int:
        """Counts up when its expressions may have another value for some host."""
        return self.followed.news

    def clear(self) -> None:
        self.built = False
        for known in (self.met, *self.ranked):
            if known is not None:
                known.clear()
        self.keys: dict[str, Key] = {}
        """The candidates: hosts that are open."""
        self._heap: list[Key] = []
        """The same, the best first; and what they ranked before."""
        self.times: dict[str, int] = {}
        """How many more machines each candidate could take; at least."""
        self.slots = 0
        """The sum of these."""
        self.verdicts: dict[str, Verdict] = {}
        self.counts: dict[Verdict, int] = {}
        self.seen = 0
        """How far it has followed what was touched."""
        self.wide = False
        """Should all hosts be looked at?"""
        self.next_wide = 0.0
        self.announced = 0.0
        """The latest look at all hosts for which there is a timer."""

    def best(self, count: int, suits: Callable[[str], bool]) -> list[str]:
        """The best candidates that suit, at most so many."""
        found: list[str] = []
        passed: list[Key] = []
        heap, keys = self._heap, self.keys
        while heap and len(found) < count:
            key = heap[0]
            name: str = key[-1]  # type: ignore[assignment]
            if keys.get(name) is not key:
                heappop(heap)  # It ranks otherwise by now, or is no candidate any more.
                continue
            if suits(name):
                found.append(name)
            if len(found) < count:
                passed.append(heappop(heap))
        for key in passed:
            heappush(heap, key)
        return found

    def ordered(self) -> list[str]:
        """All candidates, best first."""
        return [key[-1] for key in sorted(self.keys.values())]  # type: ignore[misc]

    def expressions(self) -> list[Expression]:
        """What it reads facts by."""
        found = [rank for rank in self.ranks if isinstance(rank, Expression)]
        return [*found, self.requirements] if self.requirements is not None else found

    def forget(self, names: Iterable[str]) -> None:
        """What these hosts told is another."""
        for known in (self.met, *self.ranked):
            if known is not None:
                for name in names:
                    known.pop(name, None)

    # ── what is known of a host ──────────────────────────────────────────────────────────────────

    def judge(self, name: str, verdict: Verdict | None) -> None:
        """It is another than before. None: the host is no more."""
        before = self.verdicts.get(name)
        if before is not None:
            self.counts[before] -= 1
        if verdict is not None:
            self.counts[verdict] = self.counts.get(verdict, 0) + 1
            self.verdicts[name] = verdict
        else:
            del self.verdicts[name]

    def offer(self, name: str, key: Key, times: int) -> None:
        """It is open to so many machines, and ranks so."""
        if key != self.keys.get(name):
            self.keys[name] = key
            heappush(self._heap, key)
            if len(self._heap) > 2 * len(self.keys) + SLACK:
                self.sort()
        self.slots += times - self.times.get(name, 0)
        self.times[name] = times

    def withdraw(self, name: str) -> None:
        if self.keys.pop(name, None) is not None:
            self.slots -= self.times.pop(name)

    def sort(self) -> None:
        self._heap = list(self.keys.values())
        heapify(self._heap)
