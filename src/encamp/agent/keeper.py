"""The keeper of a host's machines: every move somebody can make with one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec

from encamp.agent.deciding import check_processor
from encamp.agent.journal import Journal
from encamp.agent.making import Maker
from encamp.agent.moving import Moves, check_host
from encamp.agent.phases import Phases
from encamp.agent.plan import check_shares
from encamp.agent.promised import counting
from encamp.agent.recovery import recover
from encamp.agent.session import mount_shares, session
from encamp.agent.vanished import end_vanished
from encamp.describe.environments import find_environment
from encamp.guest.channel import Channel
from encamp.home import SYSTEM_HOME, Home
from encamp.machines.account import process_user
from encamp.machines.directory import MachineDirectory
from encamp.machines.drivers import launch, wake
from encamp.machines.engine import Blueprint, Engine, Restore
from encamp.machines.hardware import Hardware, Kept
from encamp.machines.processor import kvm_release
from encamp.machines.qemu import SSH_PORT
from encamp.machines.room import check_room
from encamp.machines.share_server import serve, while_served, window
from encamp.machines.storage import KEPT, backend_of
from encamp.model.driver import DRIVERS, DriverName
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.job import MachineRequest
from encamp.model.machine import ALIVE, Machine, Move, State
from encamp.model.storage import Storage
from encamp.progress import Progress

POWER_OFF_TIMEOUTS = {False: 15.0, True: 90.0}
"""Seconds a guest has to shut itself down before it is ended; a whole disk has an init of its own,
with its own idea of how long that takes."""


class Keeper:
    def __init__(self, home: Home, shared: Path | None = SYSTEM_HOME) -> None:
        """`shared`: the home whose images serve this one, too."""
        self.home = home
        self.journal = Journal(home)
        self._moves = Moves(self.journal)
        self.maker = Maker(home, shared)

    @classmethod
    def open(cls, home: Home, shared: Path | None = SYSTEM_HOME) -> Keeper:
        """The keeper of a home, after clearing what killed processes left there."""
        recover(home.prepare())
        return cls(home, shared)

    async def start(
        self,
        request: MachineRequest,
        progress: Progress,
        phases: Phases | None = None,
        environment: Environment | None = None,
        *,
        idle: bool = False,
    ) -> Machine:
        """A machine that lives until somebody ends it; `idle`: or a job of its owner's takes it."""
        phases = phases or Phases()
        live = await self.maker.make(
            request,
            environment or find_environment(request.environment),
            tied=False,
            outlives=True,
            phases=phases,
            progress=progress,
        )
        live.record(msgspec.structs.replace(live.machine, phases=phases.done(), idle=idle))
        await live.let_go()
        return live.machine

    @asynccontextmanager
    async def speak(self, machine: Machine) -> AsyncIterator[tuple[Engine, Channel]]:
        """A session with the guest of a running machine."""
        check_host(machine)
        machine.check(Move.EXECUTE)
        check_guest(machine)
        with self._moves.process_of(machine) as engine:
            async with session(machine, engine) as channel:
                yield engine, channel

    async def pause(self, machine: Machine) -> Machine:
        _refuse_of_node(machine, Move.PAUSE)
        with self._moves.standing(machine, Move.PAUSE) as (current, engine):
            # Written first: one that is said to be paused and runs can be resumed, not so the
            # other way round.
            moved = self._moves.moved(current, Move.PAUSE, "paused on request")
            try:
                await engine.unless_ended(engine.pause())
            except BaseException:
                self.journal.write(current)
                raise
            return moved

    async def resume(self, machine: Machine) -> Machine:
        with self._moves.standing(machine, Move.RESUME) as (current, engine):
            await engine.unless_ended(engine.resume())
            moved = self._moves.moved(current, Move.RESUME, "resumed on request")
            await self._greet(moved, engine)
            return moved

    async def _greet(self, machine: Machine, engine: Engine) -> None:
        """See a machine that goes on get its shares and the right time."""
        if not machine.guest:
            return
        try:
            # A hello sets the guest's clock right.
            async with session(machine, engine) as channel:
                await _mount_missing(channel, machine)
        except EncampError as error:
            # With all channels taken, it is set by the next one that is opened.
            if error.code is not Code.NO_ROOM:
                raise

    async def suspend(self, machine: Machine, *, job_is_over: bool = False) -> Machine:
        """Put the machine into a context file and end its process."""
        self._refuse_under_job(machine, Move.SUSPEND, job_is_over)
        if not DRIVERS[machine.driver].suspends:
            raise EncampError(
                Code.WRONG_STATE,
                f"Machine {machine.name} cannot be suspended: those of the driver"
                f" '{machine.driver.value}' have no state that could be kept.",
                f"'encamp pause {machine.name}' has it stand still in memory.",
            )
        with self._moves.standing(machine, Move.SUSPEND) as (current, engine):
            directory = self.journal.directory(current.id)
            # Written first: whoever is killed over this leaves a machine that can be resumed.
            standing = msgspec.structs.replace(
                current, state=State.PAUSED, reason="it was being suspended", changed=time.time()
            )
            self.journal.write(standing)
            try:
                if current.shares and current.guest:
                    # What their server knows of files that are open does not sleep with it.
                    await engine.unless_ended(engine.resume())
                    async with session(current, engine) as channel:
                        await channel.unmount()
                await engine.unless_ended(engine.pause())
                await engine.unless_ended(engine.save(directory.context, memory_is_mapped=False))
            except EncampError:
                directory.context.unlink(missing_ok=True)
                await self._as_before(current, engine)
                raise
            # The record is written while the process still stands: whoever is killed in between
            # leaves a machine that is suspended, and a process that recovery ends.
            moved = self._moves.moved(standing, Move.SUSPEND, "suspended on request")
            await engine.process.kill()
            directory.end_shares()
            return moved

    async def _as_before(self, machine: Machine, engine: Engine) -> None:
        """Suspending was refused: the machine gets its shares back, and stands still if it did."""
        if not engine.process.alive():
            return
        # Whatever goes wrong here, the reason for the refusal is what is to be told.
        with suppress(EncampError):
            await engine.resume()
            if machine.shares:
                async with session(machine, engine) as channel:
                    await _mount_missing(channel, machine)
        if machine.state is State.PAUSED:
            await engine.pause()
        self.journal.write(machine)

    async def restore(self, machine: Machine) -> Machine:
        """Wake a suspended machine up from its context file, on what it was suspended on."""
        with self._moves.moving(machine, Move.RESTORE) as current, ExitStack() as held:
            directory = self.journal.directory(current.id)
            user = process_user(current.owner)
            check_shares(current.shares)
            image = self.image_of(current)
            await check_processor(self.home, self.maker.images, image, user, current)
            hardware = Hardware(
                current.driver,
                current.size,
                current.network,
                len(image.layers),
                current.devices,
                current.words,
                KEPT[current.storage],
            )
            disk = backend_of(image, current.storage, self.home).attach(directory)
            blueprint = Blueprint(
                current.id, directory, hardware, image, user, current.shares, disk, tied=False
            )
            if current.link is not None:
                from encamp.machines.tap import again

                blueprint.tap = held.enter_context(again(current.link))
            if current.shares and hardware.has_window:
                blueprint.window = held.enter_context(window())
            origin = Restore(directory.context)
            with self.home.lock("room"):
                in_file = hardware.kept is Kept.FILE
                check_room(hardware, self.home.root if in_file else None, counting(self.home))
                engine = launch(blueprint, origin)
            try:
                try:
                    await engine.unless_ended(wake(engine, origin))
                    # What may fail comes before the machine runs: there is no way back then.
                    if current.shares and current.guest:
                        serve(blueprint)
                except BaseException:
                    await engine.process.kill()
                    raise
                return await self._go_on(current, engine)
            except EncampError as error:
                if directory.context.exists():
                    error.hint = _still_suspended(current, error.hint)
                raise
            finally:
                engine.process.close()

    async def _go_on(self, machine: Machine, engine: Engine) -> Machine:
        """Let a restored machine run. Its context is kept until its guest has answered, and until
        then it stays suspended in its record: recovery ends its process if we are killed.

        That cannot be done for a machine that writes to a disk, of which its context knows nothing:
        in its record it is paused, and it only becomes suspended again with its disk untouched."""
        directory = self.journal.directory(machine.id)
        before = _last_written(machine, directory)
        standing = machine
        if machine.storage is not Storage.RAM:
            standing = msgspec.structs.replace(
                machine, state=State.PAUSED, reason="it was being restored", changed=time.time()
            )
            self.journal.write(standing)
        try:
            await engine.unless_ended(engine.resume())
            if standing.ssh:
                # Its new process leads nowhere yet.
                port = await engine.unless_ended(engine.forward(SSH_PORT))
                standing = msgspec.structs.replace(standing, ssh=port)
            if standing.shares and standing.guest:
                await while_served(engine.directory, self._greet(standing, engine))
            else:
                await self._greet(standing, engine)
        except BaseException:
            if before is not None and _last_written(machine, directory) == before:
                await engine.process.kill()
            if before is not None and _last_written(machine, directory) == before:
                self.journal.write(machine)
            else:
                directory.context.unlink()
            raise
        if standing.driver is DriverName.KVM:
            standing = msgspec.structs.replace(standing, kvm=kvm_release())
        move = Move.RESTORE if standing.state is State.SUSPENDED else Move.RESUME
        moved = self._moves.moved(standing, move, "restored on request")
        directory.context.unlink()
        return moved

    async def stop(self, machine: Machine, *, job_is_over: bool = False) -> Machine:
        """Let the guest shut itself down; its record stays."""
        self._refuse_under_job(machine, Move.STOP, job_is_over)
        with self._moves.standing(machine, Move.STOP) as (current, engine):
            patience = POWER_OFF_TIMEOUTS[current.whole]
            async with AsyncExitStack() as held:
                if current.whole:
                    await engine.unless_ended(engine.press_power_button())
                else:
                    channel = await held.enter_async_context(session(current, engine))
                    channel.poweroff()
                try:
                    async with asyncio.timeout(patience):
                        await engine.process.ended()
                    reason = "shut down on request"
                except TimeoutError:
                    await engine.process.kill()
                    reason = f"ended: it did not shut down in {patience:.0f} seconds"
            return self._moves.ended(current, Move.STOP, reason)

    async def kill(self, machine: Machine) -> Machine:
        """End the machine at once; its record stays."""
        with self._moves.moving(machine, Move.KILL) as current:
            await self._moves.kill_process(current)
            return self._moves.ended(current, Move.KILL, "killed on request")

    async def remove(self, machine: Machine, *, force: bool = False) -> None:
        with self._moves.moving(machine, None if force else Move.REMOVE) as current:
            await self._moves.kill_process(current)
            self._moves.clear(current)

    async def kill_all(self) -> list[Machine]:
        """End and remove every machine of this home, whatever it is doing."""
        end_vanished(self.home)
        removed = []
        for machine in self.journal.all():
            if machine.host != os.uname().nodename:
                continue
            await self._moves.kill_process(machine)
            self._moves.clear(machine)
            removed.append(machine)
        return removed

    def uses_image(self, digest: str) -> list[Machine]:
        """Machines that need this image to go on, or to wake up."""
        needing = ALIVE | {State.SUSPENDED}
        return [m for m in self.journal.all() if m.image == digest and m.state in needing]

    def image_of(self, machine: Machine) -> Image:
        image = self.maker.images.by_digest(machine.image)
        if image is not None:
            self.maker.images.check(image)
            return image
        raise EncampError(
            Code.CORRUPT,
            f"The image of machine {machine.name} ({machine.image[:12]}) is no longer there.",
            "Without it, the machine can neither be restored nor saved.",
        )

    def _refuse_under_job(self, machine: Machine, move: Move, job_is_over: bool) -> None:
        if job_is_over:
            return
        _refuse_of_node(machine, move)
        if machine.tied:
            raise EncampError(
                Code.WRONG_STATE,
                f"Cannot {move.value} machine {machine.name}: a job is running in it.",
                f"Wait for the job, or end it with 'encamp kill {machine.name}'.",
            )


