"""From syntax to closures: every name is looked up, every type is checked, and all mistakes are
collected rather than only the first."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from encamp.core.expressions import (
    arithmetic,
    comparisons,
    facts,
    functions,
    literals,
    logic,
    loops,
)
from encamp.core.expressions.aggregate import Aggregate, Selection
from encamp.core.expressions.frame import Frame, NotKnown, Run, TooMuch
from encamp.core.expressions.language import (
    CALLABLE,
    CONSTANTS,
    TIMES,
)
from encamp.core.expressions.mistakes import ExpressionError, Mistake, near
from encamp.core.expressions.parsing import Source
from encamp.core.expressions.part import (
    ANY,
    BOOL,
    FLOAT,
    INT,
    NO_READS,
    NUMBERS,
    OF_PYTHON,
    FactRead,
    LocalRead,
    Part,
    Shape,
    Step,
    TimeRead,
    Variable,
    source_of,
    words,
    words_of,
)
from encamp.core.schema import Schema, Type


@dataclasses.dataclass(slots=True, frozen=True)
class Shown:
    """Something that is read, told as the value that was seen."""

    text: str
    run: Run
    aggregate: Aggregate | None = None


def _nothing(aggregate: Aggregate, frame: Frame) -> Any:
    raise NotKnown("there is no site to look at")


class Compiler:
    def __init__(self, source: Source, schema: Schema, about: Collection[str] | None) -> None:
        self.source = source
        self.schema = schema
        self.about = about
        self.subject: str | None = None
        """The kind that the expression has turned out to be about."""
        self.mistakes: list[Mistake] = []
        self.shown: dict[str, Shown] = {}
        self.scopes: list[dict[str, Variable]] = []
        self.element: str | None = None
        """The variable of the collection that is being gone through, if one is."""

    # ── results ──────────────────────────────────────────────────────────────────────────────────

    def mistake(self, node: ast.AST, sentence: str) -> Part:
        self.mistakes.append(self.source.mistake_at(node, sentence))
        return self.broken(node)

    def broken(self, node: ast.AST) -> Part:
        return Part(node, ANY, _unreachable, broken=True)

    def made(self, node: ast.AST, shape: Shape, run: Run, *parts: Part) -> Part:
        """A part made of others. If they are all constant, so is it."""
        if any(part.broken for part in parts):
            return Part(node, shape, run, broken=True)
        reads = NO_READS.union(*(part.reads for part in parts))
        if all(part.constant for part in parts):
            try:
                value = run(Frame({}, None, 0.0, _nothing))
            except NotKnown as unknown:
                return self.mistake(node, f"this has no value: {unknown.reason}.")
            except TooMuch:
                return self.mistake(node, "this takes too many steps.")
            return self.constant(node, value, shape)
        return Part(node, shape, run, reads)

    def constant(self, node: ast.AST, value: Any, shape: Shape | None = None) -> Part:
        return Part(
            node,
            shape or self.shape_of(value),
            lambda frame: value,
            constant=True,
            value=value,
        )

    @staticmethod
    def shape_of(value: object) -> Shape:
        return Shape(OF_PYTHON.get(type(value), Type.ANY))

    def show(self, part: Part, aggregate: Aggregate | None = None) -> Part:
        """Tell its value with the outcome, unless it has one value per round of a loop."""
        if self.element is None and not any(isinstance(read, LocalRead) for read in part.reads):
            text = source_of(part.node)
            self.shown.setdefault(text, Shown(text, part.run, aggregate))
        return part

    # ── parts of some sort ───────────────────────────────────────────────────────────────────────

    def part(self, node: ast.AST) -> Part:
        part = self.quiet(node)
        if part.path is not None and not part.broken and not part.shape.thing:
            self.show(part)
        return part

    def quiet(self, node: ast.AST) -> Part:
        """Like `part`, for what is only on the way to a fact."""
        return BUILDERS[type(node)](self, node)

    def value(self, node: ast.AST) -> Part:
        return self.as_value(self.part(node))

    def as_value(self, part: Part) -> Part:
        """A thing is its key where a value is asked for."""
        if part.selection is not None:
            plural = self.schema.kinds[part.selection.kind].plural
            return self.mistake(
                part.node,
                f"{source_of(part.node)} stands for many {plural}; ask for len(...) of it, or"
                " any(...), sum(...), max(...) over it.",
            )
        if not part.shape.thing:
            return part
        run = part.run
        keyed = Part(
            part.node,
            Shape(Type.STR, refers=part.shape.thing),
            lambda frame: run(frame).key,
            part.reads,
            path=part.path,
        )
        return self.show(keyed)

    def truth(self, node: ast.AST) -> Part:
        part = self.value(node)
        if part.broken or part.shape.type is Type.BOOL:
            return part
        if part.shape.type is Type.ANY:
            return self.checked(part, BOOL, frozenset({bool}))
        hint = {
            Type.INT: "compare it: '!= 0'",
            Type.FLOAT: "compare it: '!= 0'",
            Type.STR: "compare it: \"!= ''\"",
        }.get(part.shape.type, "compare its len(...)")
        return self.mistake(node, f"this is {words(part.shape)}, not true or false; {hint}.")

    def number(self, node: ast.AST, asks: str) -> Part:
        part = self.value(node)
        if part.broken or part.shape.type in NUMBERS:
            return part
        if part.shape.type is Type.ANY:
            return self.checked(part, FLOAT, frozenset({int, float}))
        return self.mistake(node, f"{asks} takes a number, not {words(part.shape)}.")

    def whole(self, node: ast.AST, asks: str) -> Part:
        part = self.value(node)
        if part.broken or part.shape.type is Type.INT:
            return part
        if part.shape.type is Type.ANY:
            return self.checked(part, INT, frozenset({int}))
        return self.mistake(node, f"{asks} is a whole number, not {words(part.shape)}.")

    def text(self, node: ast.AST, asks: str) -> Part:
        part = self.value(node)
        if part.broken or part.shape.type is Type.STR:
            return part
        if part.shape.type is Type.ANY:
            return self.checked(part, Shape(Type.STR), frozenset({str}))
        return self.mistake(node, f"{asks} takes a text, not {words(part.shape)}.")

    def checked(self, part: Part, shape: Shape, types: frozenset[type]) -> Part:
        """A part whose type is known only when it runs is looked at then."""
        run, node = part.run, part.node

        def look(frame: Frame) -> Any:
            value = run(frame)
            if type(value) in types:
                return value
            raise NotKnown(
                f"{source_of(node)} is {words_of(value)}, where {words(shape)} is needed"
            )

        return self.made(node, shape, look, part)

    # ── names ────────────────────────────────────────────────────────────────────────────────────

    def name(self, node: ast.Name) -> Part:
        name = node.id
        for scope in reversed(self.scopes):
            if name in scope:
                return self._variable(node, scope[name])
        if name in self.schema.kinds:
            return self._subject(node, name)
        kind = self.schema.kind_of_plural(name)
        if kind is not None:
            return Part(
                node,
                Shape(Type.LIST, thing=kind.name, many=True),
                _unreachable,
                selection=Selection(kind.name),
            )
        if name in CONSTANTS:
            return self.constant(node, CONSTANTS[name])
        if name in TIMES:
            return self._time(node, name)
        if name in CALLABLE:
            return self.mistake(node, f"'{name}' is a function; write {name}(...).")
        if name == "manager":
            return self.mistake(node, "of the manager there is only manager.clients.")
        return self.mistake(node, f"there is no '{name}'{near(name, self.names())}")

    def names(self) -> list[str]:
        """All that can be written where a value is expected."""
        found = {*CONSTANTS, *TIMES, *CALLABLE, "manager.clients"}
        for kind in self.schema.kinds.values():
            found |= {kind.name, kind.plural}
        return sorted(found.union(*self.scopes))

    def _variable(self, node: ast.Name, variable: Variable) -> Part:
        if not variable.kind:
            name = node.id
            return Part(node, ANY, lambda frame: frame.slots[name], frozenset({LocalRead(name)}))
        return self._thing(node, variable.kind)

    def _subject(self, node: ast.Name, kind: str) -> Part:
        if self.about is not None and kind not in self.about:
            others = [self.schema.kinds[name].name for name in self.about]
            plural = self.schema.kinds[kind].plural
            hint = f"it is about each {others[0]}" if others else f"speak of all {plural}"
            return self.mistake(node, f"there is no single {kind} here; {hint}.")
        if self.subject is None:
            self.subject = kind
        elif self.subject != kind:
            return self.mistake(
                node,
                f"this is about each {self.subject} already, so it cannot be about each {kind} too;"
                f" go through {self.schema.kinds[kind].plural} with any(... for ... in ...).",
            )
        return self._thing(node, kind)

    def _thing(self, node: ast.Name, kind: str) -> Part:
        path = FactRead(node.id, "", (Step(kind, ""),), Type.STR)
        return Part(
            node,
            Shape(Type.STR, thing=kind),
            facts.subject,
            frozenset({path}),
            path=path,
        )

    def _time(self, node: ast.Name, name: str) -> Part:
        if name == "now":
            return self.show(
                Part(node, FLOAT, lambda frame: frame.now, frozenset({TimeRead(name)}))
            )
        if name == "weekday":
            return self.show(
                Part(node, INT, lambda frame: frame.clock.weekday(), frozenset({TimeRead(name)}))
            )
        field = TIME_FIELDS[name]
        return self.show(
            Part(node, INT, lambda frame: field(frame.clock), frozenset({TimeRead(name)}))
        )

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def raise_any(self) -> None:
        if self.mistakes:
            raise ExpressionError(self.source.text, self.mistakes)


def _unreachable(frame: Frame) -> Any:
    raise NotKnown("it has no value of its own")


TIME_FIELDS: dict[str, Callable[[Any], int]] = {
    "hour": lambda clock: int(clock.hour),
    "minute": lambda clock: int(clock.minute),
    "day": lambda clock: int(clock.day),
    "month": lambda clock: int(clock.month),
}

BUILDERS: dict[type[ast.AST], Callable[[Compiler, Any], Part]] = {
    ast.Constant: literals.constant,
    ast.List: literals.sequence,
    ast.Tuple: literals.sequence,
    ast.Set: literals.sequence,
    ast.Dict: literals.mapping,
    ast.JoinedStr: literals.joined_text,
    ast.Name: Compiler.name,
    ast.Attribute: facts.attribute,
    ast.Subscript: facts.subscript,
    ast.Call: functions.call,
    ast.BoolOp: logic.logic,
    ast.BinOp: arithmetic.binary,
    ast.UnaryOp: arithmetic.unary,
    ast.Compare: comparisons.compare,
    ast.IfExp: logic.choice,
    ast.GeneratorExp: loops.listed,
    ast.ListComp: loops.listed,
}
