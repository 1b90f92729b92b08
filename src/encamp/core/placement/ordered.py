"""Keys kept in order: put in, taken out and gone through from the smallest on.

They lie in blocks, so that none of this goes through all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Any)
"""Whatever can be compared; no two of them are equal."""

LARGEST = 512
"""Keys in a block; one that gets larger is cut in two."""


class Ordered(Generic[Key]):
    __slots__ = ("_blocks", "_last", "_length")

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = []
        self._last: list[Key] = []
        """The largest key of each block."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def fill(self, keys: list[Key]) -> None:
        """Have these instead; at once, which is much faster than one by one."""
        keys.sort()
        half = LARGEST // 2
        self._blocks = [keys[start : start + half] for start in range(0, len(keys), half)]
        self._last = [block[-1] for block in self._blocks]
        self._length = len(keys)

    def add(self, key: Key) -> None:
        self._length += 1
        if not self._blocks:
            self._blocks.append([key])
            self._last.append(key)
            return
        place = bisect_left(self._last, key)
        if place == len(self._blocks):
            place -= 1
            self._blocks[place].append(key)
            self._last[place] = key
        else:
            insort(self._blocks[place], key)
        block = self._blocks[place]
        if len(block) > LARGEST:
            half = len(block) // 2
            self._blocks[place : place + 1] = [block[:half], block[half:]]
            self._last.insert(place, block[half - 1])

    def remove(self, key: Key) -> None:
        """It is there."""
        place = bisect_left(self._last, key)
        block = self._blocks[place]
        index = bisect_left(block, key)
        assert block[index] == key
        del block[index]
        self._length -= 1
        if not block:
            del self._blocks[place]
            del self._last[place]
        elif index == len(block):
            self._last[place] = block[-1]

    def first(self) -> Key | None:
        return self._blocks[0][0] if self._blocks else None

    def last(self) -> Key | None:
        return self._last[-1] if self._last else None

    def __iter__(self) -> Iterator[Key]:
        """Nothing may be put in or taken out on the way."""
        for block in self._blocks:
            yield from block

    def after(self, key: Key) -> Iterator[Key]:
        """Those that are larger, in order."""
        place = bisect_left(self._last, key)
        for number, block in enumerate(self._blocks[place:]):
            start = bisect_left(block, key) if number == 0 else 0
            for found in block[start:]:
                if found != key:
                    yield found

    def before(self, key: Key) -> int:
        """How many are smaller."""
        place = bisect_left(self._last, key)
        if place == len(self._blocks):
            return self._length
        smaller = sum(len(block) for block in self._blocks[:place])
        return smaller + bisect_left(self._blocks[place], key)
