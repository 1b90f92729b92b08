"""Why a property has no value, from what its plug-in raised: one short line."""

from __future__ import annotations

from encamp.agent.properties.plugin import NoValueError
from encamp.model.errors import EncampError

LONGEST = 500


def reason(error: BaseException) -> str:
    try:
        text = _text(error)
    except Exception:
        text = type(error).__name__  # An exception of somebody else's that cannot even be shown.
    text = " ".join(text[: 2 * LONGEST].split())
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _text(error: BaseException) -> str:
    if isinstance(error, (NoValueError, EncampError)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
