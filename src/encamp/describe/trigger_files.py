"""The files that define triggers, `triggers.yaml` and `triggers.ini`, with all their mistakes.

What is wrong with an expression is told with its place in the file, however it was written there:
behind a name, in quotes, or in a block of several lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as Commands
from typing import Any

from encamp.core.schema import Schema as Facts
from encamp.core.triggers import check
from encamp.describe.definition_files import INI, read_roots
from encamp.describe.kinds import WRONG, ListOf, Schema, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar, shape
from encamp.describe.passages import passage_of
from encamp.describe.records import Attribute, Record
from encamp.describe.sources import Source
from encamp.describe.words import Duration, Whole, Word
from encamp.model.command import CommandDefinition
from encamp.model.trigger import LEAST_TIME, NAME, TriggerDefinition

TRUTHS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}
INI_TRUTHS = {**TRUTHS, "1": True, "0": False}

QUOTE_IT = (
    "; a text with ': ', ' #' or braces in it must be in quotes, or on lines of its own after '|'"
)
NOT_YAML = "this is not YAML"
CUT_OFF = "unterminated"
"""What is said of a text that YAML has cut off at its ' #'."""


class YesOrNo(Word):
    """As the INI files of old say it, and as YAML does."""

    def __init__(self) -> None:
        super().__init__("yes or no")

    def make(self, node: Scalar) -> Any:
        truths = INI_TRUTHS if node.source.path.endswith(INI) else TRUTHS
        return truths.get(node.text.lower(), WRONG) if node.plain else WRONG

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        said = super().complaint(node, mistakes)
        if node.text.strip("'\"").lower() in TRUTHS:
            return f"{said}, which is a text: leave the quotes out"
        return said

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "boolean"}, {"enum": list(TRUTHS)}]}


class Span(Duration):
    """A time that a trigger waits for: none that keeps the manager busy with nothing else."""

    def __init__(self) -> None:
        super().__init__("a time such as 30s, 5m or 2h")

    def make(self, node: Scalar) -> Any:
        value = super().make(node)
        return value if value is WRONG or value >= LEAST_TIME else WRONG

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        if super().make(node) is WRONG:
            return super().complaint(node, mistakes)
        return f"{LEAST_TIME:g} seconds are the least that can be told apart, not {shape(node)}"


class Text:
    """An expression or a command as it was written; what it means is looked at later."""

    words = "an expression"

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        if not isinstance(node, Scalar):
            mistakes.at(node, f"{self.words} is expected here, not {shape(node)}{QUOTE_IT}")
            return WRONG
        if not node.text.strip():
            mistakes.at(node, f"{self.words} is expected here, not {shape(node)}")
            return WRONG
        return node

    def schema(self) -> Schema:
        return {"type": ["string", "boolean", "number"]}


TEXT, TEXTS = Text(), ListOf(Text(), most=100)
SPAN = Span()

TRIGGER = Record(
    "a trigger",
    {
        "when": Attribute(TEXT, "the expression; `expr` means the same"),
        "do": Attribute(TEXTS, "what is done, one command or several in order; or `cmd`"),
        "hold": Attribute(SPAN, "how long it must have been true"),
        "once": Attribute(
            YesOrNo(),
            "does it fire when it becomes true, and not again until it was false? Yes, unless"
            " `ticks` or `every` is given",
        ),
        "every": Attribute(SPAN, "while it is true, it fires again after this"),
        "cooldown": Attribute(SPAN, "after firing, it is silent for this long"),
        "ticks": Attribute(
            SPAN, "how often it is looked at; 60 s, if it reads the time or no updates"
        ),
        "on_update_check": Attribute(
            YesOrNo(),
            "is it looked at when something it reads changes? Yes, unless `ticks` is given",
        ),
        "ignore_errors": Attribute(YesOrNo(), "do commands go on after one that failed?", "no"),
        "repeats": Attribute(
            Whole("a whole number", most=1_000_000),
            "how often in a row it may fire on its own effect; 0: without end",
            "20",
        ),
        "enabled": Attribute(YesOrNo(), "is it at work at all?", "yes"),
        "help": Attribute(Word("a text"), "what it is for"),
    },
)

SAME = {"expr": "when", "cmd": "do"}
"""Names of old, and what they are called today."""


def read_triggers(
    files: list[tuple[Source, bytes]], facts: Facts, commands: Commands[str, CommandDefinition]
) -> list[TriggerDefinition]:
    """What the files define, if it makes sense on a site where this can be known and done; all
    mistakes of all files at once, if it does not."""
    mistakes = Mistakes()
    definitions = definitions_of(files, mistakes)
    sources = {source.path: source for source, _ in files}
    check_definitions(definitions, sources, facts, commands, mistakes)
    mistakes.raise_any()
    return definitions


def check_definitions(
    definitions: Iterable[TriggerDefinition],
    sources: Commands[str, Source],
    facts: Facts,
    commands: Commands[str, CommandDefinition],
    mistakes: Mistakes,
) -> None:
    """Do they make sense on a site where this can be known and done? `sources`: their files, by
    their paths."""
    for problem in check(definitions, facts, commands):
        cut_off = CUT_OFF in problem.sentence and not problem.path.endswith(INI)
        said = problem.sentence.removesuffix(".") + QUOTE_IT if cut_off else problem.sentence
        mistakes.add(sources[problem.path], problem.line, problem.column, said)


def definitions_of(
    files: list[tuple[Source, bytes]], mistakes: Mistakes
) -> list[TriggerDefinition]:
    """Those that can be understood; expressions are not looked at."""
    texts = {source: data.decode(errors="replace") for source, data in files}
    found = []
    for root in _roots(files, mistakes):
        found += definitions_in(root, texts[root.source], mistakes)
    return found


def definitions_in(root: Mapping, text: str, mistakes: Mistakes) -> list[TriggerDefinition]:
    """Those of a mapping by names, whichever part of a file it is; `text`: all of the file."""
    lines = text.replace("\r\n", "\n").split("\n")
    found = []
    for name, node in root.entries.items():
        if not re.fullmatch(NAME, name):
            mistakes.at_key(root, name, f"'{name}' is no name for a trigger")
            continue
        definition = _definition(name, root, node, lines, mistakes)
        if definition is not None:
            found.append(definition)
    return found


def _roots(files: list[tuple[Source, bytes]], mistakes: Mistakes) -> list[Mapping]:
    """The files as mappings; what is no YAML because of what expressions look like is explained."""
    read = Mistakes()
    roots = read_roots(files, read)
    for mistake, source in read.found.items():
        hint = QUOTE_IT if mistake.text.startswith(NOT_YAML) else ""
        mistakes.add(source, mistake.line, mistake.column, mistake.text + hint)
    return roots


def _definition(
    name: str, root: Mapping, node: Node, lines: list[str], mistakes: Mistakes
) -> TriggerDefinition | None:
    if isinstance(node, Mapping):
        _take_strange_out(node, mistakes)
        _rename(node, mistakes)
    read = TRIGGER.read(node, mistakes)
    if isinstance(read, Unusable):
        return None
    # Another trigger may be the same node, under a name that YAML gave it.
    values = dict(read)
    for missing in [needed for needed in ("when", "do") if needed not in values]:
        mistakes.at_key(root, name, f"'{missing}' is missing: a trigger needs it")
    if "when" not in values or "do" not in values:
        return None
    line, column = root.where(name)
    when, do = values.pop("when"), values.pop("do")
    return TriggerDefinition(
        name=name,
        when=passage_of(when, lines),
        do=tuple(passage_of(item, lines) for item in do),
        path=root.source.path,
        line=line,
        column=column,
        **values,
    )


def _take_strange_out(node: Mapping, mistakes: Mistakes) -> None:
    """Names that are almost right, and those that mean something in other files only."""
    known = {*TRIGGER.attributes, *SAME}
    for name in list(node.entries):
        if name == "<<":
            wrong = "'<<' is not part of this language: write out what the trigger shall say"
        elif name not in known and name.lower() in known:
            wrong = f"there is no attribute '{name}' in a trigger; did you mean '{name.lower()}'?"
        else:
            continue
        mistakes.at_key(node, name, wrong)
        child, key = node.entries.pop(name), node.keys.pop(name)
        if name != "<<":
            # What it was meant for is not missing.
            node.entries.setdefault(name.lower(), child)
            node.keys.setdefault(name.lower(), key)


def _rename(node: Mapping, mistakes: Mistakes) -> None:
    for old, new in SAME.items():
        if old not in node.entries:
            continue
        if new in node.entries:
            mistakes.at_key(node, old, f"'{old}' and '{new}' are the same: leave one of them out")
            del node.entries[old]
            continue
        node.entries[new] = node.entries.pop(old)
        node.keys[new] = node.keys.pop(old)
