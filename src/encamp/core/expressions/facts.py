"""Facts of things: `host.load1`, `machine.host.load1`, `hosts['node1'].load1`, `host.disks[0]`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from encamp.core.expressions.aggregate import Selection
from encamp.core.expressions.frame import Frame, NotKnown, Run
from encamp.core.expressions.language import METHODS
from encamp.core.expressions.logic import holds
from encamp.core.expressions.mistakes import near
from encamp.core.expressions.part import (
    ANY,
    BOOL,
    PLAIN,
    WORDS,
    FactRead,
    Part,
    Read,
    Shape,
    Step,
    is_plain,
    source_of,
    words,
    words_of,
)
from encamp.core.schema import Type
from encamp.core.world import MISSING, Thing, Unknown

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler

ONE_TYPE: dict[Type, type] = {Type.BOOL: bool, Type.INT: int, Type.STR: str, Type.DICT: dict}
"""Facts of these types are of exactly one type in Python. That they are is checked on each
reading: values come from agents, and nothing else stands between them and an operation."""

SEVERAL_TYPES: dict[Type, frozenset[type]] = {
    Type.FLOAT: frozenset({float, int}),
    Type.LIST: frozenset({list, tuple}),
    Type.ANY: PLAIN,
}

JOINED = "joined"


def subject(frame: Frame) -> Any:
    return frame.subject


# ── attributes ───────────────────────────────────────────────────────────────────────────────────


def attribute(compiler: Compiler, node: ast.Attribute) -> Part:
    if isinstance(node.value, ast.Name) and node.value.id == "manager":
        found = _of_manager(compiler, node)
        if found is not None:
            return found
    owner = compiler.quiet(node.value)
    if owner.broken:
        return owner
    return fact(compiler, node, owner, node.attr)


def _of_manager(compiler: Compiler, node: ast.Attribute) -> Part | None:
    """Perugia's name for the hosts whose agents have joined."""
    if "manager" in compiler.schema.kinds or any("manager" in scope for scope in compiler.scopes):
        return None
    if node.attr != "clients":
        return compiler.mistake(
            node, f"the manager has no '{node.attr}'; there is only manager.clients."
        )
    return chosen(compiler, node, "host", "presence", lambda value: value == JOINED, "joined")


def chosen(
    compiler: Compiler, node: ast.AST, kind: str, name: str, fits: Callable[[Any], bool], label: str
) -> Part:
    """A collection of those things of a kind of which a fact fits."""
    known = compiler.schema.kinds.get(kind)
    if known is None or name not in known.facts:
        return compiler.mistake(node, f"this site knows no {kind}s with a '{name}'.")
    kind_of_fact = known.facts[name].type
    read = FactRead("_", "", (Step(kind, name),), kind_of_fact)
    value = reader(None, name, kind_of_fact, f"{kind}.{name}")
    condition = Part(node, BOOL, lambda frame: fits(value(frame)), frozenset({read}))
    selection = Selection(kind, among=(condition,), words=(f"{name} {label}",))
    return Part(node, Shape(Type.LIST, thing=kind, many=True), subject, selection=selection)


def fact(compiler: Compiler, node: ast.AST, owner: Part, name: str) -> Part:
    """A fact of a thing, or of the thing that a fact refers to."""
    shape = owner.shape
    if shape.many:
        plural = compiler.schema.kinds[shape.thing].plural
        return compiler.mistake(
            node,
            f"{source_of(owner.node)} stands for many {plural}; write '{shape.thing}.{name}' for"
            f" each of them, or max(x.{name} for x in {source_of(owner.node)}).",
        )
    kind = compiler.schema.kinds.get(shape.thing or shape.refers)
    if kind is None or owner.path is None:
        return compiler.mistake(node, _no_facts(owner, name))
    known = kind.facts.get(name)
    if known is None:
        return compiler.mistake(node, f"a {kind.name} has no '{name}'{near(name, kind.facts)}")
    thing = owner.run if shape.thing else referred(owner.run, kind.name)
    path = extended(owner.path, Step(kind.name, name), known.type)
    direct = shape.thing and owner.path.variable and len(owner.path.steps) == 1
    run = reader(None if direct else thing, name, known.type, source_of(node))
    return Part(
        node,
        Shape(known.type, refers=known.refers if known.refers in compiler.schema.kinds else ""),
        run,
        owner.reads | {path},
        path=path,
        fact=path.steps[-1],
    )


def extended(path: FactRead, step: Step, kind: Type) -> FactRead:
    """One step further. The step that only asks for the thing itself is taken along for free."""
    steps = path.steps[:-1] if path.steps[-1].fact == "" else path.steps
    return path._replace(steps=(*steps, step), type=kind)


def _no_facts(owner: Part, name: str) -> str:
    text = source_of(owner.node)
    if owner.shape.type is Type.STR and name in METHODS:
        return f"'{name}' is a method; write {METHODS[name].usage}."
    if owner.shape.type in (Type.DICT, Type.ANY):
        return f"{text} is {words(owner.shape)}; its parts are written {text}['{name}']."
    hint = near(name, METHODS) if owner.shape.type is Type.STR else "."
    return f"{text} is {words(owner.shape)} and has no '{name}'{hint}"


def referred(key: Run, kind: str) -> Run:
    def follow(frame: Frame) -> Any:
        name = key(frame)
        thing = frame.things[kind].get(name)
        if thing is None:
            raise NotKnown(f"there is no {kind} '{name}'")
        return thing

    return follow


