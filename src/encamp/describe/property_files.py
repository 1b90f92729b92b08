"""The table of what a property's definition says, and the files that definitions are read from.

The shipped definitions are always there. A site's file changes them, turns them off, or adds more.
"""

from __future__ import annotations

import functools
import keyword
import os
import re
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from encamp.core.kinds import HOST_FACTS
from encamp.describe import places
from encamp.describe.definition_files import (
    definition_places,
    read_files,
    read_roots,
    stamps,
)
from encamp.describe.kinds import WRONG, Either, Kind, ListOf, MapOf, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Scalar
from encamp.describe.records import Attribute, Record
from encamp.describe.sources import Level, Source
from encamp.describe.words import Choice, Duration, Word
from encamp.model.errors import EncampError
from encamp.model.property import NAME, PropertyDefinition, ValueKind
from encamp.model.size import parse_bytes

FILES = "properties"
SHIPPED = Path(__file__).with_name("properties.yaml")
BATCH = Path(__file__).with_name("batch_properties.yaml")
QUEUE = "batch_waiting"
"""Asks the batch system: not on every host."""

OFF = "off"
"""As ticks: the property is not read at all."""
SHORTEST_TICKS = 0.1
LONGEST_TICKS = 366 * 86400.0
LONGEST_TIMEOUT = 3600.0
NUMBERS = frozenset({ValueKind.INT, ValueKind.FLOAT})


class _ShellWords(Word):
    """Words as a shell would separate them, quotes and all; no shell ever sees them."""

    def make(self, node: Scalar) -> Any:
        try:
            return tuple(shlex.split(node.text))
        except ValueError:
            return WRONG

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        try:
            shlex.split(node.text)
        except ValueError as error:
            return f"these words cannot be told apart: {str(error).lower()}"
        return super().complaint(node, mistakes)


class _Seconds(Duration):
    """A time span between bounds."""

    def __init__(self, words: str, least: float, most: float) -> None:
        super().__init__(words)
        self.bounds = least, most

    def make(self, node: Scalar) -> Any:
        value = super().make(node)
        least, most = self.bounds
        return value if value is not WRONG and least <= value <= most else WRONG


class _Ticks(_Seconds):
    """0: only when asked. `off` makes None of it."""

    def __init__(self) -> None:
        super().__init__(
            f"seconds from one reading to the next (at least {SHORTEST_TICKS:g}), such as 60 or 5m;"
            " 0 (only when asked) or off (never)",
            SHORTEST_TICKS,
            LONGEST_TICKS,
        )

    def make(self, node: Scalar) -> Any:
        if node.text == OFF:
            return OFF
        return 0.0 if re.fullmatch(r"0+(\.0*)?", node.text) else super().make(node)


class _Amount(Word):
    """A number, or a size such as 32M."""

    def make(self, node: Scalar) -> Any:
        if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?", node.text):
            return float(node.text)
        try:
            return float(parse_bytes(node.text[:24], "it"))
        except EncampError:
            return WRONG


def definition(plugins: Collection[str] | None = None) -> Record:
    """What a definition may say, where these plug-ins are installed."""
    command: Kind = Word("a plug-in's name") if plugins is None else Choice(sorted(plugins))
    words = Word("a text", most=4096)
    return Record(
        "a property",
        {
            "command": Attribute(command, "the plug-in that reads it"),
            "parameters": Attribute(
                Either(_ShellWords("words"), ListOf(words, most=1000)), "what the plug-in is told"
            ),
            "return_type": Attribute(Choice(ValueKind), "what the value is", "str"),
            "ticks": Attribute(
                _Ticks(), "seconds from one reading to the next; 0: only when asked; off", "60"
            ),
            "timeout": Attribute(
                _Seconds("seconds, such as 10 or 2m, up to an hour,", 0.001, LONGEST_TIMEOUT),
                "seconds after which a reading is given up",
                "10",
            ),
            "tolerance": Attribute(
                _Amount("a number, or a size such as 32M,"),
                "a number that has moved by no more than this has not changed",
                "0",
            ),
            "unit": Attribute(Word("a unit", most=32), "what a number counts"),
            "help": Attribute(Word("a text", most=1000), "what it is, for people"),
        },
    )


