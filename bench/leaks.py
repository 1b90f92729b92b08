"""What is left of a thousand runs in one process."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.ground import Ground
from bench.latency import WORDS, run_until_output
from bench.measure import KIB, MIB, Series, growth_per_step, resident, rounds
from bench.report import Figure, Goal, Report

TITLE = "what a thousand runs in one process leave behind"

EXPLANATION = """
Jobs are run through the library, two at a time, in one process. Counted before and after: open
descriptors, files and directories below Encamp's home, child processes and asyncio tasks. The
process's resident memory is read after every block of runs, with Python's garbage collected; its
growth is the median slope between any two readings of the second half, so that what Python's
allocator takes once does not count as growth. The readings themselves are given too. Files are
counted in all of the home, so nobody else may work in it meanwhile.
"""

AT_ONCE = 2


@dataclass
class Holdings:
    """What can leak."""

    descriptors: int
    files: int
    children: int
    tasks: int


def _holdings(ground: Ground) -> Holdings:
    children = Path("/proc/self/task").glob("*/children")
    return Holdings(
        descriptors=len(os.listdir("/proc/self/fd")),
        files=sum(1 for directory in _kept(ground) for _ in directory.rglob("*")),
        children=sum(len(path.read_text().split()) for path in children),
        tasks=len(asyncio.all_tasks()),
    )


def _kept(ground: Ground) -> Iterator[Path]:
    """The home's own directories; a benchmark running beside this one has its own in there too."""
    home = ground.keeper.home
    yield from (home.machines, home.cache, home.locks, home.templates, home.images)


def measure(ground: Ground, *, quick: bool) -> Report:
    return asyncio.run(_measure(ground, blocks=4 if quick else 40, block=5 if quick else 25))


async def _measure(ground: Ground, *, blocks: int, block: int) -> Report:
    memory = Series("resident memory of the process", "MiB")
    samples: list[tuple[int, float]] = []
    await _runs(ground, block)
    before = _holdings(ground)
    for number in rounds("leaks, blocks of runs", blocks):
        await _runs(ground, block)
        gc.collect()
        samples.append(((number + 1) * block, resident()))
        memory.add(resident() / MIB)
    after = _holdings(ground)
    growth = growth_per_step(samples[len(samples) // 2 :]) / KIB
    none = (Goal.AT_MOST, 0.0)
    return Report(
        figures=[
            Figure("runs", blocks * block, ""),
            Figure("growth of memory per run", growth, "KiB", (Goal.AT_MOST, 1.0)),
            Figure("descriptors left", after.descriptors - before.descriptors, "", none),
            Figure("files left", after.files - before.files, "", none),
            Figure("child processes left", after.children - before.children, "", none),
            Figure("tasks left", after.tasks - before.tasks, "", none),
        ],
        background=[memory],
        remarks=[_course(samples)],
    )


def _course(samples: list[tuple[int, float]]) -> str:
    chosen = (samples[0], samples[len(samples) // 2], samples[-1])
    readings = (f"{size / MIB:.2f} MiB after {runs} runs" for runs, size in chosen)
    return f"Resident memory: {', '.join(readings)}."


async def _runs(ground: Ground, count: int) -> None:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await run_until_output(ground, ground.job(*WORDS))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
