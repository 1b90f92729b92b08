"""The progress of a long operation as lines of a command's output."""

from __future__ import annotations

import threading
import time

from encamp.agent.commands.plugin import Context
from encamp.progress import FIGURES

FIGURES_EVERY = 9.0
"""Seconds between two lines that differ in figures only."""


class Lines:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._said = ""
        self._at = 0.0

    def update(self, what: str, fraction: float | None = None) -> None:
        without = what.partition(FIGURES)[0]
        with self._lock:
            now = time.monotonic()
            if without == self._said and (without == what or now - self._at < FIGURES_EVERY):
                return
            self._said, self._at = without, now
            self._context.write(f"{what}\n")
