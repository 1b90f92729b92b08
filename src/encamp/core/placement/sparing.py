"""Hosts that are spared: where machines of an environment have failed for an owner, none of that
owner's is placed for a while, which grows with each failure; then one machine is tried, and only
when that has come up any more. What has failed for two owners is kept from all of them.
"""

from __future__ import annotations

from encamp.model.policy import Policy
from encamp.model.request import Request

ANY = ""
"""Instead of an environment: the host keeps breaking its promises, whatever they are about."""

EVERYBODY = ""
"""Instead of an owner."""

REFUSALS = 3
"""Promises in a row that a host may refuse though it seemed to have room."""

Whose = tuple[str, str]
"""An environment, and the owner whose machines of it are concerned."""


class Spared:
    """An environment on a host, for one owner or for everybody."""

    __slots__ = (
        "causes",
        "environment",
        "failures",
        "owner",
        "reason",
        "since_up",
        "trial",
        "until",
    )

    def __init__(self, environment: str, owner: str) -> None:
        self.environment = environment
        self.owner = owner
        self.failures = 0
        self.until = 0.0
        self.reason = ""
        """Why it failed last."""
        self.trial = ""
        """The request that tries it, after that."""
        self.causes: dict[str, str] = {}
        """Requests that failed there, and their owners."""
        self.since_up = False
        """Of one owner: has it failed since a machine of anybody's came up, and not been counted
        for everybody yet?"""

    def fail(self, reason: str, policy: Policy, now: float) -> bool:
        """Is it spared anew? Failures of the same time count once."""
        self.reason = reason
        if now < self.until:
            return False
        self.failures += 1
        pause = policy.pause * 2.0 ** min(self.failures - 1, 60)
        self.until = now + min(pause, policy.longest_pause)
        self.trial = ""
        return True


class Sparing:
    def __init__(self) -> None:
        self._spared: dict[str, dict[Whose, Spared]] = {}
        """By host."""
        self._refusals: dict[str, int] = {}
        self.apart: set[Whose] = set()
        """Owners for whom an environment has failed somewhere: hosts may be another thing to them
        than to others."""

    def failed(
        self, host: str, request: Request, reason: str, policy: Policy, now: float
    ) -> list[Spared]:
        """What is spared anew: for its owner, and if it failed for others, too, for everybody. A
        second owner is asked for each time, so that nobody can keep it from others alone."""
        environment, owner = request.environment, request.owner
        known = self._spared.setdefault(host, {})
        self.apart.add((environment, owner))
        own = self._row(known, environment, owner)
        own.causes[request.id] = owner
        # What owners describe themselves has only its name in common with that of others.
        own.since_up = not request.own
        found = [own] if own.fail(reason, policy, now) else []
        failing = [one for one in known.values() if one.since_up and one.environment == environment]
        if len(failing) < 2:
            return found
        everybodys = self._row(known, environment, EVERYBODY)
        if everybodys.fail(reason, policy, now):
            found.append(everybodys)
            everybodys.causes.clear()
            for one in failing:
                one.since_up = False
                everybodys.causes.update(one.causes)
        return found

    @staticmethod
    def _row(known: dict[Whose, Spared], environment: str, owner: str) -> Spared:
        return known.setdefault((environment, owner), Spared(environment, owner))

    def refused(self, host: str, reason: str, policy: Policy, now: float) -> Spared | None:
        """A host did not keep to what it says it has room for. One that goes on so is spared."""
        count = self._refusals[host] = self._refusals.get(host, 0) + 1
        if count < REFUSALS and (ANY, EVERYBODY) not in self.of_host(host):
            return None
        self._refusals[host] = 0
        spared = self._row(self._spared.setdefault(host, {}), ANY, EVERYBODY)
        return spared if spared.fail(reason, policy, now) else None

    def promised(self, host: str) -> None:
        self._refusals.pop(host, None)

    def succeeded(self, host: str, request: Request) -> bool:
        """A machine has come up. Does that make a difference?"""
        known = self._spared.get(host)
        if known is None:
            return False
        found = [known.pop(whose, None) for whose in _of(request.environment, request.owner)]
        for one in known.values():
            if one.environment == request.environment:
                one.since_up = False
        if not known:
            del self._spared[host]
        return any(found)

    def absolve(self, host: str, request: str) -> bool:
        """Nobody wants a request any more that has failed there. Does that make a difference?"""
        known = self._spared.get(host, {})
        found = False
        for whose, spared in list(known.items()):
            if spared.causes.pop(request, None) is None:
                continue
            owners = set(spared.causes.values())
            if len(owners) < (2 if spared.owner == EVERYBODY else 1):
                del known[whose]
                found = True
        return found

    def forgive(self) -> list[str]:
        """All hosts begin anew; returns those that were spared anything."""
        hosts = list(self._spared)
        self._spared.clear()
        self._refusals.clear()
        self.apart.clear()
        return hosts

    def begin_trial(self, host: str, request: Request) -> None:
        for spared in self._all(host, request.environment, request.owner):
            if not spared.trial:
                spared.trial = request.id

    def end_trial(self, host: str, request: Request) -> bool:
        """It came to nothing that counts. May another try?"""
        found = False
        for spared in self._all(host, request.environment, request.owner):
            if spared.trial == request.id:
                spared.trial = ""
                found = True
        return found

    def of(self, host: str, environment: str, owner: str, now: float) -> Spared | None:
        """Why nothing of an environment may be placed on a host for an owner now."""
        for spared in self._all(host, environment, owner):
            if now < spared.until or spared.trial:
                return spared
        return None

    def only_one(self, host: str, environment: str, owner: str) -> bool:
        """May just one machine be tried?"""
        return bool(self._all(host, environment, owner))

    def of_host(self, host: str) -> dict[Whose, Spared]:
        return self._spared.get(host, {})

    def forget(self, host: str) -> None:
        self._spared.pop(host, None)
        self._refusals.pop(host, None)

    def _all(self, host: str, environment: str, owner: str) -> list[Spared]:
        known = self._spared.get(host)
        if known is None:
            return []
        return [known[whose] for whose in _of(environment, owner) if whose in known]


def _of(environment: str, owner: str) -> tuple[Whose, ...]:
    """What may keep an owner's machines of an environment from a host."""
    return (environment, owner), (environment, EVERYBODY), (ANY, EVERYBODY)
