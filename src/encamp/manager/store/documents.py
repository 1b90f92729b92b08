"""How things are written down: as JSON documents in bytes, beside short keys to find them by.

Bytes, since PostgreSQL's texts cannot hold all that JSON can say. Whatever comes from outside is
either written down and read back as it was, or refused; the same on every database.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from encamp.model.errors import Code, EncampError

LARGEST_DOCUMENT = 16 << 20
"""Bytes of one document."""
LONGEST_KEY = 200
"""Characters of a key: databases bound what an index can hold."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

N = TypeVar("N")
T = TypeVar("T", bound=msgspec.Struct)

encode = msgspec.json.Encoder().encode
log = logging.getLogger(__name__)


def key(text: str) -> str:
    """What stands for a text in a column: the text itself, if it is a decent one."""
    text = printable(text).replace("\0", REPLACEMENT)
    if len(text) <= LONGEST_KEY:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text[: LONGEST_KEY - len(digest)] + digest


def exact_key(text: str, what: str) -> str:
    """A key that is the whole text; anything else is refused."""
    if not text or key(text) != text:
        raise EncampError(
            Code.USAGE,
            f"{what} {printable(text)[:50]!r} cannot be kept: it is empty, longer than "
            f"{LONGEST_KEY} characters, or holds some that are no text.",
        )
    return text


def printable(text: str) -> str:
    """Without half characters, which no file and no database takes."""
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def document(thing: msgspec.Struct, what: str) -> bytes:
    try:
        _check_numbers(thing)
        data = encode(thing)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise EncampError(
            Code.USAGE,
            f"{what} cannot be written down.",
            "It holds what JSON cannot say.",
            detail=printable(str(error)),
        ) from error
    if len(data) > LARGEST_DOCUMENT:
        raise EncampError(
            Code.USAGE,
            f"{what} is too large to be written down: {len(data)} bytes, at most "
            f"{LARGEST_DOCUMENT} are kept.",
        )
    return data


def _check_numbers(thing: msgspec.Struct) -> None:
    """JSON would say `null` for them, and the document could not be read back."""
    for name in thing.__struct_fields__:
        value = getattr(thing, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")


def lenient_document(thing: msgspec.Struct) -> bytes:
    """Of something that must not be lost because of a part that cannot be written down: what no
    text can hold is replaced, what is too large is left out."""
    with suppress(EncampError):
        return document(thing, "It")
    fields = {name: getattr(thing, name) for name in thing.__struct_fields__}
    with suppress(EncampError, RecursionError):
        return document(type(thing)(**_cleaned(fields)), "It")
    plain = {
        name: _cleaned(value[:1000] if isinstance(value, str) else value)
        for name, value in fields.items()
        if not isinstance(value, dict | list | tuple)
    }
    return document(type(thing)(**plain), "It")


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case float() if not math.isfinite(value):
            return 0.0
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case dict():
            return {_cleaned(name): _cleaned(item) for name, item in value.items()}
        case _:
            return value


def decoded(
    decoder: msgspec.json.Decoder[T], documents: Iterable[tuple[N, bytes]]
) -> Iterator[tuple[N, T]]:
    """What documents say. One that is damaged does not hide the others."""
    for name, data in documents:
        try:
            yield name, decoder.decode(data)
        except (msgspec.DecodeError, ValueError) as error:
            log.warning("Entry %s of the store is damaged and is left out: %s", name, error)
