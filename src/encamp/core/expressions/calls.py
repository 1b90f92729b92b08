"""Calls: what the command of a trigger consists of."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from encamp.core.expressions.aggregate import Measure, Selection
from encamp.core.expressions.compiler import Compiler, Shown
from encamp.core.expressions.expression import wanted
from encamp.core.expressions.frame import Frame, NotKnown, Run
from encamp.core.expressions.loops import over_things
from encamp.core.expressions.mistakes import near
from encamp.core.expressions.parsing import Source, parse_calls
from encamp.core.expressions.part import NO_READS, STR, Part, Read, source_of, words, words_of
from encamp.core.expressions.reading import is_timed
from encamp.core.expressions.signature import Argument, Signature
from encamp.core.schema import Schema, Type
from encamp.core.world import Unknown
from encamp.model.property import Value


@dataclasses.dataclass(slots=True, frozen=True, eq=False)
class Call:
    text: str
    """This call alone."""
    function: str
    about: str | None
    timed: bool
    constants: dict[str, Value]
    """Arguments that are written down as they are."""
    line: int
    column: int
    arguments: tuple[tuple[str, Run], ...]
    uses: frozenset[Read]
    shown: tuple[Shown, ...]


class Prepared(msgspec.Struct, frozen=True):
    """A call with the values of its arguments."""

    function: str
    arguments: dict[str, Any]
    """By name, those that were given. A thing is its key; where several are welcome it is a tuple
    of keys."""
    unknown: Unknown | None
    """Why it cannot be made, if it cannot."""
    seen: dict[str, Value]


def compile_call(
    text: str,
    schema: Schema,
    signatures: Mapping[str, Signature],
    *,
    about: Collection[str] | None = None,
) -> tuple[Call, ...]:
    """One or several calls, separated by `;` or line ends. Raises ExpressionError with all
    mistakes that are found."""
    source = Source(text)
    compiler = Compiler(source, schema, about)
    found = [_Binding(compiler, node, signatures) for node in parse_calls(source)]
    for binding in found:
        binding.bind()
    compiler.raise_any()
    return tuple(binding.call() for binding in found)


def dotted(node: ast.expr) -> str | None:
    """`sender.send_get_property` of its syntax."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


class _Binding:
    """Finds out which argument is which."""

    def __init__(
        self, compiler: Compiler, node: ast.Call, signatures: Mapping[str, Signature]
    ) -> None:
        self.compiler = compiler
        self.node = node
        self.signatures = signatures
        self.function = ""
        self.parts: dict[str, Part] = {}
        self.more: list[Part] = []
        self.signature: Signature | None = None
        self.shown: tuple[Shown, ...] = ()

    def bind(self) -> None:
        name = dotted(self.node.func)
        self.signature = self.signatures.get(name) if name is not None else None
        if name is None or self.signature is None:
            given = name or "this"
            self._wrong(
                self.node.func, f"'{given}' cannot be called here{near(given, self.signatures)}"
            )
            return
        self.function = name
        self.compiler.shown = {}
        known = {argument.name: argument for argument in self.signature.arguments}
        self._positional(self.signature)
        self._named(self.signature, known)
        missing = [
            one.name for one in known.values() if one.required and one.name not in self.parts
        ]
        if missing:
            self._wrong(self.node, f"{name}() needs {', '.join(repr(one) for one in missing)} too.")
        self.shown = tuple(self.compiler.shown.values())

    def _wrong(self, node: ast.AST, sentence: str) -> None:
        self.compiler.mistake(node, sentence)

    def _positional(self, signature: Signature) -> None:
        for index, node in enumerate(self.node.args):
            if index < len(signature.arguments):
                argument = signature.arguments[index]
                self.parts[argument.name] = self._argument(argument, node)
            elif signature.more is not None:
                self.more.append(self._argument(signature.more, node))
            else:
                most = len(signature.arguments)
                self._wrong(
                    node, f"{signature.name}() takes {most or 'no'} arguments without a name."
                )

    def _named(self, signature: Signature, known: Mapping[str, Argument]) -> None:
        taken = dict(known)
        # What is chosen by an argument can be given by name as well.
        for keyword in self.node.keywords:
            if keyword.arg == signature.chosen_by and keyword.arg not in self.parts:
                self.parts[keyword.arg] = self._argument(known[keyword.arg], keyword.value)
        chosen = self._chosen(signature)
        if chosen is None:
            return
        taken |= {argument.name: argument for argument in chosen}
        given: set[str] = set()
        for keyword in self.node.keywords:
            name = keyword.arg
            if name is None:
                self._wrong(keyword.value, "'**' is not part of the language.")
            elif name in given or (name in self.parts and name != signature.chosen_by):
                self._wrong(keyword.value, f"'{name}' is given twice.")
            elif name not in taken:
                self._wrong(keyword.value, f"there is no argument '{name}'{near(name, taken)}")
            elif name not in self.parts:
                self.parts[name] = self._argument(taken[name], keyword.value)
            if name is not None:
                given.add(name)
        missing = [one.name for one in chosen if one.required and one.name not in self.parts]
        if missing:
            value = self.parts[signature.chosen_by].value
            self._wrong(self.node, f"'{value}' needs {', '.join(map(repr, missing))} too.")

    def _chosen(self, signature: Signature) -> Iterable[Argument] | None:
        """The arguments that go with the value of another; None if that is wrong already."""
        part = self.parts.get(signature.chosen_by)
        if not signature.chosen_by or part is None:
            return ()
        if part.broken:
            return None
        if not part.constant or type(part.value) is not str:
            self._wrong(part.node, f"'{signature.chosen_by}' must be written as it is, in quotes.")
            return None
        if part.value not in signature.chosen:
            self._wrong(
                part.node, f"there is no '{part.value}'{near(part.value, signature.chosen)}"
            )
            return None
        return signature.chosen[part.value]

    def _argument(self, argument: Argument, node: ast.expr) -> Part:
        compiler = self.compiler
        part = compiler.part(node)
        if argument.things:
            part = _things(compiler, argument, part)
        elif part.selection is not None and argument.type in (Type.LIST, Type.ANY):
            part = _members(compiler, part.node, part.selection, as_list=True)
        else:
            part = wanted(compiler, compiler.as_value(part), argument.type)
        if part.broken:
            return part
        if argument.constant and not part.constant:
            return compiler.mistake(node, f"'{argument.name}' must be written as it is.")
        if argument.choices and part.constant and part.value not in argument.choices:
            hint = near(str(part.value), argument.choices)
            return compiler.mistake(node, f"'{part.value}' is no {argument.name}{hint}")
        return part

    def call(self) -> Call:
        assert self.signature is not None
        parts = dict(self.parts)
        if self.more and self.signature.more is not None:
            runs = tuple(part.run for part in self.more)
            parts[self.signature.more.name] = self.compiler.made(
                self.node, STR, lambda frame: [run(frame) for run in runs], *self.more
            )
        uses = NO_READS.union(*(part.reads for part in parts.values()))
        place = self.compiler.source.mistake_at(self.node, "")
        return Call(
            text=source_of(self.node),
            function=self.function,
            about=self.compiler.subject,
            timed=is_timed(uses),
            constants={name: part.value for name, part in parts.items() if part.constant},
            line=place.line,
            column=place.column,
            arguments=tuple((name, part.run) for name, part in parts.items()),
            uses=uses,
            shown=self.shown,
        )


