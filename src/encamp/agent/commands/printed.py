"""What a program printed, as the value it was listed to return."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from encamp.model.errors import Code, EncampError
from encamp.model.property import LARGEST_VALUE, Value, ValueKind, fits, is_value


def _truth(text: str) -> Value:
    truth = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return truth.get(text.lower())


READERS: dict[ValueKind, Callable[[str], Value]] = {
    ValueKind.STR: str,
    ValueKind.INT: int,
    ValueKind.FLOAT: float,
    ValueKind.BOOL: _truth,
    ValueKind.LIST: msgspec.json.decode,
    ValueKind.DICT: msgspec.json.decode,
}


def parse(data: bytes, kind: ValueKind, command: str) -> Value:
    """The value; lists and mappings are printed as JSON. Raises EncampError if it is none."""
    if len(data) > LARGEST_VALUE:
        raise EncampError(
            Code.USAGE,
            f"What command {command} printed is too large for a value: at most {LARGEST_VALUE}"
            " bytes travel.",
        )
    text = data.decode(errors="replace").strip()
    try:
        value = READERS[kind](text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        value = None
    if value is None or not fits(value, kind) or not is_value(value):
        shown = text if len(text) <= 60 else f"{text[:60]}..."
        raise EncampError(
            Code.USAGE, f"Command {command} is to return {kind.value}, but printed {shown!r}."
        )
    return value
