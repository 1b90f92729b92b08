"""Hosts that are spared: where an environment has failed nothing of it is placed for a while, which
grows with each failure; then one machine is tried, and only when that has come up any more.
"""

from __future__ import annotations

from encamp.model.policy import Policy

ANY = ""
"""Instead of an environment: the host keeps breaking its promises, whatever they are about."""

REFUSALS = 3
"""Promises in a row that a host may refuse though it seemed to have room."""


class Spared:
    """An environment on a host."""

    __slots__ = ("environment", "failures", "reason", "trial", "until")

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self.failures = 0
        self.until = 0.0
        self.reason = ""
        """Why it failed last."""
        self.trial = ""
        """The request that tries it, after that."""


class Sparing:
    def __init__(self) -> None:
        self._spared: dict[str, dict[str, Spared]] = {}
        """By host, then by environment."""
        self._refusals: dict[str, int] = {}

    def failed(
        self, host: str, environment: str, reason: str, policy: Policy, now: float
    ) -> Spared | None:
        """What is known of it from now on; None if it failed like others of the same time."""
        spared = self._spared.setdefault(host, {}).setdefault(environment, Spared(environment))
        spared.reason = reason
        if now < spared.until:
            return None
        spared.failures += 1
        pause = policy.pause * 2.0 ** min(spared.failures - 1, 60)
        spared.until = now + min(pause, policy.longest_pause)
        spared.trial = ""
        return spared

    def refused(self, host: str, reason: str, policy: Policy, now: float) -> Spared | None:
        """A host did not keep to what it says it has room for. One that goes on so is spared."""
        count = self._refusals[host] = self._refusals.get(host, 0) + 1
        known = self._spared.get(host, {}).get(ANY)
        if count < REFUSALS and known is None:
            return None
        self._refusals[host] = 0
        return self.failed(host, ANY, reason, policy, now)

    def promised(self, host: str) -> None:
        self._refusals.pop(host, None)

    def succeeded(self, host: str, environment: str) -> bool:
        """A machine has come up. Does that make a difference?"""
        known = self._spared.get(host)
        if known is None:
            return False
        found = [known.pop(name, None) for name in (environment, ANY)]
        if not known:
            del self._spared[host]
        return any(found)

    def begin_trial(self, host: str, environment: str, request: str) -> None:
        for spared in self._of(host, environment):
            if not spared.trial:
                spared.trial = request

    def end_trial(self, host: str, environment: str, request: str) -> bool:
        """It came to nothing that counts. May another try?"""
        found = False
        for spared in self._of(host, environment):
            if spared.trial == request:
                spared.trial = ""
                found = True
        return found

    def of(self, host: str, environment: str, now: float) -> Spared | None:
        """Why nothing of an environment may be placed on a host now."""
        for spared in self._of(host, environment):
            if now < spared.until or spared.trial:
                return spared
        return None

    def only_one(self, host: str, environment: str) -> bool:
        """May just one machine be tried?"""
        return bool(self._of(host, environment))

    def of_host(self, host: str) -> dict[str, Spared]:
        return self._spared.get(host, {})

    def forget(self, host: str) -> None:
        self._spared.pop(host, None)
        self._refusals.pop(host, None)

    def _of(self, host: str, environment: str) -> list[Spared]:
        known = self._spared.get(host)
        if known is None:
            return []
        return [known[name] for name in (environment, ANY) if name in known]
