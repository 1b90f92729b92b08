"""Early references: `${...}` copies a value.

`${memory}` is the environment's own, `${context.variables.X}` deeper in it, `${up.NAME}` relative
to where it stands, `${debian12.memory}` another environment's. A reference that is inherited is
looked up in the environment that inherits it: whoever overrides `memory` changes what `${memory}`
means, as prototypes do. Values are worked out one by one when something needs them, so that only
what really leads back to itself is a cycle.
"""

from __future__ import annotations

from collections.abc import Callable

from encamp.describe.attributes import ENVIRONMENT, LARGEST_TEXT
from encamp.describe.inheritance import Budget, Description, Prototype, lacks
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar, Sequence, shape
from encamp.describe.records import Record
from encamp.describe.reference_text import Reference, ReportedError, cut
from encamp.describe.sources import NOWHERE

DEEPEST = 100
"""How many references may lead to one another."""
HEAVIEST = 200_000
"""Nodes that one value may consist of after copying."""

Path = tuple[str | int, ...]


class Settler:
    """Replaces the references of environments by what they refer to."""

    def __init__(
        self,
        known: dict[str, Description],
        prototype: Callable[[Description], Prototype],
        mistakes: Mistakes,
        budget: Budget,
    ) -> None:
        self.known = known
        self.prototype = prototype
        self.mistakes = mistakes
        self.budget = budget
        self.done: dict[tuple[str, Path], tuple[Node | None, int]] = {}
        """What was worked out, and how many references it took on the longest way."""
        self.active: dict[tuple[str, Path], None] = {}
        self.reach = 0
        self.visible: dict[int, list[str]] = {}

    def settle(self, description: Description) -> Mapping:
        """All attributes of an environment, without references. Those without value are left
        out, and reported."""
        values = self.prototype(description).values
        if not values.refers:
            return values
        settled = Mapping({}, values.keys, values.line, values.column, values.source)
        for name, node in values.entries.items():
            if not node.refers:
                settled.entries[name] = node
                continue
            self.reach = 0
            try:
                settled.entries[name] = self._at(description, (name,), node, node)
            except ReportedError:
                description.dropped.add(name)
        return settled

    def _at(
        self, description: Description, path: Path, by: Node, found: Node | None = None
    ) -> Node:
        """The value at a path of an environment, without references; `found` is what is written
        there, if that is known."""
        key = (description.name, path)
        if key in self.active:
            self._report_cycle(key, by)
        if key in self.done:
            known, depth = self.done[key]
            self.reach = max(self.reach, depth)
            if known is None:
                raise ReportedError
            return known
        if len(self.active) > DEEPEST:
            self._report_depth(by)
        before, self.reach = self.reach, 0
        self.active[key] = None
        self.done[key] = (None, 0)
        try:
            node = found if found is not None else self._find(description, path, by)
            if node.refers:
                node = self._settled(description, node, path)
                self.reach += 1
            if self.reach > DEEPEST:
                self._report_depth(by)
            self.done[key] = (node, self.reach)
        finally:
            del self.active[key]
            self.reach = max(before, self.reach)
        return node

    def _find(self, description: Description, path: Path, by: Node) -> Node:
        node: Node = self.prototype(description).values
        for index, step in enumerate(path):
            if isinstance(node, Scalar) and node.refers:
                node = self._at(description, path[:index], by)
            found: Node | None = None
            if isinstance(node, Mapping):
                found = node.entries.get(str(step)) or _default(description, path[: index + 1])
            elif isinstance(node, Sequence) and str(step).isdecimal():
                number = int(str(step)[:9])
                found = node.items[number] if number < len(node.items) else None
            if index == 0 and self.mistakes and lacks(description, str(step), self.mistakes):
                raise ReportedError
            if found is None:
                self._report_dangling(description, path[: index + 1], node, by)
            else:
                node = found
        return node

    def _settled(self, description: Description, node: Node, path: Path) -> Node:
        if isinstance(node, Scalar):
            return self._scalar(description, node, path)
        made: Mapping | Sequence
        if isinstance(node, Mapping):
            made = Mapping({}, node.keys, node.line, node.column, node.source)
            for key, child in node.entries.items():
                if child.refers:
                    child = self._at(description, (*path, key), child, child)
                made.entries[key] = child
                made.weight += child.weight
        else:
            made = Sequence([], node.line, node.column, node.source, joined=node.joined)
            for number, item in enumerate(node.items):
                settled = item
                if item.refers:
                    settled = self._at(description, (*path, number), item, item)
                # A list that is referred to in a list puts its items there.
                spliced = isinstance(item, Scalar) and isinstance(settled, Sequence)
                made.items += settled.items if spliced else [settled]  # type: ignore[union-attr]
                made.weight += settled.weight
        if made.weight > HEAVIEST:
            self.mistakes.at(node, f"its references copy more than {HEAVIEST:,} values")
            raise ReportedError
        count = len(made.items if isinstance(made, Sequence) else made.entries)
        if not self.budget.spend(count, node, self.mistakes):
            raise ReportedError
        return made

    def _scalar(self, description: Description, node: Scalar, path: Path) -> Node:
        pieces = cut(node, self.mistakes)
        first = pieces[0]
        if len(pieces) == 1 and isinstance(first, Reference) and not first.late:
            target = self._target(description, node, first, path)
            return _copied(target, node)
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
            elif piece.late:
                if text.endswith("$"):
                    self.mistakes.at(node, "a late reference cannot follow a '$'")
                    raise ReportedError
                text += piece.text
            else:
                target = self._target(description, node, piece, path)
                if not isinstance(target, Scalar):
                    self.mistakes.at(
                        node, f"'{piece.text}' is {shape(target)}, which cannot stand in a text"
                    )
                    raise ReportedError
                text += target.text
            if len(text) > LARGEST_TEXT:
                self.mistakes.at(node, "its references make this text longer than a MiB")
                raise ReportedError
        if not self.budget.spend(len(text) >> 6, node, self.mistakes):
            raise ReportedError
        return Scalar(text, False, node.line, node.column, node.source, settled=True)

    def _target(
        self, description: Description, node: Scalar, reference: Reference, path: Path
    ) -> Node:
        names: Path = reference.names
        if reference.ups:
            around = [path[:end] for end, step in enumerate(path) if isinstance(step, str)]
            place = len(around) - 1 - reference.ups
            if place >= 0:
                return self._at(description, (*around[place], *names), node)
            if place < -1:
                self.mistakes.at(node, f"'{reference.text}' climbs out of all that is described")
                raise ReportedError
        elif names[0] in ENVIRONMENT.attributes or names[0] == "name":
            return self._at(description, names, node)
        return self._elsewhere(node, reference)

    def _elsewhere(self, node: Scalar, reference: Reference) -> Node:
        """What another environment has, one of the same file or of a file before it."""
        name, *rest = reference.names
        other = self.known.get(name)
        if other is None or other.source.rank > node.source.rank:
            near = self.mistakes.near(name, self._visible(node.source.rank))
            self.mistakes.at(
                node,
                f"'{reference.text}' refers to nothing: '{name}' is neither an attribute nor an"
                " environment of this file or of one before it"
                + (near if "did you mean" in near else "")
                + "; write '$${' for the characters '${'",
            )
            raise ReportedError
        if not rest:
            self.mistakes.at(
                node,
                f"'{reference.text}' is a whole environment; name one of its attributes, as in"
                f" ${{{name}.memory}}",
            )
            raise ReportedError
        return self._at(other, tuple(rest), node)

    def _visible(self, rank: int) -> list[str]:
        """What a reference in a file of this rank can begin with."""
        if rank not in self.visible:
            names = [other.name for other in self.known.values() if other.source.rank <= rank]
            self.visible[rank] = [*ENVIRONMENT.attributes, *names]
        return self.visible[rank]

    def _report_cycle(self, key: tuple[str, Path], by: Node) -> None:
        ways = list(self.active)
        ring = [_shown(*way) for way in [*ways[ways.index(key) :], key]]
        self.mistakes.at(by, f"this reference leads back to itself: {' → '.join(ring)}")
        raise ReportedError

    def _report_depth(self, by: Node) -> None:
        self.mistakes.at(by, f"more than {DEEPEST} references lead to one another here")
        raise ReportedError

    def _report_dangling(
        self, description: Description, path: Path, around: Node, by: Node
    ) -> None:
        known = around.entries if isinstance(around, Mapping) else {}
        near = self.mistakes.near(str(path[-1]), known)
        self.mistakes.at(
            by,
            f"there is no '{_dotted(path)}' in environment '{description.name}' to refer to{near}",
        )
        raise ReportedError


