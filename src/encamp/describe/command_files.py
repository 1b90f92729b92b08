"""The table of what `commands.yaml` and `commands.ini` say: the programs an agent may run, and
which commands it takes at all."""

from __future__ import annotations

import re
import shlex
from typing import Any

from encamp.describe import places
from encamp.describe.definition_files import definition_places, read_files, read_roots
from encamp.describe.kinds import WRONG, Either, ListOf, MapOf, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar
from encamp.describe.records import Attribute, Record
from encamp.describe.sources import Source
from encamp.describe.words import Choice, Duration, Whole, Word
from encamp.model.arguments import READERS
from encamp.model.command import CommandDefinition, Parameter
from encamp.model.errors import EncampError
from encamp.model.patterns import Pattern
from encamp.model.program import FAMILY, CommandSettings, ListedProgram
from encamp.model.property import Value, ValueKind, fits

FILES = "commands"
HOST = "commands"
"""The name that stands for the host itself; all others are programs'."""

NAME = r"[a-z][a-z0-9_]{0,63}"
PLACEHOLDER = re.compile(rf"\{{({NAME})\}}")
SIGNATURE = re.compile(rf"\s*({NAME})\s*(?::\s*([a-z]+))?\s*(?:=\s*(.*?))?\s*")
KINDS = {kind.value: kind for kind in ValueKind}


class _Words(Word):
    """Words as a shell would separate them, quotes and all; no shell ever sees them."""

    def make(self, node: Scalar) -> Any:
        try:
            return tuple(shlex.split(node.text)) or WRONG
        except ValueError:
            return WRONG


class _Patterns(Word):
    """Patterns of names, with commas or spaces between them."""

    def make(self, node: Scalar) -> Any:
        patterns = tuple(re.split(r"[,\s]+", node.text.strip()))
        good = all(re.fullmatch(r"[a-z0-9_.*?\[\]-]+", pattern) for pattern in patterns)
        return patterns if good else WRONG


class _Expression(Word):
    """A regular expression."""

    def make(self, node: Scalar) -> Any:
        try:
            Pattern(node.text)
        except ValueError:
            return WRONG
        return node.text


class _Signature(Word):
    """Parameters in a line: `device, lines: int = 10`."""

    def make(self, node: Scalar) -> Any:
        made: dict[str, dict[str, Any]] = {}
        for part in node.text.split(","):
            found = SIGNATURE.fullmatch(part)
            if found is None or (found[2] or "str") not in KINDS or found[1] in made:
                return WRONG
            made[found[1]] = {"type": KINDS[found[2] or "str"]}
            if found[3] is not None:
                made[found[1]]["default"] = found[3]
        return made


PARAMETER = Record(
    "a parameter",
    {
        "type": Attribute(Choice(ValueKind), "what it is", "str"),
        "default": Attribute(Word("a text"), "what it is if it is left out"),
        "pattern": Attribute(
            _Expression("a regular expression"), "what its text must look like, as a whole"
        ),
        "help": Attribute(Word("a text"), "what it is for"),
    },
)

PROGRAM = Record(
    "a listed program",
    {
        "run": Attribute(
            Either(_Words("a command line"), ListOf(Word("a word"))),
            "the program's path and its arguments; {NAME} stands for a parameter",
        ),
        "parameters": Attribute(
            Either(
                _Signature("names such as 'device, lines: int = 10'"),
                MapOf("a parameter", NAME, Either(Choice(ValueKind), PARAMETER)),
            ),
            "what can be given with the command",
        ),
        "returns": Attribute(Choice(ValueKind), "what it prints, as a value; JSON for list, dict"),
        "timeout": Attribute(Duration("a time such as 30s"), "how long it may take", "10m"),
        "user": Attribute(
            Word("a user", pattern=r"[A-Za-z_][A-Za-z0-9_.-]*"), "whom it runs as", trusted=True
        ),
        "directory": Attribute(
            Word("an absolute path", pattern=r"/[^\0]*"), "where it starts", "/"
        ),
        "help": Attribute(Word("a text"), "what it does"),
    },
    required=("run",),
)

SETTINGS = Record(
    "'commands'",
    {
        "accept": Attribute(
            Either(
                _Patterns("patterns such as 'machine.*'"), ListOf(_Patterns("a pattern of names"))
            ),
            "which commands this host takes",
            "*",
        ),
        "at_once": Attribute(
            Whole("a number from 1 to 1000", least=1, most=1000), "how many at the same time", "16"
        ),
    },
)


