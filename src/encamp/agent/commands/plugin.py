"""What a plug-in is: a function with typed keyword parameters, found by its entry point.

Its entry point in the group `encamp.commands` gives it the name under which it is offered. Its
parameters are the command's: their annotations say what is accepted (`str`, `int`, `float`,
`bool`, `list`, `dict`; with `Annotated[str, "..."]` also what for), their defaults make them
optional. What it returns is the command's value, what it prints the command's output, and what it
raises the reason why the command failed. It may be an ordinary function or a coroutine.

    @command(timeout=60)
    def greet(context: Context, *, name: str, loudly: bool = False) -> str:
        "Greet somebody."
        context.write(f"greeting {name}\\n")
        return name.upper() if loudly else name
"""

from __future__ import annotations

import inspect
import os
import re
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from encamp.home import Home
from encamp.model.command import NAME, CommandDefinition, Parameter
from encamp.model.errors import Code, EncampError
from encamp.model.property import ValueKind

GROUP = "encamp.commands"
"""Of entry points."""

TIMEOUT = 600.0
SETTINGS = "__encamp_command__"

KINDS: dict[object, ValueKind] = {
    str: ValueKind.STR,
    int: ValueKind.INT,
    float: ValueKind.FLOAT,
    bool: ValueKind.BOOL,
    list: ValueKind.LIST,
    dict: ValueKind.DICT,
}

Function = TypeVar("Function", bound=Callable[..., Any])


class Settings(msgspec.Struct, frozen=True):
    timeout: float = TIMEOUT
    internal: bool = False
    """For managers' own ends. It waits for no turn."""
    claimed: bool = False
    """It uses up a claim of the same id, and is not begun without."""


class Context:
    """What a plug-in is told, and how it talks back."""

    def __init__(self, home: Home, id: str, issuer: str) -> None:
        self.home = home
        """Where this agent keeps its machines and images."""
        self.id = id
        self.issuer = issuer
        """Who issued the command: `alice`, `root`, `trigger:NAME`."""
        self.exit_code: int | None = None

    def write(self, data: str | bytes) -> None:
        """Add to the command's output. It travels at once. `print` works as well, if flushed."""
        view = memoryview(data.encode(errors="replace") if isinstance(data, str) else data)
        while view:
            view = view[os.write(1, view) :]

    def ended(self, exit_code: int) -> None:
        """The program it ran ended so; anything but 0 makes the command a failed one."""
        self.exit_code = exit_code


def command(
    *, timeout: float = TIMEOUT, internal: bool = False, claimed: bool = False
) -> Callable[[Function], Function]:
    """Attributes of a plug-in: the seconds it may take, unless whoever issues it says otherwise;
    the others are for Encamp's own."""

    def mark(function: Function) -> Function:
        setattr(function, SETTINGS, Settings(timeout, internal, claimed))
        return function

    return mark


def settings_of(function: Callable[..., Any]) -> Settings:
    settings: Settings = getattr(function, SETTINGS, Settings())
    return settings


def definition_of(name: str, function: Callable[..., Any]) -> CommandDefinition:
    """What a plug-in offers. Raises EncampError if it is none, with what is wrong with it."""
    if re.fullmatch(NAME, name) is None:
        raise unusable(name, "its name must be words of small letters with dots between them.")
    if not callable(function):
        raise unusable(name, f"it is no function but {type(function).__name__}.")
    settings = settings_of(function)
    hints = typing.get_type_hints(function, include_extras=True)
    given = list(inspect.signature(function).parameters.values())
    if not given or given[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise unusable(name, "its first parameter must be the context.")
    return CommandDefinition(
        name=name,
        parameters=tuple(_parameter(name, one, hints.get(one.name)) for one in given[1:]),
        returns=_kind(hints.get("return")),
        timeout=settings.timeout,
        help=inspect.cleandoc(function.__doc__ or ""),
        internal=settings.internal,
    )


def _parameter(name: str, given: inspect.Parameter, hint: object) -> Parameter:
    if given.kind is not inspect.Parameter.KEYWORD_ONLY:
        raise unusable(name, f"its parameter '{given.name}' must stand after a '*'.")
    about = ""
    if typing.get_origin(hint) is typing.Annotated:
        hint, *more = typing.get_args(hint)
        about = next((text for text in more if isinstance(text, str)), "")
    kind = _kind(hint)
    if kind is None:
        known = ", ".join(kind.value for kind in ValueKind)
        raise unusable(
            name, f"its parameter '{given.name}' must be annotated, with one of {known}."
        )
    required = given.default is inspect.Parameter.empty
    return Parameter(
        name=given.name,
        kind=kind,
        required=required,
        default=None if required else given.default,
        help=about,
    )


def _kind(hint: object) -> ValueKind | None:
    """Which type of value an annotation means; `str | None` and `list[str]` are `str`, `list`."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(hint) if one is not types.NoneType]
        return _kind(others[0]) if len(others) == 1 else None
    return KINDS.get(origin if origin in (list, dict) else hint)


def unusable(name: str, why: str) -> EncampError:
    return EncampError(
        Code.CONFIGURATION,
        f"The plug-in for command '{name}' cannot be used: {why}",
        "Correct it, or remove the package that brings it.",
    )
