"""Telling somebody who waits at a terminal that there is something to wait for."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 1.0
"""Seconds that may pass before anything is said."""
CLEAR_LINE = "\r\x1b[K"


@contextmanager
def waiting(explain: Callable[[], str]) -> Iterator[None]:
    """If what is done here takes its time, a line says why, for as long as it does. Programs that
    read standard error, and those who asked for silence, are told nothing."""
    if not sys.stderr.isatty() or os.environ.get("ENCAMP_QUIET"):
        yield
        return
    line = _Line(explain)
    # Finding out why may take long as well; nobody waits for that.
    threading.Thread(target=line.show_late, daemon=True).start()
    try:
        yield
    finally:
        line.end()


class _Line:
    def __init__(self, explain: Callable[[], str]) -> None:
        self._explain = explain
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._shown = False

    def show_late(self) -> None:
        if self._over.wait(PATIENCE):
            return
        sentence = self._explain()
        with self._lock:
            if not self._over.is_set():
                # What goes on in a second line could not be taken back.
                width = shutil.get_terminal_size().columns - 1
                sys.stderr.write(f"encamp: {sentence}"[:width])
                sys.stderr.flush()
                self._shown = True

    def end(self) -> None:
        with self._lock:
            self._over.set()
            if self._shown:
                sys.stderr.write(CLEAR_LINE)
                sys.stderr.flush()
