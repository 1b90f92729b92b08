"""Who wants what when: jobs, out of a trace or made up."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from encamp.describe.nodes import Mistakes
from encamp.describe.sources import Level, Source
from encamp.model.errors import Code, EncampError
from encamp.model.request import MOST_MACHINES, Together
from encamp.model.size import MIB, Size
from encamp.sim.site import Generated, Memory, Reading, Rule, SimulatedSite, Wanted
from encamp.sim.trace import Trace, TraceJob

LEAST_MEMORY = 16 * MIB


class SimulatedJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job, and what only the simulation knows of it: how long it will run."""

    id: str
    owner: str
    submitted: float
    run: float
    environment: str
    size: Size
    count: int = 1
    together: Together = Together.ANYWHERE
    hosts: tuple[tuple[str, ...], ...] = ()
    """Groups of hosts: its hosts are in one of each of these."""
    requirements: str = ""
    rank: str = ""
    priority: int = 0
    retries: int = 0
    cancelled: float | None = None
    """Somebody wants it to end so many seconds after it was submitted."""
    standing: bool = False
    """Its machines are wanted for themselves, until somebody wants them to end."""

    @property
    def work(self) -> float:
        """Processor seconds."""
        return self.run * self.size.cpus * self.count


def jobs_of_trace(site: SimulatedSite, trace: Trace) -> list[SimulatedJob]:
    """What the jobs of a trace are on this site; all that fit no rule are told at once."""
    reading = site.trace or Reading()
    source = Source(trace.path, Level.HERE, 0, "", trace.path)
    mistakes = Mistakes()
    begin = trace.jobs[0].submitted
    jobs = []
    for job in trace.jobs:
        rule = _rule(site, reading, job)
        if rule is None:
            mistakes.add(source, job.line, 1, f"no rule says what {_about(job)} runs in")
            continue
        made = _job(site, reading, rule, job, begin)
        if made.count > MOST_MACHINES:
            what = f"this job wants {made.count:,} machines; {MOST_MACHINES:,} is the most"
            mistakes.add(source, job.line, 1, f"{what}: raise 'machine_cpus' in {site.path}")
        jobs.append(made)
    if mistakes:
        error = mistakes.error()
        raise EncampError(
            error.code,
            error.sentence,
            f"Give 'trace' in {site.path} a rule for them, or an 'environment' for all others.",
            detail=error.detail,
        )
    return jobs


def _about(job: TraceJob) -> str:
    known = {
        "queue": job.queue,
        "user": job.user,
        "properties": ":".join(job.properties),
    }
    facts = ", ".join(f"{name} {value}" for name, value in known.items() if value)
    return f"job {job.number} ({facts})" if facts else f"job {job.number}"


def _rule(site: SimulatedSite, reading: Reading, job: TraceJob) -> Rule | None:
    for rule in reading.rules:
        if _matches(rule, job):
            return rule
    if reading.environment:
        return Rule(environment=reading.environment)
    if not reading.rules and len(site.environments) == 1:
        return Rule(environment=next(iter(site.environments)))
    return None


def _matches(rule: Rule, job: TraceJob) -> bool:
    asked = (
        (rule.properties, job.properties),
        (rule.queues, (job.queue,)),
        (rule.users, (job.user,)),
        (rule.user_groups, (job.user_group,)),
        (rule.programs, (job.program,)),
    )
    return all(
        any(fnmatchcase(value, pattern) for pattern in patterns for value in values)
        for patterns, values in asked
        if patterns
    )


def _job(
    site: SimulatedSite, reading: Reading, rule: Rule, job: TraceJob, begin: float
) -> SimulatedJob:
    environment = site.environments[rule.environment]
    count, cpus = _machines(job, reading.machine_cpus)
    needs = [
        need
        for need in reading.needs
        if any(fnmatchcase(one, need.property) for one in job.properties)
    ]
    return SimulatedJob(
        id=f"job{job.number}",
        owner=f"user{job.user}" if job.user else "somebody",
        submitted=(job.submitted - begin) / reading.faster,
        run=job.run,
        environment=environment.name,
        size=Size(cpus, _memory(job, reading, environment, cpus), environment.disk),
        count=count,
        hosts=tuple(need.hosts for need in needs if need.hosts),
        requirements=both([rule.requirements, *(need.requirements for need in needs)]),
        rank=rule.rank,
        priority=rule.priority,
        retries=reading.retries,
    )


def _machines(job: TraceJob, most: int | None) -> tuple[int, int]:
    """How many machines, with how many processors each."""
    if job.nodes:
        return sum(count for count, _ in job.nodes) or 1, max(cpus for _, cpus in job.nodes) or 1
    if most is None or job.cpus <= most:
        return 1, job.cpus
    return math.ceil(job.cpus / most), most


def _memory(job: TraceJob, reading: Reading, environment: Wanted, cpus: int) -> int:
    if job.memory is None or reading.memory is Memory.NOTHING:
        return environment.memory
    per_machine = reading.memory is Memory.PER_MACHINE
    return max(LEAST_MEMORY, int(job.memory if per_machine else job.memory * 1024 * cpus))


def both(expressions: Sequence[str]) -> str:
    """An expression that is true where all of these are."""
    given = [expression for expression in expressions if expression]
    if len(given) < 2:
        return "".join(given)
    return " and ".join(f"({expression})" for expression in given)


# ── made up ──────────────────────────────────────────────────────────────────────────────────────


def made_up(site: SimulatedSite, seed: int) -> list[SimulatedJob]:
    """Jobs that come at random, always the same for one seed."""
    generated = site.jobs or Generated()
    weights = generated.environments or dict.fromkeys(site.environments, 1.0)
    names = [name for name in site.environments if weights.get(name, 0.0) > 0]
    if not names:
        raise EncampError(
            Code.CONFIGURATION,
            f"No environment is wanted by any job of {site.path}.",
            "Give one of 'environments' in 'jobs' a number above 0.",
        )
    shares = [weights[name] for name in names]
    chance = random.Random(f"workload {seed}")
    now = 0.0
    jobs = []
    for number in range(generated.jobs):
        now += chance.expovariate(1.0 / generated.every)
        turns = int(now / generated.turn) % len(names) if generated.turn else 0
        [name] = chance.choices(names[turns:] + names[:turns], shares)
        environment = site.environments[name]
        cpus = max(chance.choice(generated.cpus), environment.cpus)
        run = round(generated.run * math.exp(chance.gauss(0.0, generated.spread)), 3)
        cancelled = None
        standing = chance.random() < generated.standing
        if chance.random() < generated.cancelled:
            cancelled = round(chance.uniform(0.0, 2 * run), 3)
        if standing:
            cancelled = run
        jobs.append(
            SimulatedJob(
                id=f"job{number}",
                owner=f"user{chance.randrange(generated.owners)}",
                submitted=round(now, 3),
                run=run,
                environment=name,
                size=Size(cpus, environment.memory, environment.disk),
                count=chance.choice(generated.machines),
                together=Together.APART if generated.apart else Together.ANYWHERE,
                retries=generated.retries,
                cancelled=cancelled,
                standing=standing,
            )
        )
    return jobs
