"""The arithmetic of shared images: many machines of one environment, one copy of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.crowd import limited
from bench.ground import Ground
from bench.measure import MIB, Series, memory_of
from bench.page_cache import cached, evict, read_from_disk
from bench.report import Figure, Goal, Report
from encamp.agent.keeper import Keeper
from encamp.agent.run import Control, run_in
from encamp.agent.streams import Silence
from encamp.machines import drivers
from encamp.machines.room import OVERCOMMIT
from encamp.model.job import Command, MachineRequest, User
from encamp.model.machine import Machine
from encamp.progress import Silent

TITLE = "one copy of an image for many machines"

EXPLANATION = """
All machines are cloned first. Then the host is made to forget the image (`posix_fadvise`), every
machine reads the whole of its read-only drives, and what their processes made the kernel fetch
from the disk (`read_bytes` of `/proc/PID/io`) is added up and compared with the size of one image.
What the host keeps of the image in its page cache is counted page by page (`mincore`); all
machines read from there. *Own memory* is what only a machine's process has: the part that the
image is no part of, less what the guest itself caches of what it read.

If every machine had a copy of its own, as with a disk per machine, each would fetch and cache its
own: the last figure is what that would come to.
"""

AT_ONCE = 2
READ = """
for drive in /sys/block/vd*; do
    if [ "$(cat "$drive/ro")" = 1 ]; then
        dd if="/dev/${drive##*/}" of=/dev/null bs=1M 2>/dev/null || exit 1
    fi
done
"""
"""Read-only drives are the image's; so it does not matter how many layers it has."""


@dataclass
class Reading:
    """What many machines that read one image did to the host."""

    machines: int
    image: int
    """Bytes of one copy."""
    forgotten: int
    """Bytes of it in the page cache when they began: none, if the host could be made to forget."""
    cached: int
    """And when they had all read it."""
    fetched: int
    """Bytes that all of them together made the kernel read from the disk."""
    own: list[int] = field(default_factory=list)
    """Memory of each machine's own."""


def measure(ground: Ground, *, quick: bool) -> Report:
    environment, count = ("mini", 3) if quick else ("debian12", 100)
    request = MachineRequest(environment=environment, owner=ground.owner)
    with promises_not_counted():
        reading = asyncio.run(read_by_all(ground.keeper, request, count))
    own = Series("own memory of a machine that has read its image", "MiB")
    for memory in reading.own:
        own.add(memory / MIB)
    goal = (Goal.AT_MOST, 1.1)
    return Report(
        figures=[
            Figure(
                f"read from disk by {count} machines / one image",
                reading.fetched / reading.image,
                goal=goal,
            ),
            Figure(
                "image in the page cache / one image", reading.cached / reading.image, goal=goal
            ),
            Figure(f"one image of '{environment}'", reading.image / MIB, "MiB"),
            Figure("read from disk by all of them", reading.fetched / MIB, "MiB"),
            Figure(f"{count} copies would have been", count * reading.image / MIB, "MiB"),
        ],
        background=[own],
    )


@contextmanager
def promises_not_counted() -> Iterator[None]:
    """Machines are promised their whole memory; these will use little of it."""
    before = os.environ.get(OVERCOMMIT)
    os.environ[OVERCOMMIT] = "8"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OVERCOMMIT]
        else:
            os.environ[OVERCOMMIT] = before


async def read_by_all(keeper: Keeper, request: MachineRequest, count: int) -> Reading:
    async with standing(keeper, request, count) as machines:
        layers = layers_of(keeper, machines[0])
        pids = [pid_of(keeper, machine) for machine in machines]
        # What else they need is in memory by now; from here on they read only the image.
        for layer in layers:
            evict(layer)
        forgotten = sum(map(cached, layers))
        before = sum(map(read_from_disk, pids))
        await limited(AT_ONCE, [partial(reads, keeper, m, request.owner) for m in machines])
        return Reading(
            machines=count,
            image=sum(layer.stat().st_size for layer in layers),
            forgotten=forgotten,
            cached=sum(map(cached, layers)),
            fetched=sum(map(read_from_disk, pids)) - before,
            own=[memory_of(pid).own for pid in pids],
        )


@asynccontextmanager
async def standing(
    keeper: Keeper, request: MachineRequest, count: int
) -> AsyncIterator[list[Machine]]:
    machines: list[Machine] = []

    async def start() -> None:
        machines.append(await keeper.start(request, Silent()))

    try:
        # The first one may have to build the image and the template.
        await start()
        await limited(AT_ONCE, [start] * (count - 1))
        yield machines
    finally:
        for machine in machines:
            await keeper.remove(machine, force=True)


def layers_of(keeper: Keeper, machine: Machine) -> list[Path]:
    image = keeper.maker.images.by_digest(machine.image)
    assert image is not None, f"the image of {machine.name} is gone"
    return list(image.layers)


def pid_of(keeper: Keeper, machine: Machine) -> int:
    engine = drivers.find(keeper.journal.directory(machine.id))
    assert engine is not None, f"{machine.name} is gone"
    engine.process.close()
    return engine.process.pid


async def reads(keeper: Keeper, machine: Machine, owner: User) -> None:
    command = Command(arguments=("sh", "-c", READ))
    outcome = await run_in(keeper, machine, command, owner, Silence(), Control(), None, None)
    assert outcome.exit_code == 0, f"{machine.name}: {outcome.reason}"
