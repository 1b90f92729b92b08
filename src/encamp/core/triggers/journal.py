"""What of all looks at triggers is worth an entry in their log.

Most looks find that nothing is to be done, as before. Only what differs from the last entry about
the same trigger and subject is told, and of one trigger only so much in a time: one that flaps must
not drown the others.
"""

from __future__ import annotations

from encamp.core.actions import Judgement

IMPORTANT = frozenset({Judgement.FIRED, Judgement.FAILED})
EXPECTED = frozenset({Judgement.ONCE, Judgement.COOLING})
"""What follows after firing as long as it stays true."""
ALWAYS = frozenset({Judgement.STOPPED})

BURST = {True: 60.0, False: 20.0}
"""Entries of one trigger that are told at once, important or not."""
RATE = {True: 1.0, False: 0.2}
"""Entries of one trigger that are told in a second, for long."""

MOST_UNKNOWN = 100
"""Subjects of one trigger of which it is remembered that they were told to be unknown."""


class Allowance:
    """How much more of one trigger may be told."""

    __slots__ = ("at", "left", "withheld")

    def __init__(self, burst: float, now: float) -> None:
        self.left = burst
        self.at = now
        self.withheld = 0

    def take(self, burst: float, rate: float, now: float) -> bool:
        self.left = min(burst, self.left + max(0.0, now - self.at) * rate)
        self.at = now
        if self.left < 1.0:
            self.withheld += 1
            return False
        self.left -= 1.0
        return True


class Journal:
    """Of one trigger."""

    __slots__ = ("_allowances", "unknown")

    def __init__(self) -> None:
        self._allowances: dict[bool, Allowance] = {}
        self.unknown: set[str | None] = set()
        """Subjects that were told to be unknown."""

    def may_tell(self, judgement: Judgement, now: float) -> bool:
        """Ask before the entry is made: making one costs."""
        if judgement in ALWAYS:
            return True
        important = judgement in IMPORTANT
        allowance = self._allowances.get(important)
        if allowance is None:
            allowance = self._allowances[important] = Allowance(BURST[important], now)
        return allowance.take(BURST[important], RATE[important], now)

    def withheld(self, judgement: Judgement) -> int:
        """How many entries were left out since the last one that was told."""
        allowance = self._allowances.get(judgement in IMPORTANT)
        if allowance is None:
            return 0
        count, allowance.withheld = allowance.withheld, 0
        return count

    def is_news(self, subject: str | None, last: Judgement, judgement: Judgement) -> bool:
        """Does it differ from what was told of the subject last?"""
        if judgement is Judgement.UNKNOWN and last in (Judgement.FALSE, Judgement.UNKNOWN):
            if subject in self.unknown or len(self.unknown) >= MOST_UNKNOWN:
                return False
            self.unknown.add(subject)
            return True
        was_unknown = subject in self.unknown
        self.unknown.discard(subject)
        if last is Judgement.FIRED and judgement in EXPECTED:
            return False
        return judgement is Judgement.FIRED or was_unknown or judgement is not last