def reader(thing: Run | None, name: str, kind: Type, text: str) -> Run:
    """Reads a fact of the subject (None) or of another thing."""
    only = ONE_TYPE.get(kind)
    if thing is None and only is not None and only is not str:

        def of_subject(frame: Frame) -> Any:
            value = frame.subject.facts.get(name)
            if type(value) is only:
                return value
            raise _unreadable(frame.subject, name, kind, text)

        return of_subject
    if thing is None and kind is Type.FLOAT:

        def number_of_subject(frame: Frame) -> Any:
            value = frame.subject.facts.get(name)
            if type(value) is float or type(value) is int:
                return value
            raise _unreadable(frame.subject, name, kind, text)

        return number_of_subject
    types = SEVERAL_TYPES.get(kind) or frozenset({ONE_TYPE[kind]})
    find = thing or subject

    def of_thing(frame: Frame) -> Any:
        found = find(frame)
        value = found.facts.get(name, MISSING)
        if type(value) in types and is_plain(value):
            return value
        raise _unreadable(found, name, kind, text)

    return of_thing


def _unreadable(thing: Thing, name: str, kind: Type, text: str) -> NotKnown:
    value = thing.facts.get(name, MISSING)
    if isinstance(value, Unknown):
        return NotKnown(f"{text} is not known: {value.reason}")
    return NotKnown(f"{text} should be {WORDS[kind]}, but is {words_of(value)}")


# ── subscripts ───────────────────────────────────────────────────────────────────────────────────


def subscript(compiler: Compiler, node: ast.Subscript) -> Part:
    owner = compiler.quiet(node.value)
    if owner.broken:
        return owner
    if owner.selection is not None:
        return _one_of(compiler, node, owner)
    if owner.shape.thing or owner.shape.refers:
        name = _constant_text(node.slice)
        if name is None:
            return compiler.mistake(
                node.slice, "the name of a fact is expected here, in quotes: host['load1']."
            )
        return fact(compiler, node, owner, name)
    if owner.path is not None:
        compiler.show(owner)
    return _element(compiler, node, owner)


def _constant_text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and type(node.value) is str:
        return node.value
    return None


def _one_of(compiler: Compiler, node: ast.Subscript, owner: Part) -> Part:
    """`hosts['node1']`."""
    selection = owner.selection
    assert selection is not None
    key = _constant_text(node.slice)
    if key is None or not isinstance(node.value, ast.Name):
        plural = compiler.schema.kinds[selection.kind].plural
        return compiler.mistake(node, f"the key of one is expected here: {plural}['name'].")
    kind = selection.kind
    path = FactRead("", key, (Step(kind, ""),), Type.STR)

    def find(frame: Frame) -> Any:
        thing = frame.things[kind].get(key)
        if thing is None:
            raise NotKnown(f"there is no {kind} '{key}'")
        return thing

    return Part(node, Shape(Type.STR, thing=kind), find, frozenset({path}), path=path)


def _element(compiler: Compiler, node: ast.Subscript, owner: Part) -> Part:
    index = compiler.value(node.slice)
    if index.broken:
        return index
    allowed = {
        Type.LIST: {Type.INT, Type.ANY},
        Type.DICT: {Type.STR, Type.ANY},
        Type.ANY: {Type.INT, Type.STR, Type.ANY},
    }.get(owner.shape.type)
    if allowed is None:
        return compiler.mistake(node, f"{words(owner.shape)} has no elements to be chosen with [].")
    if index.shape.type not in allowed:
        return compiler.mistake(
            node.slice,
            f"{words(owner.shape)} is not looked into with {words(index.shape)}.",
        )
    values, at = owner.run, index.run

    def choose(frame: Frame) -> Any:
        found, position = values(frame), at(frame)
        try:
            if (type(found) in (list, tuple) and type(position) is int) or (
                type(found) is dict and type(position) is str
            ):
                value = found[position]
                if is_plain(value):
                    return value
        except LookupError:
            raise NotKnown(f"{source_of(node.value)} has no element {position!r:.80}") from None
        raise NotKnown(f"{source_of(node)} cannot be found in {words_of(found)}")

    return compiler.made(node, ANY, choose, owner, index)


# ── belonging ────────────────────────────────────────────────────────────────────────────────────


def belongs(
    compiler: Compiler, node: ast.Compare, left: Part, selection: Selection, negated: bool
) -> Part:
    """`host in group('workers')`, `machine.host in manager.clients`, `'node1' in hosts`."""
    kind = selection.kind
    if left.broken:
        return left
    path: FactRead | None = None
    if left.constant and type(left.value) is str:
        path = FactRead("", left.value, (Step(kind, ""),), Type.STR)
    elif left.shape.refers == kind:
        path = left.path
    if path is None or selection.pairs or selection.timed:
        plural = compiler.schema.kinds[kind].plural
        return compiler.mistake(
            node,
            f"'in' tells whether a {kind} is one of these {plural}; otherwise write"
            f" any(x.name == ... for x in {plural}).",
        )
    reads: frozenset[Read] = left.reads | {extended(path, Step(kind, ""), Type.STR)}
    for condition in selection.lasting:
        for read in condition.reads:
            if isinstance(read, FactRead):
                further = path
                for step in read.steps:
                    further = extended(further, step, read.type)
                reads |= {further}
    conditions = tuple(condition.run for condition in selection.lasting)
    find = left.run

    def inside(frame: Frame) -> bool:
        thing = frame.things[kind].get(find(frame))
        if thing is None:
            return negated
        outside, frame.subject = frame.subject, thing
        try:
            return holds(conditions, frame) is not negated
        finally:
            frame.subject = outside

    return compiler.show(Part(node, BOOL, inside, reads))
