"""How people name images: NAME, NAME:VERSION, or the beginning of a digest.

Names become file names, here and on servers, so nothing else is let through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from encamp.model.errors import Code, EncampError
from encamp.model.image import WORD

TAG = re.compile(rf"{WORD}(?::{WORD})?", re.ASCII)
DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
BEGINNING = re.compile(r"[0-9a-f]{6,64}", re.ASCII)
"""How much of a digest names an image."""


def is_tag(text: str) -> bool:
    return TAG.fullmatch(text) is not None and not is_digest(text)


def is_digest(text: str) -> bool:
    return DIGEST.fullmatch(text) is not None


def is_beginning(text: str) -> bool:
    return BEGINNING.fullmatch(text) is not None


def check_tag(text: str) -> str:
    if not is_tag(text):
        raise EncampError(
            Code.USAGE,
            f"{text!r} cannot be the name of an image.",
            "Write NAME or NAME:VERSION, each of up to 100 letters, digits, '.', '_', '+' and '-',"
            " beginning and ending with a letter or digit.",
        )
    return text


def check_reference(text: str) -> str:
    if not is_tag(text) and not is_beginning(text):
        raise EncampError(
            Code.USAGE,
            f"{text!r} does not name an image.",
            "Write NAME, NAME:VERSION, or at least 6 digits of its digest; see 'encamp image ls'.",
        )
    return text


def name_of(tag: str) -> str:
    """The tag without its version."""
    return tag.partition(":")[0]


def version_of(tag: str) -> str | None:
    return tag.partition(":")[2] or None


def tags(name: str, version: str | None) -> tuple[str, ...]:
    """What an image of this name and version is found by."""
    return (name,) if version is None else (name, f"{name}:{version}")


def only(reference: str, digests: Iterable[str]) -> str | None:
    """The one digest among these that begins like this."""
    found = sorted({digest for digest in digests if digest.startswith(reference)})
    if len(found) > 1:
        raise EncampError(
            Code.USAGE,
            f"'{reference}' is the beginning of {len(found)} images' digests.",
            "Give more of it; see 'encamp image ls'.",
        )
    return found[0] if found else None


def nearest(wanted: str, known: Iterable[str]) -> str:
    """A hint for somebody who asked for what is not there."""
    import difflib

    there = sorted(set(known))
    near = difflib.get_close_matches(wanted, there, n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(repr(other) for other in near)}?"
    if 0 < len(there) <= 8:
        return f"There are: {', '.join(there)}."
    return ""
