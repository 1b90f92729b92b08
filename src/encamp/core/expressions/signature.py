"""What can be called in the command of a trigger, and with what."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from encamp.core.schema import Type


class Argument(msgspec.Struct, frozen=True):
    """One thing that a call is told."""

    name: str
    type: Type = Type.ANY
    required: bool = True
    things: str = ""
    """The kind of things that it names (`host`): one of them, as a thing or by its key. `type`
    does not matter then."""
    by_key: bool = True
    """May it be named by a text? Of machines, nobody knows the key: `node1/b3` is no id."""
    many: bool = False
    """Several of them are welcome too: `hosts`, `group('workers')`, `[h for h in hosts if ...]`."""
    constant: bool = False
    """It must be written down as it is, so that it can be checked when it is loaded."""
    choices: tuple[str, ...] = ()
    """Texts that it may be, if it is written down as it is."""
    help: str = ""


class Signature(msgspec.Struct, frozen=True):
    name: str
    """With dots where there are: `sender.send_get_property`."""
    arguments: tuple[Argument, ...] = ()
    """In the order in which they can be given without their names."""
    chosen_by: str = ""
    """The argument whose value says what else can be given by name: the command's name, in
    `send(host, 'machine.pause', machine=machine.id)`. It must be written down as it is."""
    chosen: Mapping[str, tuple[Argument, ...]] = {}
    """What else, for each such value."""
    more: Argument | None = None
    """If not None: any number of further arguments without names, each of this kind; they come
    out as a list under its name."""
    help: str = ""
