"""Static classes: each environment owns hosts, and no other environment may use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from encamp.model.policy import Policy
from encamp.sim.site import Division, HostKind, SimulatedSite
from encamp.sim.workload import SimulatedJob

ROUNDS = 10_000

RESERVE = Policy().memory_reserve

_Wanted = tuple[str, int, int, int, tuple[tuple[str, ...], ...]]
"""Environment, machines, processors, memory, and groups of hosts."""


def own_group(environment: str) -> str:
    """The group of hosts that an environment owns."""
    return f"own.{environment}"


def divide(
    site: SimulatedSite, jobs: Sequence[SimulatedJob], division: Division
) -> dict[str, list[str]]:
    """Which environments own each host. Those that name groups own these; all other hosts are
    dealt out kind by kind, each environment getting one of each kind at least, and as many as its
    largest job needs, as far as there are so many."""
    owners: dict[str, list[str]] = {name: [] for kind in site.hosts for name in kind.names()}
    for environment in site.environments.values():
        for kind in site.hosts:
            if set(environment.hosts) & set(kind.groups):
                for name in kind.names():
                    owners[name].append(environment.name)
    dealt = [name for name, wanted in site.environments.items() if not wanted.hosts]
    kinds = [kind for kind in site.hosts if not any(owners[name] for name in kind.names())]
    if not dealt or not kinds:
        return owners
    weights = _weights(dealt, jobs, division)
    for kind, shares in zip(kinds, _deal(kinds, dealt, weights, jobs), strict=True):
        names = iter(kind.names())
        for environment_name, count in shares.items():
            for _ in range(count):
                owners[next(names)].append(environment_name)
    return owners


def _weights(
    environments: Sequence[str], jobs: Iterable[SimulatedJob], division: Division
) -> dict[str, float]:
    weights = dict.fromkeys(environments, 1.0 if division is Division.EQUAL else 0.0)
    if division is Division.DEMAND:
        for job in jobs:
            if job.environment in weights:
                weights[job.environment] += job.work
    return weights


def _deal(
    kinds: Sequence[HostKind],
    environments: Sequence[str],
    weights: dict[str, float],
    jobs: Iterable[SimulatedJob],
) -> list[dict[str, int]]:
    """How many hosts of each kind each environment gets."""
    largest = {
        (job.environment, job.count, job.size.cpus, job.size.memory, job.hosts)
        for job in jobs
        if job.environment in weights
    }
    least = [dict.fromkeys(environments, 1) for _ in kinds]
    shares = [_apportion(kind.count, weights, low) for kind, low in zip(kinds, least, strict=True)]
    for _ in range(ROUNDS):
        short = next((one for one in sorted(largest) if _fits(kinds, shares, one) is False), None)
        if short is None:
            break
        if not _raise(kinds, shares, least, short):
            largest.discard(short)  # There are not so many hosts.
            continue
        shares = [
            _apportion(kind.count, weights, low) for kind, low in zip(kinds, least, strict=True)
        ]
    return shares


def _fits(kinds: Sequence[HostKind], shares: list[dict[str, int]], job: _Wanted) -> bool:
    room = sum(share[job[0]] * _times(kind, job) for kind, share in zip(kinds, shares, strict=True))
    return room >= job[1]


def _times(kind: HostKind, job: _Wanted) -> int:
    """How many machines of a job there is room for on a host."""
    _, _, cpus, memory, groups = job
    if not all(set(some) & set(kind.groups) for some in groups):
        return 0
    reserve = min(RESERVE, kind.memory // 8)
    return min(kind.cpus // cpus, (kind.memory - reserve) // max(1, memory))


def _raise(
    kinds: Sequence[HostKind],
    shares: list[dict[str, int]],
    least: list[dict[str, int]],
    job: _Wanted,
) -> bool:
    """Have an environment get one host more, of a kind that is of use, and that it has the
    smallest part of."""
    environment = job[0]
    possible = [
        (share[environment] / kind.count, place)
        for place, (kind, share) in enumerate(zip(kinds, shares, strict=True))
        if _times(kind, job)
        and sum(least[place].values()) - least[place][environment] + share[environment] < kind.count
    ]
    if not possible:
        return False
    _, place = min(possible)
    least[place][environment] = shares[place][environment] + 1
    return True


def _apportion(count: int, weights: dict[str, float], least: dict[str, int]) -> dict[str, int]:
    """So many hosts by weight, whole ones, none with less than its least if that is possible."""
    shares = dict.fromkeys(weights, 0)
    for name in weights:
        shares[name] = min(least[name], count - sum(shares.values()))
    total = sum(weights.values()) or 1.0
    for _ in range(count - sum(shares.values())):
        # To whoever is furthest below its part.
        behind = max(weights, key=lambda name: weights[name] / total * count - shares[name])
        shares[behind] += 1
    return shares
