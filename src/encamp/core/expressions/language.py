"""What the language consists of. These tables are the whitelist: nothing else exists.

`docs/expressions.md` shows them, and a test compares the two.
"""

from __future__ import annotations

import ast
from types import MappingProxyType

import msgspec

from encamp.core.schema import Type

LONGEST_TEXT = 8192
"""Characters of an expression."""
DEEPEST = 40
"""Levels of nesting, in brackets or without."""
MOST_NODES = 2000
"""Nodes of syntax in one text."""
LARGEST_INT = (1 << 127) - 1
"""Whole numbers that come out of arithmetic lie between this and its negative."""
LONGEST_STRING = 65_536
"""Characters of a text. One that is longer, read or made, is not known."""
LONGEST_LIST = 1000
"""Elements that can be written in one list, tuple, set or dict."""
LONGEST_NUMERAL = 40
"""Characters of a text that is read as a number."""
LONGEST_PATTERN = 200
"""Characters of a pattern of `matches`."""
WIDEST = 99
"""Characters that a format can fill up to, and digits that it can ask for."""
STEPS = 500_000
"""What one evaluation may cost. A step is about one node of syntax inside a loop, or 64 characters
copied."""
FEW_STEPS = 10_000
"""The same for what is evaluated for each host of a site, again and again, and for whoever asks."""

LIMITS = MappingProxyType(
    {
        "characters of an expression": LONGEST_TEXT,
        "levels of nesting": DEEPEST,
        "nodes of syntax": MOST_NODES,
        "elements of a literal": LONGEST_LIST,
        "characters of a text that is read or made": LONGEST_STRING,
        "characters of a text that is read as a number": LONGEST_NUMERAL,
        "characters of a pattern": LONGEST_PATTERN,
        "width and digits of a format": WIDEST,
        "steps of an evaluation": STEPS,
    }
)

SYNTAX: MappingProxyType[type[ast.AST], str] = MappingProxyType(
    {
        ast.Constant: "numbers, texts, `True`, `False`, `None`",
        ast.Name: "names: kinds of things, collections, loop variables, functions, constants",
        ast.Attribute: "`host.load1`: a fact, or a method from the table below",
        ast.Subscript: "`host.images[0]`, `host['load1']`, `hosts['node1']`",
        ast.Call: "functions and methods from the tables below",
        ast.keyword: "`name=value`, in the command of a trigger",
        ast.BoolOp: "`and`, `or`",
        ast.BinOp: "arithmetic",
        ast.UnaryOp: "`not`, `-`, `+`",
        ast.Compare: "comparisons, also chained: `1 < host.load1 < 4`",
        ast.IfExp: "`a if condition else b`",
        ast.List: "`[a, b]`",
        ast.Tuple: "`(a, b)`, which is a list too",
        ast.Set: "`{a, b}`, which is a list too",
        ast.Dict: "`{'key': value}`",
        ast.JoinedStr: "`f'{host.name} is at {host.load1:.1f}'`",
        ast.FormattedValue: "a value in an f-string, with a plain or numeric format",
        ast.GeneratorExp: "`... for h in hosts if ...`, in an aggregate",
        ast.ListComp: "`[h for h in hosts if ...]`",
        ast.comprehension: "one `for ... in ...`, with any number of `if`",
    }
)

MARKS: frozenset[type[ast.AST]] = frozenset({ast.Load, ast.Store, ast.And, ast.Or})
"""Nodes that only say something about the node they stand in."""

BINARY: MappingProxyType[type[ast.operator], str] = MappingProxyType(
    {
        ast.Add: "+",
        ast.Sub: "-",
        ast.Mult: "*",
        ast.Div: "/",
        ast.FloorDiv: "//",
        ast.Mod: "%",
    }
)

UNARY: MappingProxyType[type[ast.unaryop], str] = MappingProxyType(
    {ast.Not: "not", ast.USub: "-", ast.UAdd: "+"}
)

COMPARISONS: MappingProxyType[type[ast.cmpop], str] = MappingProxyType(
    {
        ast.Eq: "==",
        ast.NotEq: "!=",
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
        ast.In: "in",
        ast.NotIn: "not in",
        ast.Is: "is",
        ast.IsNot: "is not",
    }
)

ALLOWED: frozenset[type[ast.AST]] = (
    frozenset(SYNTAX) | MARKS | frozenset(BINARY) | frozenset(UNARY) | frozenset(COMPARISONS)
)

REFUSED: MappingProxyType[type[ast.AST], str] = MappingProxyType(
    {
        ast.Lambda: "'lambda' is not part of the language.",
        ast.NamedExpr: "':=' is not part of the language; write the value where it is needed.",
        ast.Await: "'await' is not part of the language.",
        ast.Yield: "'yield' is not part of the language.",
        ast.YieldFrom: "'yield' is not part of the language.",
        ast.Starred: "'*' before a value is not part of the language; write the values one by one.",
        ast.SetComp: "a set cannot be made by a loop; write [... for ...].",
        ast.DictComp: "a dict cannot be made by a loop.",
        ast.Slice: "a part of a list or text cannot be taken with ':'; take one element.",
        ast.Pow: "'**' is not part of the language; write x * x.",
        ast.MatMult: "'@' is not part of the language.",
        ast.LShift: "'<<' is not part of the language; multiply by a number, or by KiB, MiB, GiB.",
        ast.RShift: "'>>' is not part of the language; divide with '//'.",
        ast.BitOr: "'|' is not part of the language; did you mean 'or'?",
        ast.BitAnd: "'&' is not part of the language; did you mean 'and'?",
        ast.BitXor: "'^' is not part of the language; did you mean '!='?",
        ast.Invert: "'~' is not part of the language; did you mean 'not'?",
        ast.Assign: "nothing can be assigned; did you mean '=='?",
        ast.AugAssign: "nothing can be assigned.",
        ast.AnnAssign: "nothing can be assigned.",
        ast.Import: "'import' is not part of the language.",
        ast.ImportFrom: "'import' is not part of the language.",
        ast.FunctionDef: "'def' is not part of the language.",
        ast.ClassDef: "'class' is not part of the language.",
        ast.If: "'if' as a statement is not part of the language; write 'a if condition else b'.",
        ast.For: "'for' as a statement is not part of the language.",
        ast.While: "'while' is not part of the language.",
    }
)
"""What people may try all the same, and what they are told. Anything else that is not allowed is
refused by its name."""