def _copied(target: Node, node: Scalar) -> Node:
    """A value where it is wanted; its relative paths still start where they were written."""
    line, column, source = node.line, node.column, node.source
    if isinstance(target, Mapping):
        return Mapping(target.entries, {}, line, column, source, weight=target.weight)
    if isinstance(target, Sequence):
        return Sequence(target.items, line, column, source, weight=target.weight)
    base = target.base or target.source
    return Scalar(target.text, target.plain, line, column, source, settled=True, base=base)


def _default(description: Description, path: Path) -> Node | None:
    """What an attribute is that nobody wrote."""
    if path == ("name",):
        return Scalar(description.name, False, 0, 0, NOWHERE)
    record: Record = ENVIRONMENT
    for step in path[:-1]:
        attribute = record.attributes.get(str(step))
        if attribute is None or not isinstance(attribute.kind, Record) or step == "image":
            return None
        record = attribute.kind
    attribute = record.attributes.get(str(path[-1]))
    if attribute is None:
        return None
    if isinstance(attribute.kind, Record):
        return Mapping({}, {}, 0, 0, NOWHERE)
    if attribute.is_list:
        return Sequence([], 0, 0, NOWHERE)
    return None if attribute.default is None else Scalar(attribute.default, True, 0, 0, NOWHERE)


def _dotted(path: Path) -> str:
    return ".".join(str(step) for step in path)


def _shown(name: str, path: Path) -> str:
    return f"{name}.{_dotted(path)}"
