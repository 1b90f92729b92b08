"""What a bigger environment costs: a clone of Debian 12 against one of `mini`."""

from __future__ import annotations

import asyncio

import msgspec

from bench.ground import Ground
from bench.latency import WORDS, run_until_output
from bench.measure import Series, paired_ratio, rounds
from bench.report import Figure, Goal, Report
from encamp.model.job import Job

TITLE = "a clone of a whole distribution against one of the smallest environment"

EXPLANATION = """
Both are cloned in turn by `run_job` in a process that is already running, from the request until
the first byte of `echo`'s output; the figure is the median of the ratios of neighbouring rounds.
`debian12` has four times the memory of `mini`, two layers instead of one, and a C library to load
for every command; how much of its memory a clone touches decides, not how much it has.
"""

BIG = "debian12"


def measure(ground: Ground, *, quick: bool) -> Report:
    small, big = Series("mini", "ms"), Series(BIG, "ms")
    job = ground.job(*WORDS)
    request = msgspec.structs.replace(job.machine, environment=BIG)
    other = msgspec.structs.replace(job, machine=request)
    with asyncio.Runner() as runner:

        def once(wanted: Job) -> float:
            return runner.run(run_until_output(ground, wanted))

        once(other)  # Builds the image and makes the template, the first time.
        for _ in rounds("environments", 3 if quick else 25):
            small.add(once(job))
            big.add(once(other))
    return Report(
        figures=[Figure("debian12 / mini", paired_ratio(big, small), goal=(Goal.AT_MOST, 3))],
        background=[small, big],
    )