def load_command_settings() -> CommandSettings:
    """What the host's administrator has written; all mistakes at once, if there are any."""
    return read_command_settings(read_files(places.look(definition_places(FILES))))


def read_command_settings(files: list[tuple[Source, bytes]]) -> CommandSettings:
    mistakes = Mistakes()
    settings: dict[str, Any] = {}
    programs: list[ListedProgram] = []
    for root in read_roots(files, mistakes):
        for name, node in root.entries.items():
            if name == HOST:
                values = SETTINGS.read(node, mistakes)
                settings = settings if type(values) is Unusable else values
            elif re.fullmatch(NAME, name) is None:
                mistakes.at_key(
                    root,
                    name,
                    f"'{name}' is no name for a program: small letters, digits and _ are",
                )
            else:
                program = _program(root, name, node, mistakes)
                programs += [program] if program is not None else []
    mistakes.raise_any()
    if "accept" in settings:
        given = settings["accept"]
        flat = [one for item in given for one in ((item,) if isinstance(item, str) else item)]
        settings["accept"] = tuple(flat)
    return CommandSettings(**settings, programs=tuple(programs))


def _program(root: Mapping, name: str, node: Node, mistakes: Mistakes) -> ListedProgram | None:
    values = PROGRAM.read(node, mistakes)
    if type(values) is Unusable:
        return None
    assert isinstance(node, Mapping)
    described: dict[str, dict[str, Any]] = {
        key: {"type": given} if isinstance(given, ValueKind) else given
        for key, given in values.get("parameters", {}).items()
    }
    parameters = []
    for key, given in described.items():
        parameter = _parameter(key, given)
        if parameter is None:
            kind = given.get("type", ValueKind.STR).value
            text = f"the default of '{key}' is not of type {kind}: '{given['default']}'"
            mistakes.at_key(node, "parameters", text)
        else:
            parameters.append(parameter)
    _check_words(node, values["run"], [parameter.name for parameter in parameters], mistakes)
    definition = CommandDefinition(
        name=f"{FAMILY}{name}",
        parameters=tuple(parameters),
        returns=values.get("returns"),
        timeout=values.get("timeout", 600.0),
        help=values.get("help", f"Run {values['run'][0]}."),
    )
    program = ListedProgram(
        definition=definition,
        words=tuple(values["run"]),
        patterns={key: one["pattern"] for key, one in described.items() if "pattern" in one},
        user=values.get("user"),
        directory=values.get("directory", "/"),
    )
    _check_defaults(node, program, mistakes)
    return program


def _parameter(name: str, given: dict[str, Any]) -> Parameter | None:
    """None: its default is of another type."""
    kind = given.get("type", ValueKind.STR)
    default: Value = None
    if "default" in given:
        try:
            default = READERS[kind](given["default"])
        except (ValueError, RecursionError):
            return None
        if not fits(default, kind):
            return None
    return Parameter(
        name=name,
        kind=kind,
        required="default" not in given,
        default=default,
        help=given.get("help", ""),
    )


def _check_words(
    node: Mapping, words: tuple[str, ...], parameters: list[str], mistakes: Mistakes
) -> None:
    """Is each parameter used, and each one used a parameter?"""
    if not words[0].startswith("/"):
        mistakes.at_key(
            node, "run", f"the program must be given with its whole path, not as '{words[0]}'"
        )
    used = set()
    for word in words[1:]:
        whole = PLACEHOLDER.fullmatch(word)
        if whole is not None:
            used.add(whole[1])
            if whole[1] not in parameters:
                near = mistakes.near(whole[1], parameters)
                mistakes.at_key(node, "run", f"there is no parameter '{whole[1]}'{near}")
        elif any(name in parameters for name in PLACEHOLDER.findall(word)):
            mistakes.at_key(node, "run", f"a parameter must be a word of its own, not in '{word}'")
    for name in parameters:
        if name not in used:
            mistakes.at_key(node, "parameters", f"'{name}' is not used: write {{{name}}} in 'run'")


def _check_defaults(node: Mapping, program: ListedProgram, mistakes: Mistakes) -> None:
    """What is filled in must be what is accepted."""
    defaults = {
        parameter.name: parameter.default
        for parameter in program.definition.parameters
        if not parameter.required
    }
    optional = [one for one in program.definition.parameters if not one.required]
    alone = CommandDefinition(name=program.definition.name, parameters=tuple(optional))
    try:
        ListedProgram(definition=alone, words=(), patterns=program.patterns).check(defaults)
    except EncampError as error:
        mistakes.at_key(node, "parameters", f"a default is not accepted: {error.sentence}")
