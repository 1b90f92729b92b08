"""Machines that have one job of their owner after the other.

Where environment and request allow it, a machine is left idle when its job is done. The next such
job that would get just that machine takes it. Idle ones give way to whoever needs their room.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from encamp.agent.copying import Files
from encamp.agent.journal import ClientLock
from encamp.agent.keeper import Keeper
from encamp.agent.phases import Phases
from encamp.agent.plan import wanted_shares
from encamp.agent.run import Arrived, Control, run_in
from encamp.agent.streams import Streams
from encamp.machines.process import Process, shut_out
from encamp.model.environment import Environment
from encamp.model.errors import EncampError
from encamp.model.image import Image
from encamp.model.job import Job, Outcome
from encamp.model.machine import After, Machine, Phase, State
from encamp.model.wanted import wanted_size


class Idle:
    """A machine that was idle, and is ours now: if this process ends, so does the machine."""

    def __init__(self, keeper: Keeper, machine: Machine, client: ClientLock) -> None:
        self.keeper = keeper
        self.machine = machine
        self.client = client

    def leave(self, phases: Phases) -> None:
        """To the next one."""
        self._write(tied=False, idle=True, phases=phases.done())
        self.client.release()

    async def destroy(self) -> None:
        try:
            await self.keeper.remove(self.machine, force=True)
        finally:
            self.client.release()

    def _write(self, **changes: object) -> None:
        changed = msgspec.structs.replace(self.machine, changed=time.time(), **changes)
        self.machine = changed
        self.keeper.journal.write(changed)


def may_reuse(job: Job, environment: Environment) -> bool:
    """Can such a job share a machine with others?"""
    after = job.after or environment.after
    asked = job.machine
    own = asked.name is not None or asked.boot
    own = own or asked.storage is not None or asked.driver is not None
    return environment.reuse and after is After.DESTROY and job.save_as is None and not own


def take_idle(keeper: Keeper, job: Job, environment: Environment) -> Idle | None:
    """An idle machine that is what the job would get, if there is one: from now on it is ours."""
    image = _image(keeper, job, environment)
    if image is None:
        return None
    for machine in sorted(keeper.journal.all(), key=lambda machine: -machine.changed):
        if _is_same(machine, job, environment, image):
            with suppress(EncampError), keeper.journal.moving(machine.id):
                taken = _take(keeper, machine, job)
                if taken is not None:
                    return taken
    return None


def _take(keeper: Keeper, machine: Machine, job: Job) -> Idle | None:
    directory = keeper.journal.directory(machine.id)
    current = keeper.journal.read(machine.id)
    if current is None or not current.idle or current.state is not State.RUNNING:
        return None
    process = Process.holding(directory.lock)
    if process is None:
        return None
    process.close()
    client = ClientLock.take(directory.client)
    if client is None:
        return None
    now = time.time()
    taken = msgspec.structs.replace(
        current, idle=False, tied=True, command=job.command.arguments, changed=now
    )
    keeper.journal.write(taken)
    return Idle(keeper, taken, client)


def _image(keeper: Keeper, job: Job, environment: Environment) -> Image | None:
    """What a fresh machine would be made of; None if that is not here."""
    wanted = job.machine.image or environment.image
    images = keeper.maker.images
    return images.resolve(wanted) if isinstance(wanted, str) else images.made_by(wanted)


def _is_same(machine: Machine, job: Job, environment: Environment, image: Image) -> bool:
    asked = job.machine
    return (
        machine.idle
        and machine.state is State.RUNNING
        and machine.guest
        and not machine.whole
        and machine.environment == environment.name
        and machine.image == image.digest
        and machine.size == wanted_size(asked, environment)
        and machine.network == (asked.network or environment.network)
        and machine.shares == wanted_shares(asked, environment)
        and (machine.devices, machine.words) == (environment.devices, environment.qemu)
    )


async def run_again(
    idle: Idle,
    job: Job,
    streams: Streams,
    control: Control,
    phases: Phases,
    files: Files,
    arrived: Arrived,
) -> Outcome:
    """Run a job in a machine that others have had before. If it does not come to its end, neither
    does the machine stay."""
    try:
        with phases.time(Phase.START, "reused"):
            window = await arrived()
        with phases.time(Phase.COMMAND, "ran") as how:
            outcome = await run_in(
                idle.keeper,
                idle.machine,
                job.command,
                job.machine.owner,
                streams,
                control,
                job.timeout,
                window,
                inputs=job.inputs,
                outputs=job.outputs,
                files=files,
            )
            how.word = outcome.reason
        idle.leave(phases)
    except BaseException:
        await idle.destroy()
        raise
    return msgspec.structs.replace(outcome, phases=phases.done())


async def remove_idle(keeper: Keeper, ids: Iterable[str]) -> list[str]:
    """Remove these machines, unless a job has taken them meanwhile; which were removed."""
    removed = []
    for machine_id in ids:
        directory = keeper.journal.directory(machine_id)
        with suppress(EncampError), keeper.journal.moving(machine_id):
            current = keeper.journal.read(machine_id)
            if current is None or not current.idle:
                continue
            process = Process.holding(directory.lock)
            if process is not None:
                await process.kill()
                process.close()
            with shut_out(directory.lock):
                directory.remove()
            removed.append(machine_id)
    return removed