def load_properties(
    plugins: Collection[str], *, anywhere: bool = False
) -> tuple[PropertyDefinition, ...]:
    """The shipped properties with what the site's files make of them; an error that lists all
    mistakes in them, after which an agent goes on with what it had. `anywhere`: also those that
    only some hosts have."""
    found = places.look(definition_places(FILES))
    more = batch_properties() if anywhere else _of_bait()
    return read_properties(read_files(found), plugins, more)


def property_stamps() -> object:
    """Differs from before when the site's files have changed."""
    return stamps(places.look(definition_places(FILES)))


def read_properties(
    files: list[tuple[Source, bytes]],
    plugins: Collection[str],
    more: tuple[PropertyDefinition, ...] = (),
) -> tuple[PropertyDefinition, ...]:
    """The shipped properties, and those, with what these files make of them."""
    return _read(files, definition(plugins), (*shipped_properties(), *more))


@functools.cache
def shipped_properties() -> tuple[PropertyDefinition, ...]:
    """What is read where no file says otherwise."""
    return _shipped(SHIPPED)


@functools.cache
def batch_properties() -> tuple[PropertyDefinition, ...]:
    """What is read besides, on hosts that take jobs of a batch system."""
    return _shipped(BATCH)


def _of_bait() -> tuple[PropertyDefinition, ...]:
    """Those of them that this host reads. What is wrong with its batch.yaml others tell."""
    from encamp.describe.batch_file import load_batch_settings

    try:
        settings = load_batch_settings() if os.geteuid() == 0 else None
    except EncampError:
        settings = None
    if settings is None:
        return ()
    return tuple(one for one in batch_properties() if settings.watch or one.name != QUEUE)


def _shipped(path: Path) -> tuple[PropertyDefinition, ...]:
    source = Source(str(path), Level.SHIPPED, 0, str(path.parent))
    return _read([(source, path.read_bytes())], definition(), ())


def _read(
    files: list[tuple[Source, bytes]], record: Record, shipped: tuple[PropertyDefinition, ...]
) -> tuple[PropertyDefinition, ...]:
    definitions = {definition.name: definition for definition in shipped}
    mistakes = Mistakes()
    for root in read_roots(files, mistakes):
        _check_names(root, mistakes)
        read = MapOf("a property", NAME, record).read(root, mistakes)
        if isinstance(read, Unusable):
            continue
        for name, values in read.items():
            _define(definitions, name, values, root, mistakes)
    mistakes.raise_any()
    return tuple(definitions.values())


def _check_names(root: Mapping, mistakes: Mistakes) -> None:
    for name in root.entries:
        if name in HOST_FACTS:
            mistakes.at_key(root, name, f"'{name}' is known of every host: choose another name")
        elif keyword.iskeyword(name):
            mistakes.at_key(root, name, f"'{name}' is a word of expressions: choose another name")


def _define(
    definitions: dict[str, PropertyDefinition],
    name: str,
    values: dict[str, Any],
    root: Mapping,
    mistakes: Mistakes,
) -> None:
    """Add a property, or change one. Whoever names a command defines all of it anew."""
    if values.get("ticks") == OFF:
        definitions.pop(name, None)
        return
    before = definitions.get(name)
    if "command" in values:
        made = PropertyDefinition(name=name, **values)
    elif before is not None:
        made = msgspec.structs.replace(before, **values)
    else:
        near = mistakes.near(name, definitions) if root.source.level is not Level.SHIPPED else ""
        hint = near if "did you mean" in near else ""
        mistakes.at_key(root, name, f"'{name}' needs a 'command', as it is not shipped{hint}")
        return
    if made.tolerance and made.return_type not in NUMBERS:
        kind = made.return_type.value
        mistakes.at_key(root, name, f"'{name}' is a {kind}: only numbers have a tolerance")
    definitions[name] = made
