"""Which triggers can a change concern at all, when very many read the same?

Most triggers compare something with fixed values: `host.load1 > 8`, or over all hosts
`sum(h.load1 for h in hosts) > 100`. Such an expression can only come out differently if what is
compared has moved across the value. All those values are kept in order, so that a load that moves
from 3.1 to 3.2 costs the same with ten triggers on the load as with ten thousand: only those with a
value in between are looked at.

An expression that compares its subject with all others, `host.load1 > 2 * mean(h.load1 for h in
hosts)`, can come out differently for all of them when one has changed. It is told apart, so that
many changes can be answered by one look at all.

Other expressions are left to the evaluator, which looks at all that read what has changed.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

from encamp.core.expressions import Evaluator, Expression, ExpressionError, compile_expression
from encamp.core.expressions.reading import aggregates, facts
from encamp.core.triggers.candidates import Order
from encamp.core.triggers.comparisons import Comparison, Threshold, comparisons, is_number
from encamp.core.world import MISSING, Change, Known, World


class Row:
    """All values that one term is compared with."""

    def __init__(self) -> None:
        self.values: list[int | float] = []
        """In order, and beside them who compares."""
        self.watchers: list[list[Expression]] = []
        self.equal: dict[Threshold, list[Expression]] = {}
        self.all: dict[Expression, None] = {}
        self.always: list[Expression] = []
        """Those that do something else with it than comparing it with a fixed value."""

    def add_always(self, expression: Expression) -> None:
        self.all[expression] = None
        self.always.append(expression)

    def add(self, compared: Comparison, expression: Expression) -> None:
        self.all[expression] = None
        value = compared.value
        if not compared.is_ordered or isinstance(value, str):
            self.equal.setdefault(value, []).append(expression)
            return
        index = bisect_left(self.values, value)
        if index == len(self.values) or self.values[index] != value:
            self.values.insert(index, value)
            self.watchers.insert(index, [])
        self.watchers[index].append(expression)

    def concerned(self, old: Known, new: Known) -> Iterable[Expression]:
        """Those for which it can make a difference that the term was this and is that."""
        if isinstance(old, str) and isinstance(new, str):
            return chain(self.always, self._equal(old, new))
        if is_number(old) and is_number(new):
            return chain(self.always, self._crossed(old, new))
        return self.all

    def _equal(self, old: Threshold, new: Threshold) -> Iterator[Expression]:
        if self.equal:
            yield from self.equal.get(old, ())
            yield from self.equal.get(new, ())

    def _crossed(self, old: float, new: float) -> Iterator[Expression]:
        low, high = (old, new) if old <= new else (new, old)
        for index in range(bisect_left(self.values, low), bisect_right(self.values, high)):
            yield from self.watchers[index]
        yield from self._equal(old, new)


class Term:
    """What expressions about nothing in particular compare: one value for the whole site."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self.row = Row()
        self.last: Known = MISSING
        self.wide: list[Expression] = []
        """Those that compare each of their subjects with it."""


