"""The machine of a batch job: one that the last job of its owner's has left, or a new one. When the
job is done it is gone, or left to the next."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from encamp.agent.bait.choosing import choose_shares
from encamp.agent.bait.errand import Errand, Fault
from encamp.agent.bait.frames import Asked
from encamp.agent.bait.grouping import Groups
from encamp.agent.bait.inside import command_of
from encamp.agent.bait.lodging import Offer, offered
from encamp.agent.bait.sweeping import sweep
from encamp.agent.keeper import Keeper
from encamp.agent.live import Live
from encamp.agent.phases import Phases
from encamp.agent.reuse import Idle, may_reuse, take_idle
from encamp.describe.settings import SettingsError
from encamp.guest.channel import Channel
from encamp.machines.engine import Engine, MachineKilledError
from encamp.machines.process import family
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.machine import Machine, Phase
from encamp.progress import Progress

TICKS = os.sysconf("SC_CLK_TCK")

OURS = frozenset({Code.USAGE, Code.NO_ROOM, Code.DISK_FULL, Code.NOT_PERMITTED, Code.INPUT_MISSING})
"""What an environment is not to be blamed for."""

Machines = AsyncIterator[tuple[Machine, Engine, Channel]]


def fault_of(error: EncampError, *, fetching: bool) -> Fault | None:
    """Of a machine that did not come up. `fetching`: its image was being got."""
    if error.code in OURS or isinstance(error, SettingsError):
        return None
    if fetching:
        return Fault.UNFETCHED
    return Fault.KILLED if isinstance(error, MachineKilledError) else Fault.UNCLEAR


class Housing:
    """For one job, in a process of its user's."""

    def __init__(
        self,
        errand: Errand,
        asked: Asked,
        keeper: Keeper,
        environment: Environment,
        user: User,
        phases: Phases,
        groups: Groups,
    ) -> None:
        self._keeper = keeper
        self._environment = environment
        self._phases = phases
        self._groups = groups
        self._errand = errand
        self._asked = asked
        self._user = user
        self.cpu_seconds: float | None = None
        """What the machine's process has used for this job, once that is done."""
        self.peak_memory: int | None = None
        self.offer: Offer | None = None
        """To those who may join, once the machine is there."""
        self.cancelled = False
        """The job was told to end: its machine does not stay for another."""
        self.first: Callable[[Channel, Machine], None] = lambda channel, machine: None
        """Called as soon as the guest can be spoken to, though it may not have answered yet."""
        keeper.maker.shielded = True
        keeper.maker.on_launch = groups.take_in

    @asynccontextmanager
    async def machine(self, progress: Progress) -> Machines:
        """If the job does not come to its end, neither does the machine stay."""
        job = self._job()
        reuse = may_reuse(job, self._environment)
        idle = take_idle(self._keeper, job, self._environment) if reuse else None
        if idle is not None:
            async with self._taken(idle) as taken:
                yield taken
            return
        live = await self._keeper.maker.make(
            job.machine,
            self._environment,
            tied=True,
            outlives=reuse,
            phases=self._phases,
            progress=progress,
            command=job.command.arguments,
            first=self.first,
        )
        try:
            with self._offered(live.machine, live.engine, live.channel) as offer:
                yield live.machine, live.engine, live.channel
                self._measure(live.engine)
                alone = offer.withdraw() and not self.cancelled
            if reuse and alone and await sweep(live.channel, self._user):
                await self._leave(live)
            else:
                with self._phases.time(Phase.END, "destroyed"):
                    await live.destroy()
        except BaseException:
            await live.destroy()
            raise

    def _job(self) -> Job:
        errand = self._errand
        request = MachineRequest(
            environment=errand.environment,
            owner=self._user,
            cpus=errand.size.cpus,
            memory=errand.size.memory,
            disk=errand.size.disk,
            shares=choose_shares(
                errand.shares,
                self._user.home,
                self._asked.directory,
                [share.path for share in self._environment.shares],
            ),
        )
        # For whoever reads of the machine: what is run is said to the guest, byte by byte.
        words = tuple(word.decode(errors="backslashreplace") for word in command_of(self._asked))
        return Job(machine=request, command=Command(arguments=words))

    @asynccontextmanager
    async def _taken(self, idle: Idle) -> Machines:
        with self._phases.time(Phase.START, "reused"):
            self._phases.on_machine(idle.machine)
        try:
            async with self._keeper.speak(idle.machine) as (engine, channel):
                self._groups.take_in(engine.process.pid)
                before = _processor_time(engine)
                self.first(channel, idle.machine)
                with self._offered(idle.machine, engine, channel) as offer:
                    yield idle.machine, engine, channel
                    self._measure(engine, before)
                    alone = offer.withdraw() and not self.cancelled
                swept = alone and await sweep(channel, self._user)
                if swept:
                    self._groups.leave(engine.process.pid)
            if swept:
                idle.leave(self._phases)
            else:
                await idle.destroy()
        except BaseException:
            await idle.destroy()
            raise

    @contextmanager
    def _offered(self, machine: Machine, engine: Engine, channel: Channel) -> Iterator[Offer]:
        with offered(engine.directory, self._errand, machine, channel) as self.offer:
            yield self.offer

    async def _leave(self, live: Live) -> None:
        self._groups.leave(live.engine.process.pid)
        await live.hang_up()
        # With this the next job may have it: nothing is written here from then on.
        live.record(
            msgspec.structs.replace(live.machine, tied=False, idle=True, phases=self._phases.done())
        )
        await live.let_go()

    def _measure(self, engine: Engine, before: float = 0.0) -> None:
        """What the machine's processes have used, while they are there. `before`: for others."""
        self.cpu_seconds = max(0.0, _processor_time(engine) - before)
        # Of several, one has the memory of all.
        for pid in family(engine.process.pid):
            with suppress(OSError, ValueError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmHWM:"):
                        peak = int(line.split()[1]) * 1024
                        self.peak_memory = max(self.peak_memory or 0, peak)


def _processor_time(engine: Engine) -> float:
    """Seconds of processors that the machine's processes have used, those that have ended too."""
    total = 0.0
    for pid in family(engine.process.pid):
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            total += sum(map(int, fields[11:15])) / TICKS
    return total
