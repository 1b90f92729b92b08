"""What a property plug-in is: a function that is asked for a value.

It is found by its entry point of the group `encamp.properties`. An ordinary function is called in a
thread, so it may wait for a disk or a network; an `async` one runs in the agent's event loop, and
must not. Whatever it raises becomes the reason why the property has no value.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from encamp.home import Home
from encamp.model.property import PropertyDefinition, Value, ValueKind

GROUP = "encamp.properties"
"""The entry points of property plug-ins."""


class Asked(msgspec.Struct, frozen=True):
    """What a plug-in is asked for."""

    definition: PropertyDefinition
    home: Home
    """The agent's."""
    kept: dict[str, Any] = msgspec.field(default_factory=dict)
    """Empty at first; what is left in it is there again when the same property is read next."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the definition tells the plug-in."""
        return self.definition.parameters

    @property
    def kind(self) -> ValueKind:
        """What the definition says that the value is."""
        return self.definition.return_type


Plugin = Callable[[Asked], Value | Awaitable[Value]]


class NoValueError(Exception):
    """Why a property has no value, in a sentence that is shown as it is."""


def one_of(asked: Asked, choices: dict[str, Any]) -> Any:
    """What the only parameter chooses; an error that names all choices if it chooses nothing."""
    if len(asked.parameters) == 1 and asked.parameters[0] in choices:
        return choices[asked.parameters[0]]
    given = " ".join(asked.parameters) or "nothing"
    raise NoValueError(
        f"'{asked.definition.command}' takes one of {', '.join(choices)}, not '{given}'."
    )
