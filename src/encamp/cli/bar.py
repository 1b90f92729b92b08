"""Showing progress to whoever waits: a bar on a terminal, lines elsewhere, nothing for a moment."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from encamp.cli.cleaning import clean, remark
from encamp.progress import FIGURES, Note

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

FIGURES_EVERY = 9.0
"""Seconds between two lines of a log that differ in figures only."""

BAR = 16
"""Columns of the bar."""
BESIDE = BAR + 13
"""Columns that bar and time take beside what is told, with the gaps."""

PATIENCE = 0.7
"""Seconds that may pass before anything is shown."""


class Bar:
    """Progress on standard error, unless ENCAMP_QUIET is set; standard output is the command's."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._terminal = sys.stderr.isatty()
        self._quiet = bool(os.environ.get("ENCAMP_QUIET"))
        self._rich: RichProgress | None = None
        self._task: TaskID | None = None
        self._said = ""
        self._said_at = 0.0
        self._timer: threading.Timer | None = None
        self._latest: tuple[str, float | None] = ("", None)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish()

    def update(self, what: str, fraction: float | None = None) -> None:
        if self._quiet:
            return
        if isinstance(what, Note):
            self.finish()
            remark(what)
            return
        with self._lock:
            # Reasons of hosts, and labels of others, are among it.
            self._latest = (clean(what), fraction)
            waited = time.monotonic() - self._began
            if waited >= PATIENCE:
                self._show()
            elif self._timer is None:
                self._timer = threading.Timer(PATIENCE - waited, self._late)
                self._timer.daemon = True
                self._timer.start()

    def _late(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._show()

    def _show(self) -> None:
        what, fraction = self._latest
        if not self._terminal:
            said, now = what.partition(FIGURES)[0], time.monotonic()
            if said != self._said or (what != said and now - self._said_at >= FIGURES_EVERY):
                print(f"encamp: {what}", file=sys.stderr, flush=True)
                self._said, self._said_at = said, now
            return
        if self._rich is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )
            from rich.table import Column

            screen = Console(stderr=True)
            room = max(screen.width - BESIDE, 1)
            self._rich = Progress(
                SpinnerColumn(),
                # What is long goes on below, so that how long it takes is always shown.
                TextColumn("{task.description}", markup=False, table_column=Column(max_width=room)),
                BarColumn(bar_width=BAR),
                TimeElapsedColumn(),
                console=screen,
                transient=True,
            )
            self._task = self._rich.add_task(what, total=None)
            self._rich.start()
        assert self._task is not None
        if fraction is None:
            self._rich.update(self._task, description=what, total=None)
        else:
            self._rich.update(self._task, description=what, total=1.0, completed=fraction)

    def finish(self) -> None:
        """Nothing more to wait for: leave the screen as it was."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._rich is not None:
                self._rich.stop()
                self._rich = None
            self._began = time.monotonic()
