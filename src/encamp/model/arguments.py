"""The arguments of a command: checked against its definition, or read from what people type."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping

import msgspec

from encamp.model.command import CommandDefinition, Parameter
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value, ValueKind, fits, is_value

LARGEST = 256 << 10
"""Bytes of all arguments of one command, encoded."""

SHOWN = 60
"""Characters of a wrong argument that its error quotes."""

NAMES: dict[ValueKind, str] = {
    ValueKind.BOOL: "true or false",
    ValueKind.INT: "a whole number",
    ValueKind.FLOAT: "a number",
    ValueKind.STR: "a text",
    ValueKind.LIST: "a list",
    ValueKind.DICT: "a mapping",
}


def check_arguments(
    definition: CommandDefinition, arguments: Mapping[str, Value]
) -> dict[str, Value]:
    """The arguments as the command gets them, those that were left out filled in."""
    _refuse_unknown(definition, arguments)
    checked: dict[str, Value] = {}
    for parameter in definition.parameters:
        if parameter.name in arguments:
            checked[parameter.name] = _fitting(definition, parameter, arguments[parameter.name])
        elif parameter.required:
            raise wrong(
                definition, f"'{parameter.name}' is missing: it is {NAMES[parameter.kind]}."
            )
        else:
            checked[parameter.name] = parameter.default
    _refuse_large(definition, checked)
    return checked


def from_texts(definition: CommandDefinition, texts: Mapping[str, str]) -> dict[str, Value]:
    """The same from a command line's `name=text`; those that were left out stay so."""
    _refuse_unknown(definition, texts)
    parameters = {parameter.name: parameter for parameter in definition.parameters}
    read: dict[str, Value] = {}
    for name, text in texts.items():
        kind = parameters[name].kind
        try:
            read[name] = READERS[kind](text)
        except (ValueError, RecursionError):
            raise wrong(definition, _expected(name, kind, text) + HINTS.get(kind, "")) from None
    return read


def wrong(definition: CommandDefinition, sentence: str) -> EncampError:
    return EncampError(
        Code.USAGE, f"Command {definition.name}: {sentence}", f"It takes: {signature(definition)}."
    )


def signature(definition: CommandDefinition) -> str:
    """What a command takes, in a line: `environment: str, cpus: int = 2`."""
    return ", ".join(_described(parameter) for parameter in definition.parameters) or "nothing"


def _described(parameter: Parameter) -> str:
    said = f"{parameter.name}: {parameter.kind.value}"
    if parameter.required:
        return said
    return f"{said} = {json.dumps(parameter.default)}"


def _fitting(definition: CommandDefinition, parameter: Parameter, value: Value) -> Value:
    if value is None and not parameter.required and parameter.default is None:
        return None
    if not fits(value, parameter.kind):
        raise wrong(definition, _expected(parameter.name, parameter.kind, value))
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong(definition, f"'{parameter.name}' is no number.")
    if not is_value(value):
        raise wrong(
            definition, f"'{parameter.name}' is too deep, or has a number in it that is too large."
        )
    if isinstance(value, str) and "\0" in value:
        raise wrong(definition, f"'{parameter.name}' has a zero byte in it.")
    return float(value) if parameter.kind is ValueKind.FLOAT else value  # type: ignore[arg-type]


def _expected(name: str, kind: ValueKind, value: object) -> str:
    shown = repr(value)
    if len(shown) > SHOWN:
        shown = f"{shown[:SHOWN]}..."
    return f"'{name}' is to be {NAMES[kind]}, not {shown}."


def _refuse_unknown(definition: CommandDefinition, given: Mapping[str, object]) -> None:
    known = [parameter.name for parameter in definition.parameters]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name[:100], known, n=1)
            meant = f" Did you mean '{near[0]}'?" if near else ""
            shown = name if len(name) <= SHOWN else f"{name[:SHOWN]}..."
            raise wrong(definition, f"there is no argument {shown!r}.{meant}")


def _refuse_large(definition: CommandDefinition, arguments: dict[str, Value]) -> None:
    try:
        size = len(msgspec.msgpack.encode(arguments))
    except UnicodeEncodeError:
        raise wrong(definition, "the arguments are not valid text.") from None
    if size > LARGEST:
        raise wrong(definition, f"the arguments are too large: {size} bytes, of at most {LARGEST}.")


def _truth(text: str) -> Value:
    truth = {"true": True, "yes": True, "false": False, "no": False}.get(text.lower())
    if truth is None:
        raise ValueError
    return truth


def _list(text: str) -> Value:
    """JSON, or words with commas between them."""
    if not text.lstrip().startswith(("[", "{")):
        return list(text.split(",")) if text else []
    read = json.loads(text)
    if not isinstance(read, list):
        raise ValueError
    return read


def _mapping(text: str) -> Value:
    read = json.loads(text)
    if not isinstance(read, dict):
        raise ValueError
    return read


READERS: dict[ValueKind, Callable[[str], Value]] = {
    ValueKind.BOOL: _truth,
    ValueKind.INT: int,
    ValueKind.FLOAT: float,
    ValueKind.STR: str,
    ValueKind.LIST: _list,
    ValueKind.DICT: _mapping,
}

HINTS: dict[ValueKind, str] = {
    ValueKind.LIST: ' Write a,b,c or ["a", "b", "c"].',
    ValueKind.DICT: ' Write {"name": "value"}.',
}
