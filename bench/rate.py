"""How many fresh machines a host makes, uses and ends per second."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from bench.bare import bare_machine
from bench.ground import Ground
from bench.latency import EXPECTED, WORDS, run_until_output
from bench.measure import Series, paired_ratio, rounds
from bench.report import Figure, Goal, Report

TITLE = "sustained rate of fresh machines, two at a time"

EXPLANATION = """
Machines are made, run one command and are destroyed, two at a time, in blocks that alternate
between the library (two jobs in one event loop) and the bare script (two threads); the figure is
the median of the ratios of neighbouring blocks. A machine's whole life counts, so what is needed to
end one and to clear its directory is part of it. Both sides are limited by QEMU's own work, which
on two processors leaves nothing idle: what the library computes on top comes out of the same two
processors.
"""

AT_ONCE = 2


def measure(ground: Ground, *, quick: bool) -> Report:
    library = Series("library", "machines/s")
    bare = Series("bare script", "machines/s")
    block = 4 if quick else 20
    for _ in rounds("rate", 2 if quick else 12):
        started = time.perf_counter()
        asyncio.run(_library_block(ground, block))
        library.add(block / (time.perf_counter() - started))
        started = time.perf_counter()
        _bare_block(ground, block)
        bare.add(block / (time.perf_counter() - started))
    return Report(
        figures=[
            Figure("library / bare script", paired_ratio(library, bare), goal=(Goal.AT_LEAST, 0.85))
        ],
        background=[library, bare],
    )


async def _library_block(ground: Ground, block: int) -> None:
    left = iter(range(block))

    async def work() -> None:
        for _ in left:
            await run_until_output(ground, ground.job(*WORDS))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def _bare_block(ground: Ground, block: int) -> None:
    def work(_: int) -> None:
        with bare_machine(ground) as machine:
            machine.wake()
            machine.run(WORDS, EXPECTED)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(work, range(block)))
