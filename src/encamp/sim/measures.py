"""What a simulation has found: how long jobs waited, and how well the hosts were used."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from encamp.model.request import RequestRecord, RequestState
from encamp.model.size import MIB
from encamp.sim.site import Sharing, SimulatedSite
from encamp.sim.tally import NotDone, Span, Tally
from encamp.sim.workload import SimulatedJob

SHORT = 10.0
"""Seconds: for how long a job runs at least, as far as its slowdown is concerned. What runs for a
second and waits for a minute is not sixty times worse off than what runs for a minute."""

HOUR = 3600.0
GIB = 1024 * MIB


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How some jobs fared. Times in seconds, from being submitted until the command begins."""

    jobs: int
    mean: float
    median: float
    p95: float
    longest: float
    slowdown: float
    """The mean of (waiting + running) / running: the bounded slowdown."""
    slowdown_p95: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's figures."""

    policy: str
    sharing: Sharing
    jobs: int
    ended: dict[str, int]
    """How many jobs ended in each state."""
    waiting: Waits
    by_class: dict[str, Waits]
    utilisation: float
    """Part of all processors' time, from the first job's coming to the last one's end, in which
    they were used by commands."""
    throughput: float
    """Jobs done an hour."""
    hours: float
    machines_made: int
    machines_reused: int
    """How often a command ran in a machine that was idle."""
    machines_ahead: int
    """Of those that were made: ready before anybody wanted them."""
    idle_cpu_hours: float
    """What idle machines held, while others could have used it."""
    idle_memory_hours: float
    """In GiB."""
    triggers_fired: dict[str, int]
    not_done: list[NotDone]
    """What triggers would have done on a real site."""
    template_hits: int
    templates_made: int
    booted: int
    images_copied: int
    bytes_copied: int
    claims: int
    claims_refused: int


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """What a picture of it is drawn from."""

    measured: Measured
    waits: dict[str, tuple[float, ...]]
    """Of all jobs that were done, sorted, by class."""
    hours: tuple[float, ...]
    used: tuple[float, ...]
    """Part of the processors that was used, around each of these hours."""
    queued: tuple[float, ...]
    """Processors that were waited for, as a part of all there are."""
    idle: tuple[float, ...]
    """Those of idle machines."""
    refused: dict[str, str]
    """Jobs that made no sense, and why."""


def class_of(site: SimulatedSite, environment: str) -> str:
    classes = site.environments[environment].classes
    return classes[0] if classes else environment


def measure(
    site: SimulatedSite,
    name: str,
    sharing: Sharing,
    jobs: Sequence[SimulatedJob],
    records: dict[str, RequestRecord],
    refused: dict[str, str],
    tally: Tally,
    fired: dict[str, int],
    idle: Sequence[Span],
) -> Course:
    """`fired`: how often each trigger has; `idle`: when machines were."""
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    states: dict[str, int] = {}
    for job in jobs:
        record = records.get(job.id)
        if record is None:
            continue
        states[record.state.value] = states.get(record.state.value, 0) + 1
        endings = tally.endings.get(job.id, {})
        if record.state is RequestState.DONE and endings:
            beginnings = tally.beginnings[job.id]
            begun[job.id] = max(beginnings[command] for command in endings)
            ended[job.id] = max(endings.values())
    if refused:
        states["refused"] = len(refused)
    done = [job for job in jobs if job.id in begun]
    waits: dict[str, list[tuple[float, float]]] = {}
    for job in done:
        waits.setdefault(class_of(site, job.environment), []).append(
            (begun[job.id] - job.submitted, job.run)
        )
    first = min((job.submitted for job in jobs), default=0.0)
    last = max(ended.values(), default=first)
    seconds = max(last - first, 1e-9)
    cpus = sum(kind.count * kind.cpus for kind in site.hosts)
    measured = Measured(
        policy=name,
        sharing=sharing,
        jobs=len(jobs),
        ended=states,
        waiting=_waits([wait for several in waits.values() for wait in several]),
        by_class={name: _waits(waits[name]) for name in sorted(waits)},
        utilisation=sum(job.work for job in done) / (cpus * seconds),
        throughput=len(done) / seconds * HOUR,
        hours=seconds / HOUR,
        machines_made=tally.machines_made,
        machines_reused=tally.machines_reused,
        machines_ahead=tally.machines_ahead,
        idle_cpu_hours=sum((end - begin) * size.cpus for begin, end, size in idle) / HOUR,
        idle_memory_hours=sum((end - begin) * size.memory for begin, end, size in idle)
        / HOUR
        / GIB,
        triggers_fired=fired,
        not_done=list(tally.not_done.values()),
        template_hits=tally.template_hits,
        templates_made=tally.templates_made,
        booted=tally.booted,
        images_copied=tally.images_copied,
        bytes_copied=tally.bytes_copied,
        claims=tally.claims,
        claims_refused=tally.refusals,
    )
    busy = [(begun[job.id], ended[job.id], job.size.cpus * job.count) for job in done]
    queue = [(job.submitted, begun[job.id], job.size.cpus * job.count) for job in done]
    held = [(begin, end, size.cpus) for begin, end, size in idle]
    hours, used = averaged(busy, first, last, cpus)
    return Course(
        measured=measured,
        waits={name: tuple(sorted(wait for wait, _ in waits[name])) for name in sorted(waits)},
        hours=hours,
        used=used,
        queued=averaged(queue, first, last, cpus)[1],
        idle=averaged(held, first, last, cpus)[1],
        refused=refused,
    )


def _waits(found: Sequence[tuple[float, float]]) -> Waits:
    waiting = sorted(wait for wait, _ in found)
    slowdowns = sorted(max(1.0, (wait + run) / max(run, SHORT)) for wait, run in found)
    return Waits(
        jobs=len(found),
        mean=_mean(waiting),
        median=quantile(waiting, 0.5),
        p95=quantile(waiting, 0.95),
        longest=waiting[-1] if waiting else 0.0,
        slowdown=_mean(slowdowns),
        slowdown_p95=quantile(slowdowns, 0.95),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which a part of the sorted values lies, between two of them if need be."""
    if not values:
        return 0.0
    place = part * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


BINS = 240


def averaged(
    spans: Sequence[tuple[float, float, int]], first: float, last: float, cpus: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean of what these spans add up to, as a part of all processors, over equal times."""
    width = max(last - first, 1e-9) / BINS
    totals = [0.0] * BINS
    for begin, end, size in spans:
        low = min(max(int((begin - first) / width), 0), BINS - 1)
        high = min(max(int((end - first) / width), 0), BINS - 1)
        for place in range(low, high + 1):
            from_here = max(begin, first + place * width)
            to_here = min(end, first + (place + 1) * width)
            totals[place] += max(0.0, to_here - from_here) * size
    hours = tuple((place + 0.5) * width / HOUR for place in range(BINS))
    return hours, tuple(total / (width * cpus) for total in totals)