# ── things as arguments ──────────────────────────────────────────────────────────────────────────


def _members(
    compiler: Compiler, node: ast.AST, selection: Selection, *, as_list: bool = False
) -> Part:
    assert isinstance(node, ast.expr)
    part = over_things(compiler, node, selection, None, Measure.MEMBERS, node)
    if not as_list:
        return part
    run = part.run
    return dataclasses.replace(part, run=lambda frame: list(run(frame)))


def _things(compiler: Compiler, argument: Argument, part: Part) -> Part:
    kind = compiler.schema.kinds[argument.things]
    if part.broken:
        return part
    of = part.shape.thing or part.shape.refers
    if of and of != kind.name:
        hint = next(
            (
                f"; did you mean '{source_of(part.node)}.{name}'?"
                for name, fact in compiler.schema.kinds[of].facts.items()
                if fact.refers == kind.name and not part.shape.many
            ),
            ".",
        )
        return compiler.mistake(part.node, f"'{argument.name}' is a {kind.name}, not a {of}{hint}")
    if part.selection is not None:
        if argument.many:
            return _members(compiler, part.node, part.selection)
        return compiler.mistake(
            part.node, f"'{argument.name}' is one {kind.name}, not many {kind.plural}."
        )
    if not of and not argument.by_key:
        return compiler.mistake(
            part.node,
            f"'{argument.name}' is a {kind.name}, not {words(part.shape)}; write '{kind.name}', or"
            f" choose some of them as [{kind.name[0]} for {kind.name[0]} in {kind.plural} if ...].",
        )
    value = compiler.as_value(part)
    types = (Type.STR, Type.ANY, Type.LIST) if argument.many else (Type.STR, Type.ANY)
    if value.broken or value.shape.type not in types:
        return (
            value
            if value.broken
            else compiler.mistake(
                part.node, f"'{argument.name}' is a {kind.name}, not {words(part.shape)}."
            )
        )
    run = value.run

    def keys(frame: Frame) -> Any:
        found = run(frame)
        if type(found) is str:
            return (found,) if argument.many else found
        if argument.many and type(found) in (list, tuple):
            if all(type(key) is str for key in found):
                return tuple(found)
            raise NotKnown(f"{source_of(part.node)} is a list, but not of names")
        raise NotKnown(f"{source_of(part.node)} is {words_of(found)}, not a {kind.name}")

    return compiler.made(part.node, value.shape, keys, value)
