"""What broke other safe evaluators of Python's syntax (simpleeval, asteval, RestrictedPython) is
refused when it is loaded."""

from __future__ import annotations

import ast
import inspect

import pytest

from encamp.core.expressions import (
    Argument,
    ExpressionError,
    Signature,
    compile_call,
    compile_expression,
    language,
)
from encamp.core.schema import Type
from tests.core.expressions.site_of_tests import SCHEMA

WIDE = "\N{FULLWIDTH LOW LINE}"
"""Python takes it for the ordinary one, after it has read the text."""

ESCAPES = {
    "attributes of types": "().__class__.__bases__[0].__subclasses__()",
    "attributes of texts": "''.__class__.__mro__[1]",
    "attributes of a fact": "host.name.__class__",
    "attributes of a thing": "host.facts",
    "slots of a thing": "host.__slots__",
    "methods of a thing": "host.fact('name')",
    "key of a thing that is no fact": "host.kind",
    "attributes of a collection": "hosts.__len__()",
    "attributes by subscript": "host['__class__']",
    "attributes of a number": "(1).__class__",
    "numerator of a number": "(1).numerator",
    "attributes of a function": "len.__self__",
    "globals of a function": "matches.__globals__",
    "builtins": "__builtins__",
    "import": "__import__('os').system('true')",
    "getattr": "getattr(host, '__class__')",
    "getattr by a method": "host.__getattribute__('facts')",
    "setattr": "setattr(host, 'name', 'x')",
    "type": "type(host)",
    "type of three": "type('X', (), {})",
    "eval": "eval('1')",
    "exec": "exec('1')",
    "compile": "compile('1', '', 'eval')",
    "open": "open('/etc/passwd')",
    "globals": "globals()",
    "vars": "vars()",
    "dir": "dir()",
    "breakpoint": "breakpoint()",
    "format of texts": "'{0.__class__}'.format(host)",
    "format of texts by name": "'{x.__class__}'.format(x=host)",
    "format_map": "'{a.__class__}'.format_map({'a': 1})",
    "format as a function": "format(host, '')",
    "percent formatting": "'%s' % host",
    "percent formatting with width": "'%999999999d' % 1",
    "f-string with an attribute": "f'{host.__class__}'",
    "f-string inside a format": "f'{1:{().__class__}}'",
    "f-string with a computed width": "f'{1:{host.memory_free}}'",
    "f-string with a huge width": "f'{1:9999999999}'",
    "f-string with huge precision": "f'{1.0:.999999999f}'",
    "f-string with a conversion": "f'{host!r}'",
    "f-string with a walrus": "f'{(x := 1)}'",
    "f-string with a lambda": "f'{(lambda: 1)()}'",
    "f-string nested": "f'{f\"{().__class__}\"}'",
    "generator frame": "(x for x in hosts).gi_frame.f_back.f_globals",
    "generator frame of a list": "(x for x in [1]).gi_frame",
    "code of a generator": "(x for x in [1]).gi_code",
    "coroutine frame": "x.cr_frame",
    "traceback frame": "x.__traceback__.tb_frame",
    "function code": "len.__code__",
    "lambda": "(lambda: 1)()",
    "lambda with a default": "(lambda x=1: x)()",
    "walrus": "(x := 1)",
    "walrus in a loop": "any((y := x) for x in [1])",
    "variable of a loop after it": "any(x > 0 for x in [1]) and x > 0",
    "variable of a loop before it": "h.load1 > 1 and any(h.load1 > 1 for h in hosts)",
    "condition on a later variable": "[x for x in x]",
    "loop into an attribute": "[1 for host.name in [1]]",
    "loop into a subscript": "[1 for host.disks[0] in [1]]",
    "loop into a dunder": "[1 for __x in [1]]",
    "two loops": "[x for x in [1] for y in [2]]",
    "star": "max(*[1, 2])",
    "star in a list": "[*[1]]",
    "double star": "max(**{'a': 1})",
    "dict unpacking": "{**{'a': 1}}",
    "set comprehension": "{x for x in [1]}",
    "dict comprehension": "{'a': x for x in [1]}",
    "await": "await host",
    "async for": "[x async for x in hosts]",
    "yield": "(yield 1)",
    "yield from": "(yield from [1])",
    "slice": "host.name[0:1]",
    "ellipsis": "...",
    "bytes": "b'a'",
    "complex": "1j",
    "statement": "import os",
    "two statements": "1; 2",
    "assignment": "host.name = 'x'",
    "del": "del host",
    "power": "9**9**9",
    "shift": "1 << 10**9",
    "shift alone": "1 << 2",
    "invert": "~1",
    "matrix product": "1 @ 1",
    "repetition of a text": "'a' * 1000000000",
    "repetition of a list": "[0] * 1000000000",
    "repetition of a fact": "host.name * 1000000000",
    "unicode dunder": "host.__cl\N{MATHEMATICAL SCRIPT SMALL A}ss__",
    "full-width dunder": "host.UUclassUU".replace("U", WIDE),
    "full-width underscore in a name": "UUimportUU('os')".replace("U", WIDE),
    "replace": "'a'.replace('a', 'b')",
    "encode": "'a'.encode()",
    "translate": "'a'.translate({})",
    "ljust": "'a'.ljust(1000000000)",
    "zfill": "'1'.zfill(1000000000)",
    "center": "center('a', 1000000000)",
    "expandtabs": "'\\t'.expandtabs(1000000000)",
    "sorted with a key": "sorted(hosts, key=lambda h: h)",
    "map": "map(str, [1])",
    "range": "range(1000000000)",
    "print": "print('x')",
    "call of a call": "len(hosts)(1)",
    "call of a fact": "host.name()",
    "call of a thing": "host()",
    "call of a subscript": "[len][0]('a')",
    "call of a conditional": "(len if True else max)('a')",
    "function as a value": "[len, max]",
    "method as a value": "host.name.lower",
    "method of a number": "host.memory_free.bit_length()",
    "method of a list": "host.disks.append(1)",
    "method of a dict": "host.rooms.clear()",
    "pattern that is no constant": "matches('a', host.name)",
    "null byte": "1\x00",
    "null byte in a text": "'\x00'",
    "lone surrogate": "'\ud800'",
    "brackets the wrong way round": "1) + (2",
    "square brackets the wrong way round": "1] + [2",
    "square brackets that make an element": "1, 2][0",
    "loop without brackets": "h for h in hosts",
    "nothing but a comment": "# nothing",
    "huge number": "1" * 4000,
    "huge float": "1e999",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_escape_is_refused_when_it_is_loaded(name: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        compile_expression(ESCAPES[name], SCHEMA, wants=None)
    for mistake in raised.value.mistakes:
        assert mistake.line >= 1
        assert mistake.column >= 1
        assert mistake.sentence


@pytest.mark.parametrize("name", ESCAPES)
def test_escape_is_refused_in_the_argument_of_a_call(name: str) -> None:
    signatures = {"log": Signature("log", (Argument("text", Type.ANY),))}
    with pytest.raises(ExpressionError):
        compile_call(f"log([{ESCAPES[name]}\n][0])", SCHEMA, signatures)
    with pytest.raises(ExpressionError):
        compile_call(ESCAPES[name], SCHEMA, signatures)


def test_every_node_of_python_is_either_allowed_or_refused() -> None:
    """A new version of Python brings new syntax; none of it is allowed by itself."""
    nodes = {
        found
        for _, found in inspect.getmembers(ast, inspect.isclass)
        if issubclass(found, (ast.expr, ast.operator, ast.unaryop, ast.cmpop, ast.boolop))
    }
    allowed = {found.__name__ for found in nodes & language.ALLOWED}
    assert allowed == {
        "Add", "And", "Attribute", "BinOp", "BoolOp", "Call", "Compare", "Constant", "Dict", "Div",
        "Eq", "FloorDiv", "FormattedValue", "GeneratorExp", "Gt", "GtE", "IfExp", "In", "Is",
        "IsNot", "JoinedStr", "List", "ListComp", "Lt", "LtE", "Mod", "Mult", "Name", "Not",
        "NotEq", "NotIn", "Or", "Set", "Sub", "Subscript", "Tuple", "UAdd", "USub", "UnaryOp",
    }  # fmt: skip
    assert not language.ALLOWED & set(language.REFUSED)