class Function(msgspec.Struct, frozen=True):
    usage: str
    help: str
    example: str


def _table(*rows: tuple[str, str, str, str]) -> MappingProxyType[str, Function]:
    return MappingProxyType({name: Function(*rest) for name, *rest in rows})


AGGREGATES = _table(
    (
        "count",
        "count(h for h in hosts if ...)",
        "how many there are",
        "count(m for m in machines if m.state == 'running')",
    ),
    (
        "sum",
        "sum(value for h in hosts if ...)",
        "the sum, exact; 0 of none",
        "sum(h.memory_free for h in hosts)",
    ),
    (
        "mean",
        "mean(value for h in hosts if ...)",
        "the average",
        "mean(h.load1 for h in group('workers'))",
    ),
    (
        "min",
        "min(value for h in hosts if ...)",
        "the smallest number",
        "min(h.memory_free for h in hosts)",
    ),
    (
        "max",
        "max(value for h in hosts if ...)",
        "the largest number",
        "max(h.load1 for h in hosts)",
    ),
    (
        "any",
        "any(condition for h in hosts if ...)",
        "is it true of one?",
        "any(h.load1 > 8 for h in hosts)",
    ),
    (
        "all",
        "all(condition for h in hosts if ...)",
        "is it true of every one?",
        "all(h.presence == 'joined' for h in hosts)",
    ),
    (
        "len",
        "len(hosts)",
        "how many there are; also of a text, list or dict",
        "len(manager.clients) != 0",
    ),
)

FUNCTIONS = _table(
    ("group", "group('name')", "the hosts of a group", "len(group('workers'))"),
    ("known", "known(value)", "is it known?", "known(host.load1)"),
    ("changed", "changed(fact)", "did it change just now?", "changed(host.presence)"),
    (
        "previous",
        "previous(fact)",
        "what it was before it changed just now, or else what it is",
        "previous(host.load1) < 2",
    ),
    (
        "matches",
        "matches(text, 'pattern')",
        "does the whole text fit? `*` any characters, `?` one, `[a-z]`, `[!a-z]` one such or not",
        "matches(host.name, 'node[0-9]*')",
    ),
    (
        "round",
        "round(number)  round(number, digits)",
        "rounded as Python does",
        "round(host.load1, 1)",
    ),
    ("abs", "abs(number)", "without its sign", "abs(host.clock_offset)"),
    ("int", "int(value)", "a whole number, of a number or text", "int(host.load1)"),
    ("float", "float(value)", "a number, of a number or text", "float(host.memory_free)"),
    ("str", "str(value)", "a text, of anything", "str(host.memory_free)"),
    ("bool", "bool(value)", "False of 0, of nothing and of what is empty", "bool(host.groups)"),
)

METHODS = _table(
    ("startswith", "text.startswith('a')", "does it begin so?", "host.name.startswith('node')"),
    ("endswith", "text.endswith('a')", "does it end so?", "host.name.endswith('.example')"),
    ("lower", "text.lower()", "in small letters", "host.name.lower()"),
    ("upper", "text.upper()", "in capital letters", "host.name.upper()"),
    ("strip", "text.strip()", "without blanks around it", "host.name.strip()"),
    (
        "removeprefix",
        "text.removeprefix('a')",
        "without that beginning",
        "host.name.removeprefix('node')",
    ),
    (
        "removesuffix",
        "text.removesuffix('a')",
        "without that end",
        "host.name.removesuffix('.example')",
    ),
    ("split", "text.split()  text.split(',')", "a list of its parts", "len(host.name.split('.'))"),
    (
        "join",
        "', '.join(list)",
        "the texts of a list, with this between them",
        "', '.join(host.groups)",
    ),
)
"""Methods of texts. Each can be written as a function too: `lower(host.name)`."""

CONSTANTS: MappingProxyType[str, int] = MappingProxyType(
    {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
)

TIMES: MappingProxyType[str, tuple[Type, str]] = MappingProxyType(
    {
        "now": (Type.FLOAT, "seconds since 1970"),
        "hour": (Type.INT, "0 to 23"),
        "minute": (Type.INT, "0 to 59"),
        "weekday": (Type.INT, "0 is Monday, 6 is Sunday"),
        "day": (Type.INT, "1 to 31"),
        "month": (Type.INT, "1 to 12"),
    }
)
"""Names whose value is the time of the evaluation, in the manager's time zone."""

CALLABLE = frozenset({*AGGREGATES, *FUNCTIONS, *METHODS})
