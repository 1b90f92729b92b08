"""Many machines alive at once: what each costs, and whether each still answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from bench.bare import BareMachine
from bench.ground import Ground
from bench.measure import MIB, Memory, Series, available_memory, memory_of, ratio, settled
from bench.report import Figure, Goal, Report
from encamp.agent.run import Control, run_in
from encamp.agent.streams import Silence
from encamp.machines import drivers
from encamp.machines.room import OVERCOMMIT
from encamp.model.job import Command
from encamp.model.machine import Machine
from encamp.progress import Silent

TITLE = "machines alive at once, and the memory of each"

EXPLANATION = """
The library starts the machines (`Keeper.start`), runs a command in every one of them while all
are alive, compares what each said with what only it can say, and ends them; then the bare script
holds as many. *Own memory* is what only the machine's process has and nothing on disk stands
behind; *proportional* adds its part of what all of them share: the template's memory and QEMU's
program. *Host* is the fall of the host's available memory divided by the number of machines; it
also contains the kernel's own part, such as page tables and sockets.

About half of a machine's own memory is QEMU's buffer of translated code (under software
emulation), most of the rest QEMU's heap and the relocated parts of its libraries; of the guest's
memory only the pages it wrote since it woke up are its own. Encamp's launcher turns off huge pages,
which would round the buffer up, so its machines can come out smaller than the bare script's; a
user account and a second session inside make them larger.
"""

T = TypeVar("T")

AT_ONCE = 2
ANSWERS_AT_ONCE = 4


class Answer(Silence):
    def __init__(self) -> None:
        self.text = b""

    async def write(self, data: bytes) -> None:
        self.text += data


class Costs:
    """What one side's machines hold of the host's memory."""

    def __init__(self, side: str) -> None:
        self.own = Series(f"{side}, own memory of a machine", "MiB")
        self.proportional = Series(f"{side}, proportional memory of a machine", "MiB")
        self.host = Series(f"{side}, host's memory per machine", "MiB")

    def add(self, memories: list[Memory], fallen: int) -> None:
        for memory in memories:
            self.own.add(memory.own / MIB)
            self.proportional.add(memory.proportional / MIB)
        self.host.add(fallen / len(memories) / MIB)


def measure(ground: Ground, *, quick: bool) -> Report:
    count = 10 if quick else 300
    library, bare = Costs("library"), Costs("bare")
    # Machines are promised their whole memory; these will use little of it.
    before = os.environ.get(OVERCOMMIT)
    os.environ[OVERCOMMIT] = "8"
    try:
        answered = asyncio.run(_library(ground, count, library))
    finally:
        if before is None:
            del os.environ[OVERCOMMIT]
        else:
            os.environ[OVERCOMMIT] = before
    _bare(ground, count, bare)
    goal = (Goal.AT_MOST, 1.1)
    return Report(
        figures=[
            Figure("machines that stood and answered", answered, "", (Goal.AT_LEAST, count)),
            Figure("library / bare, own memory", ratio(library.own, bare.own), goal=goal),
            Figure(
                "library / bare, proportional memory",
                ratio(library.proportional, bare.proportional),
                goal=goal,
            ),
            Figure("library / bare, host's memory", ratio(library.host, bare.host), goal=goal),
        ],
        background=[
            *(library.own, bare.own),
            *(library.proportional, bare.proportional),
            *(library.host, bare.host),
        ],
    )


def _host_memory() -> int:
    return settled(available_memory, within=16 * MIB)


async def _library(ground: Ground, count: int, costs: Costs) -> int:
    before = await asyncio.to_thread(_host_memory)
    async with _started(ground, count) as machines:
        questions = [partial(_answers, ground, machine) for machine in machines]
        answers = await limited(ANSWERS_AT_ONCE, questions)
        after = await asyncio.to_thread(_host_memory)
        costs.add([memory_of(_pid(ground, machine)) for machine in machines], before - after)
    return sum(answers)


@asynccontextmanager
async def _started(ground: Ground, count: int) -> AsyncIterator[list[Machine]]:
    machines: list[Machine] = []

    async def start() -> None:
        machines.append(await ground.keeper.start(ground.plan.request, Silent()))

    try:
        await limited(AT_ONCE, [start] * count)
        yield machines
    finally:
        for machine in machines:
            await ground.keeper.remove(machine, force=True)


async def _answers(ground: Ground, machine: Machine) -> bool:
    """Does the machine say what only it can say?"""
    answer = Answer()
    command = Command(arguments=("sh", "-c", "hostname; cat /etc/machine-id"))
    owner = ground.owner
    outcome = await run_in(ground.keeper, machine, command, owner, answer, Control(), None, None)
    return outcome.exit_code == 0 and answer.text == f"{machine.name}\n{machine.id}\n".encode()


async def limited(at_once: int, work: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    free = asyncio.Semaphore(at_once)

    async def one(begin: Callable[[], Awaitable[T]]) -> T:
        async with free:
            return await begin()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(begin)) for begin in work]
    return [task.result() for task in tasks]


def _pid(ground: Ground, machine: Machine) -> int:
    engine = drivers.find(ground.keeper.journal.directory(machine.id))
    assert engine is not None, f"{machine.name} is gone"
    engine.process.close()
    return engine.process.pid


def _bare(ground: Ground, count: int, costs: Costs) -> None:
    before = _host_memory()
    machines: list[BareMachine] = []

    def start(_: int) -> None:
        machine = BareMachine(ground)
        machines.append(machine)
        machine.wake()
        machine.run(["sh", "-c", "hostname; cat /etc/machine-id; echo done"], b"done\n")

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(start, range(count)))
        after = _host_memory()
        costs.add([memory_of(machine.process.pid) for machine in machines], before - after)
    finally:
        for machine in machines:
            machine.end()
