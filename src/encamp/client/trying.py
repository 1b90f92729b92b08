"""Trying again: when, and for how long. Pure: the time is given."""

from __future__ import annotations

from typing import Any

from encamp.client.calls import Call
from encamp.model.errors import EncampError

PATIENCE = 30.0
"""Seconds for which a call is tried."""
NOBODY = 3.0
"""Seconds for which one is tried at an address where nobody has ever answered."""
FIRST, LONGEST = 0.1, 3.0
"""Seconds between two tries: each twice the former."""


class Tries:
    """Of one call."""

    def __init__(self, call: Call[Any], patience: float, now: float) -> None:
        self._call = call
        self._until = now + patience
        self._until_found = now + min(patience, NOBODY)
        self._pause = FIRST

    def pause(
        self,
        error: EncampError,
        now: float,
        *,
        told: bool,
        asked: float = 0.0,
        found: bool = True,
    ) -> float:
        """Seconds until the next one; the error itself, if there is none to be.

        `told`: the manager, or something before it, has answered; else nobody knows whether it was
        heard. `asked`: what it asked to wait for. `found`: somebody has answered there before, so
        that the address is not just a wrong one."""
        pause = max(self._pause, asked)
        may = error.transient and (told or self._call.repeatable)
        if not may or now + pause > (self._until if found else self._until_found):
            raise error
        self._pause = min(LONGEST, self._pause * 2)
        return pause

    def succeeded(self, patience: float, now: float) -> None:
        """A stream went on: it has all its patience again."""
        self._until = now + patience
        self._pause = FIRST


def asked_pause(headers: Any) -> float:
    """What the manager asks to wait for."""
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() and len(value) < 6 else 0.0
