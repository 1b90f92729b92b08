"""Functions about what is known, and what has changed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from encamp.core.expressions import facts
from encamp.core.expressions.frame import Frame, NotKnown, Run
from encamp.core.expressions.mistakes import near
from encamp.core.expressions.part import (
    BOOL,
    LocalRead,
    MomentRead,
    Part,
    is_plain,
    source_of,
    words_of,
)

if TYPE_CHECKING:
    from encamp.core.expressions.compiler import Compiler


def group(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    argument = arguments[0]
    if not (isinstance(argument, ast.Constant) and type(argument.value) is str):
        return compiler.mistake(argument, "the name of a group is expected here: group('workers').")
    name: str = argument.value
    if name not in compiler.schema.groups:
        return compiler.mistake(
            argument, f"there is no group '{name}'{near(name, compiler.schema.groups)}"
        )
    return facts.chosen(
        compiler, node, "host", "groups", lambda groups: name in groups, f"has {name!r}"
    )


def known(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    part = compiler.value(arguments[0])
    inner = part.run

    def is_known(frame: Frame) -> bool:
        try:
            inner(frame)
        except NotKnown:
            return False
        return True

    return compiler.made(node, BOOL, is_known, part)


def moment(
    compiler: Compiler, node: ast.Call, arguments: list[ast.expr], name: str
) -> tuple[Part, Run] | Part:
    """The fact that `changed` or `previous` asks about, and how to find the thing it is of."""
    part = compiler.part(arguments[0])
    if part.broken:
        return part
    if compiler.element is not None or any(isinstance(read, LocalRead) for read in part.reads):
        return compiler.mistake(
            node, f"{name}() cannot be asked inside a loop; ask it of the thing this is about."
        )
    if part.path is None or part.path.steps[-1].fact == "":
        return compiler.mistake(
            arguments[0], f"{name}() is asked of a fact, such as {name}(host.presence)."
        )
    return part, owner_of(compiler, arguments[0])


def owner_of(compiler: Compiler, node: ast.expr) -> Run:
    assert isinstance(node, (ast.Attribute, ast.Subscript))
    owner = compiler.quiet(node.value)
    if owner.shape.thing:
        return owner.run
    return facts.referred(owner.run, owner.shape.refers)


def changed(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    found = moment(compiler, node, arguments, "changed")
    if isinstance(found, Part):
        return found
    part, owner = found
    assert part.path is not None
    kind, fact = part.path.steps[-1]

    def has_changed(frame: Frame) -> bool:
        return (kind, owner(frame).key, fact) in frame.changes.old

    return compiler.show(Part(node, BOOL, has_changed, part.reads | {MomentRead("changed")}))


def previous(compiler: Compiler, node: ast.Call, arguments: list[ast.expr]) -> Part:
    found = moment(compiler, node, arguments, "previous")
    if isinstance(found, Part):
        return found
    part, owner = found
    assert part.path is not None
    kind, fact = part.path.steps[-1]
    current = part.run
    types = facts.SEVERAL_TYPES.get(part.shape.type) or {facts.ONE_TYPE[part.shape.type]}

    def before(frame: Frame) -> Any:
        place = (kind, owner(frame).key, fact)
        if place not in frame.changes.old:
            return current(frame)
        value = frame.changes.old[place]
        if type(value) in types and is_plain(value):
            return value
        raise NotKnown(f"{source_of(node)} is not known: it was {words_of(value)}")

    reads = part.reads | {MomentRead("previous")}
    made = Part(node, part.shape, before, reads, fact=part.fact)
    return compiler.show(made)
