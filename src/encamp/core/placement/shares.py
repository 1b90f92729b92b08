"""Fair share: what each owner has used of the site, and whose turn it is.

What was used counts less as time goes by; what somebody has now counts as if it were kept for a
while, so that those who come at the same time get the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from encamp.model.size import MIB, Size

MEMORY_OF_A_PROCESSOR = 4096 * MIB
"""Bytes of memory that count like a processor."""

AHEAD = 3600.0
"""Seconds for which what somebody has is taken to be kept."""

SMALLEST_SHARE = 1e-6

FORGOTTEN = 1e-3
"""Processor-seconds that are not worth remembering."""


def weight(size: Size) -> float:
    """What a machine counts: its processors, or the memory that others cannot have."""
    return max(float(size.cpus), size.memory / MEMORY_OF_A_PROCESSOR)


class Account:
    __slots__ = ("at", "rate", "share", "used")

    def __init__(self, share: float, now: float) -> None:
        self.share = share
        self.used = 0.0
        """Processor-seconds, as much as they still count."""
        self.rate = 0.0
        """Processors that it has now."""
        self.at = now
        """When `used` was worked out."""

    def settle(self, now: float, half_life: float) -> float:
        """What is used until now."""
        passed = now - self.at
        if passed > 0:
            kept = math.pow(0.5, passed / half_life)
            self.used = self.used * kept + self.rate * (1 - kept) * half_life / math.log(2)
            self.at = now
        elif passed < 0:
            self.at = now  # The clock was set back.
        return self.used


class Shares:
    def __init__(self, shares: Mapping[str, float], half_life: float) -> None:
        self._shares = shares
        self._half_life = max(half_life, 1.0)
        self._accounts: dict[str, Account] = {}

    def rule(self, shares: Mapping[str, float], half_life: float) -> None:
        """Share so from now on."""
        self._shares = shares
        self._half_life = max(half_life, 1.0)

    def account(self, owner: str, groups: tuple[str, ...], now: float) -> Account:
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = Account(self.share_of(owner, groups), now)
        else:
            account.share = self.share_of(owner, groups)
        return account

    def share_of(self, owner: str, groups: tuple[str, ...]) -> float:
        """Its own, or the largest of its groups'."""
        own = self._shares.get(owner)
        if own is None:
            found = [
                share for group in groups if (share := self._shares.get(f"@{group}")) is not None
            ]
            own = max(found, default=1.0)
        return max(own, SMALLEST_SHARE)

    def begin(self, owner: str, size: Size, now: float) -> None:
        account = self._accounts[owner]
        account.settle(now, self._half_life)
        account.rate += weight(size)

    def end(self, owner: str, size: Size, now: float) -> None:
        account = self._accounts[owner]
        account.settle(now, self._half_life)
        account.rate = max(account.rate - weight(size), 0.0)

    def standing(self, owner: str, now: float) -> float:
        """The lower, the sooner it is its turn."""
        account = self._accounts[owner]
        used = account.settle(now, self._half_life)
        return (used + account.rate * AHEAD) / account.share

    def recall(self, used: Mapping[str, float], now: float) -> None:
        """What owners had used, as a former manager wrote it down."""
        for owner, value in used.items():
            account = self.account(owner, (), now)
            account.used = max(account.used, value)

    def usage(self, now: float) -> dict[str, float]:
        """Of each owner; those who have used next to nothing are forgotten."""
        used = {
            owner: account.settle(now, self._half_life) for owner, account in self._accounts.items()
        }
        return {owner: value for owner, value in used.items() if value > FORGOTTEN}
