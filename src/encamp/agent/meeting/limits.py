"""How many may be at a meeting point at a time: nobody can take the places of all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from encamp.model.errors import Code, EncampError

MOST_WAITING = 256
"""Who have not shown a good ticket yet."""
MOST_WAITING_OF_ONE = 64
"""From one address, or of one user of this host."""
MOST_TALKING = 4096
MOST_TALKING_OF_ONE = 1024


class Places:
    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._talking: Counter[str] = Counter()

    @contextmanager
    def waiting(self, who: str) -> Iterator[None]:
        with _one_of(self._waiting, who, MOST_WAITING, MOST_WAITING_OF_ONE):
            yield

    @contextmanager
    def talking(self, who: str) -> Iterator[None]:
        with _one_of(self._talking, who, MOST_TALKING, MOST_TALKING_OF_ONE):
            yield


@contextmanager
def _one_of(taken: Counter[str], who: str, most: int, most_of_one: int) -> Iterator[None]:
    if taken.total() >= most or taken[who] >= most_of_one:
        raise EncampError(
            Code.NO_ROOM,
            "Too many speak with this host at this moment.",
            "Try again in a moment.",
            transient=True,
        )
    taken[who] += 1
    try:
        yield
    finally:
        taken[who] -= 1
        if not taken[who]:
            del taken[who]
