"""How much each token, and each address that fails to show one, may ask for.

Pure: the time is given.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict

from encamp.door.peer import network

BURST = 4.0
"""Seconds' worth of calls that a token may make at once."""
MOST_ADDRESSES = 10_000
"""Of those that failed, the latest are remembered."""
MOST_STREAMS = 32
"""Streams that one token may have open."""


class Bucket:
    """Holds so many, and fills at so many a second."""

    def __init__(self, size: float, rate: float, now: float) -> None:
        self.size = size
        self.rate = rate
        self._level = size
        self._at = now

    def take(self, now: float) -> float:
        """0: it was allowed. Else the seconds after which it will be."""
        self._level = min(self.size, self._level + (now - self._at) * self.rate)
        self._at = now
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self.rate


class Limits:
    def __init__(self, rate: float, failures: int) -> None:
        """`rate`: calls a second of each token. `failures`: calls without one from each address, at
        once and in a minute."""
        self._rate = rate
        self._failures = failures
        self._tokens: dict[str, Bucket] = {}
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self._streams: Counter[str] = Counter()

    def call(self, token: str, now: float) -> float:
        """Seconds to wait before a call with this token is taken; 0: none."""
        bucket = self._tokens.get(token)
        if bucket is None:
            if len(self._tokens) >= MOST_ADDRESSES:
                self._tokens.clear()
            bucket = self._tokens[token] = Bucket(self._rate * BURST, self._rate, now)
        return bucket.take(now)

    def failed(self, address: str, now: float) -> float:
        """The same for a call without a valid token. Those with one are taken from anywhere: who
        guesses must not shut out who knows."""
        place = network(address)
        bucket = self._addresses.pop(place, None) or Bucket(
            self._failures, self._failures / 60, now
        )
        self._addresses[place] = bucket
        if len(self._addresses) > MOST_ADDRESSES:
            self._addresses.popitem(last=False)
        return bucket.take(now)

    def open_stream(self, token: str) -> bool:
        """Whether it may have one more."""
        if self._streams[token] >= MOST_STREAMS:
            return False
        self._streams[token] += 1
        return True

    def close_stream(self, token: str) -> None:
        self._streams[token] -= 1
        if not self._streams[token]:
            del self._streams[token]

    @property
    def streams(self) -> int:
        return self._streams.total()


def retry_after(wait: float) -> str:
    """In whole seconds, as HTTP wants it."""
    return str(max(1, math.ceil(wait)))
