"""Questions that many threads ask at once, asked as one: whoever comes while an answer is on its
way is asked for together with all the others who do, next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Round(Generic[T]):
    """Those who are asked for together."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.over = False
        self.answers: Mapping[str, T] = {}
        self.error: Exception | None = None


class Gathered(Generic[T]):
    def __init__(self, ask: Callable[[frozenset[str]], Mapping[str, T]]) -> None:
        self._ask = ask
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._next: Round[T] = Round()

    def __call__(self, key: str) -> T | None:
        with self._lock:
            mine = self._next
            mine.keys.add(key)
        with self._turn:
            if not mine.over:
                with self._lock:
                    self._next = Round()
                try:
                    mine.answers = self._ask(frozenset(mine.keys))
                except Exception as error:
                    mine.error = error
                mine.over = True
        if mine.error is not None:
            raise mine.error
        return mine.answers.get(key)
