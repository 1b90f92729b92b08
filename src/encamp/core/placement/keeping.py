"""Which requirements and ranks of requests that wait have to be kept up to date, since they speak
of more than one host: each that differs costs something whenever any host tells news. So there may
be only so many of them."""

from __future__ import annotations

from collections import Counter

from encamp.core.expressions import Expression, ExpressionError, reading
from encamp.core.placement.compiled import Compiled
from encamp.core.placement.ranks import NAMED, facts_of_host
from encamp.core.schema import Type
from encamp.model.errors import Code, EncampError
from encamp.model.request import Request

MOST_OF_OWNER = 16
"""Different ones in the requests of one owner."""
MOST_OF_ALL = 128
"""Different ones in the requests of all owners together."""
MOST_AGGREGATES = 4
"""Aggregates in one of them."""
MOST_REMEMBERED = 1000

NOTHING: frozenset[str] = frozenset()


class Keeping:
    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._found: dict[tuple[str, str], frozenset[str]] = {}
        self._of_request: dict[str, frozenset[str]] = {}
        """Of requests that wait and have any."""
        self._of_owner: dict[str, Counter[str]] = {}
        """How many requests of each owner have each of them."""
        self._of_all: Counter[str] = Counter()

    def waits(self, request: Request) -> None:
        found = self._in(request)
        if found:
            self._of_request[request.id] = found
            self._of_owner.setdefault(request.owner, Counter()).update(found)
            self._of_all.update(found)

    def waits_no_more(self, request: Request) -> None:
        found = self._of_request.pop(request.id, NOTHING)
        if not found:
            return
        of_owner = self._of_owner[request.owner]
        for counts in (of_owner, self._of_all):
            counts.subtract(found)
            for one in found:
                if not counts[one]:
                    del counts[one]
        if not of_owner:
            del self._of_owner[request.owner]

    def check(self, request: Request) -> None:
        """Raises EncampError: with this one, there would be too many."""
        found = self._in(request)
        if not found:
            return
        self._check_aggregates("The requirements", request.requirements.strip(), Type.BOOL)
        self._check_aggregates("The rank", request.rank.strip(), Type.FLOAT)
        for counts, whose, most in (
            (
                self._of_owner.get(request.owner, Counter()),
                f"Requests of {request.owner} that wait",
                MOST_OF_OWNER,
            ),
            (self._of_all, "The requests that wait on this site", MOST_OF_ALL),
        ):
            if len(counts.keys() | found) > max(most, len(counts)):
                raise EncampError(
                    Code.NO_ROOM,
                    f"{whose} have {len(counts)} different requirements and ranks that speak of"
                    f" more than the host in question, such as count(... for h in hosts), and may"
                    f" have {most}.",
                    "Write the same in all of them, or wait until some are placed.",
                    transient=True,
                )

    def _check_aggregates(self, what: str, text: str, wants: Type) -> None:
        if not text or text in NAMED:
            return
        count = len(reading.aggregates(self._compiled.expression(text, wants).uses))
        if count > MOST_AGGREGATES:
            raise EncampError(
                Code.USAGE,
                f"{what} of a request may have {MOST_AGGREGATES} different aggregates, such as"
                f" count(... for h in hosts), not {count}.",
                "Each is kept up to date whenever any host tells news. Leave some out.",
            )

    def _in(self, request: Request) -> frozenset[str]:
        if not request.requirements and not request.rank:
            return NOTHING
        texts = (request.requirements.strip(), request.rank.strip())
        found = self._found.get(texts)
        if found is None:
            found = self._look(*texts)
            if len(self._found) > MOST_REMEMBERED:
                self._found.clear()
            self._found[texts] = found
        return found

    def _look(self, requirements: str, rank: str) -> frozenset[str]:
        found = set()
        try:
            if requirements and is_kept(self._compiled.expression(requirements, Type.BOOL)):
                found.add(requirements)
            ranked = self._compiled.rank(rank) if rank else None
            if isinstance(ranked, Expression) and is_kept(ranked):
                found.add(rank)
        except ExpressionError:
            pass  # What makes no sense with what is known now is not worked out at all.
        return frozenset(found)


def is_kept(expression: Expression) -> bool:
    return facts_of_host(expression) is None