class Thresholds:
    def __init__(self, world: World, evaluator: Evaluator) -> None:
        self.world = world
        self.evaluator = evaluator
        self._facts: dict[tuple[str, str], Row] = {}
        self._about: dict[str, list[Expression]] = {}
        self._terms: dict[str, Term] = {}
        self._of_expression: dict[Expression, Term] = {}
        self._needed: dict[Expression, list[tuple[str, Comparison]]] = {}
        """Facts of their subjects, and comparisons without which they cannot be true."""
        self._wide: dict[Expression, None] = {}
        """Those that may have another value for all of their subjects now."""
        self._orders: dict[tuple[str, str], Order] = {}
        """Kept until something changes."""

    def add(self, expression: Expression) -> bool:
        """Watch it, if it is made of comparisons with fixed values alone. Is it?"""
        if expression.timed or expression.momentary:
            return False
        found = comparisons(expression.text)
        about = expression.about
        if about is None:
            return bool(found) and self._add_terms(expression, found or [])
        if found and self._add_facts(expression, about, found):
            return True
        return self._add_wide(expression, about)

    def _add_facts(self, expression: Expression, about: str, found: list[Comparison]) -> bool:
        known = self.world.schema.kinds[about].facts
        rows = []
        for compared in found:
            term = compared.term
            if not (
                isinstance(term, ast.Attribute)
                and isinstance(term.value, ast.Name)
                and term.value.id == about
                and term.attr in known
                and compared.suits(known[term.attr].type)
            ):
                return False
            rows.append((term.attr, compared))
        for fact, compared in rows:
            self._facts.setdefault((about, fact), Row()).add(compared, expression)
        self._about.setdefault(about, []).append(expression)
        self._needed[expression] = [row for row in rows if row[1].needed]
        return True

    def _add_terms(self, expression: Expression, found: list[Comparison]) -> bool:
        terms = [self._term(ast.unparse(compared.term)) for compared in found]
        for term, compared in zip(terms, found, strict=True):
            if term is None or not compared.suits(term.expression.type):
                return False
        for term, compared in zip(terms, found, strict=True):
            if term is not None:
                self._watch(term)
                term.row.add(compared, expression)
        return True

    def _add_wide(self, expression: Expression, about: str) -> bool:
        """If it reads nothing but facts of its subject and aggregates that are the same for all."""
        found = aggregates(expression.uses)
        reads = facts(expression.uses)
        if not found or not all(read.variable == about and len(read.steps) == 1 for read in reads):
            return False
        terms = [
            None if aggregate.about is not None else self._term(aggregate.text)
            for aggregate in found.values()
        ]
        if None in terms:
            return False
        for term in terms:
            if term is not None:
                self._watch(term)
                term.wide.append(expression)
        for read in reads:
            if read.steps[0].fact:
                row = self._facts.setdefault((about, read.steps[0].fact), Row())
                row.add_always(expression)
        self._about.setdefault(about, []).append(expression)
        return True

    def _watch(self, term: Term) -> None:
        if term.expression not in self._of_expression:
            self._of_expression[term.expression] = term
            self.evaluator.add(term.expression)

    def _term(self, text: str) -> Term | None:
        term = self._terms.get(text)
        if term is None:
            try:
                made = compile_expression(text, self.world.schema, about=(), wants=None)
            except ExpressionError:
                return None
            if made.timed or made.momentary:
                return None
            term = self._terms[text] = Term(made)
        return term

    def start(self, now: float) -> None:
        """Take the values from which terms move."""
        for expression, term in self._of_expression.items():
            term.last = self.evaluator.value(expression, None, now)

    def candidates(self, expression: Expression) -> Iterable[str | None]:
        """The subjects for which it can be true now, and perhaps some others."""
        about = expression.about
        if about is None:
            return (None,)
        things = self.world.things[about]
        best: list[str] | None = None
        for fact, compared in self._needed.get(expression, ()):
            order = self._orders.get((about, fact))
            if order is None:
                order = self._orders[about, fact] = Order(things.values(), fact)
            chosen = order.chosen(compared)
            if chosen is not None and (best is None or len(chosen) < len(best)):
                best = chosen
        return tuple(things) if best is None else best

    def of_changes(self, changes: Iterable[Change]) -> Iterable[tuple[Expression, str]]:
        """Who may have another value now, and for which subject; each once."""
        found: dict[tuple[Expression, str], None] = {}
        self._orders.clear()
        for change in changes:
            concerned: Iterable[Expression]
            if change.fact:
                row = self._facts.get((change.kind, change.fact))
                concerned = () if row is None else row.concerned(change.old, change.new)
            else:
                concerned = self._about.get(change.kind, ())
            for expression in concerned:
                found[expression, change.key] = None
        return found

    def of_updates(
        self, updates: Iterable[tuple[Expression, str | None]], now: float
    ) -> Iterator[tuple[Expression, str | None]]:
        """What the evaluator says has to be looked at, with those who compare a term in its place;
        each once."""
        found: dict[Expression, None] = {}
        for expression, subject in updates:
            term = self._of_expression.get(expression)
            if term is None:
                yield expression, subject
                continue
            old, term.last = term.last, self.evaluator.value(expression, None, now)
            found.update(dict.fromkeys(term.row.concerned(old, term.last)))
            self._wide.update(dict.fromkeys(term.wide))
        for expression in found:
            yield expression, None

    def begin_anew(self) -> Iterable[Expression]:
        """So much has changed that `of_changes` is not asked: all that have subjects, of which the
        candidates are to be looked at."""
        self._orders.clear()
        self._wide.clear()
        return [expression for about in self._about.values() for expression in about]

    def take_wide(self) -> Iterable[Expression]:
        """Those that may have another value for all of their subjects, since this was last asked:
        after `of_updates`."""
        wide, self._wide = self._wide, {}
        return wide
