"""Jobs that were given back and are to begin again at once. That can be said only when they have
ended, which takes a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from encamp.model.errors import EncampError

log = logging.getLogger(__name__)

ENDING, LOOK = 120.0, 0.5
"""Seconds in which a job that was given back is in the queue again, and between two looks."""


class Beginning:
    def __init__(self, begin: Callable[[str], bool]) -> None:
        """`begin` lets a job begin, and says whether that was possible yet."""
        self._begin = begin
        self._jobs: dict[str, float] = {}
        self._following = False
        self._lock = threading.Lock()

    def soon(self, id: str) -> None:
        with self._lock:
            self._jobs[id] = time.monotonic() + ENDING
            if not self._following:
                thread = threading.Thread(target=self._follow, name="beginning", daemon=True)
                # Should there be no room for a thread, it begins when Slurm lets it.
                with suppress(RuntimeError):
                    thread.start()
                    self._following = True

    def _follow(self) -> None:
        while asked := self._asked():
            for id in asked:
                try:
                    over = self._begin(id)
                except EncampError as error:
                    over = not error.transient
                except OSError:
                    over = False  # The host may be short of processes for a moment.
                except Exception:
                    # The others are followed whatever is wrong with one.
                    log.exception("Job %s cannot be let begin.", id)
                    over = True
                if over:
                    with self._lock:
                        self._jobs.pop(id, None)
            time.sleep(LOOK)

    def _asked(self) -> list[str]:
        """Those that are waited for; with none, the thread ends."""
        with self._lock:
            now = time.monotonic()
            self._jobs = {id: end for id, end in self._jobs.items() if end > now}
            self._following = bool(self._jobs)
            return list(self._jobs)
