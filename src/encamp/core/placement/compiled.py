"""Expressions of requests and of the site's policy, read once for all who write the same."""

from __future__ import annotations

from collections.abc import Callable

from encamp.core.expressions import Expression, ExpressionError, compile_expression
from encamp.core.placement.ranks import NAMED, Named, Rank
from encamp.core.schema import Schema, Type
from encamp.core.world import Unknown, World

SPOKEN_OF = frozenset({"host", "machine", "environment"})
"""What requests may speak of. Whose jobs and requests there are, and what they run, is not for all
to find out; and there may be very many of them."""

MOST_REMEMBERED = 1000


class Compiled:
    def __init__(self, world: World, is_used: Callable[[Expression], bool]) -> None:
        """`is_used`: one that is, is not read anew."""
        self._world = world
        self._is_used = is_used
        self._found: dict[tuple[str, Type], Expression] = {}

    def expression(self, text: str, wants: Type) -> Expression:
        """Raises ExpressionError."""
        found = self._found.get((text, wants))
        if found is None:
            found = compile_expression(text, self._schema(), about={"host"}, wants=wants)
            if len(self._found) > MOST_REMEMBERED:
                self._found = {key: one for key, one in self._found.items() if self._is_used(one)}
            self._found[text, wants] = found
        return found

    def _schema(self) -> Schema:
        """What the expressions of requests may speak of: what everybody may know."""
        whole = self._world.schema
        kinds = {name: kind for name, kind in whole.kinds.items() if name in SPOKEN_OF}
        return Schema(kinds, whole.groups)

    def rank(self, text: str) -> Rank:
        """Raises ExpressionError. Hosts of which a condition is true come before the others."""
        if text in NAMED:
            return NAMED[text]
        try:
            return self.expression(text, Type.FLOAT)
        except ExpressionError as error:
            try:
                return self.expression(text, Type.BOOL)
            except ExpressionError:
                raise error from None

    def rank_or_none(self, text: str) -> Rank:
        """A rank that makes no sense with what is known now is not known of any host."""
        try:
            return self.rank(text)
        except ExpressionError as error:
            unknown = Unknown(f"'{text}' cannot be read: {error.mistakes[0].sentence}")
            return Named("", lambda room, facts, wanted: unknown)
