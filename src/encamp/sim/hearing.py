"""Whoever is the manager at the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from encamp.sim.said import Answer


class Hearing(Protocol):
    def hear(self, host: str) -> Callable[[msgspec.Struct], Answer]:
        """What takes the messages of a host: of the manager that is there when they arrive."""