def _refuse_of_node(machine: Machine, move: Move) -> None:
    """Its batch system would take the node for lost, and begin its jobs elsewhere."""
    if machine.node is not None:
        raise EncampError(
            Code.WRONG_STATE,
            f"Cannot {move.value} machine {machine.name}: it is a node of"
            f" {machine.node.system}, and jobs may run there.",
            f"'encamp batch leave {machine.name}' has it leave when the last has ended.",
        )


def check_guest(machine: Machine) -> None:
    if not machine.guest:
        raise EncampError(
            Code.WRONG_STATE,
            f"Nothing can be run in machine {machine.name} from here: its disk has neither"
            " cloud-init nor qemu-guest-agent to start Encamp's guest program.",
            f"Log in to it: ssh -p {machine.ssh} USER@127.0.0.1",
        )


def _last_written(machine: Machine, directory: MachineDirectory) -> int | None:
    """When the machine last wrote to its disk; None if that cannot be known, as of a volume."""
    if machine.storage is Storage.RAM:
        return 0
    try:
        return directory.disk.stat().st_mtime_ns
    except OSError:
        return None


def _still_suspended(machine: Machine, hint: str) -> str:
    """What to do about a machine that would not wake up, and could be tried again."""
    words = [hint, f"Machine {machine.name} is still suspended."]
    if machine.driver is DriverName.KVM and machine.kvm != kvm_release():
        words.append(
            f"It was made under {machine.kvm}, and this is {kvm_release()}: restore it where the"
            " kernel, its KVM parameters and the processor are as they were."
        )
    return " ".join(word for word in words if word)


async def _mount_missing(channel: Channel, machine: Machine) -> None:
    for mounted in mount_shares(channel, machine):
        try:
            await mounted
        except EncampError as error:
            # One that is mounted already is busy.
            if error.code is not Code.WRONG_STATE:
                raise
