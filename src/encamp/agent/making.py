"""Making a machine: from a plan to a guest that answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from encamp import programs
from encamp.agent.journal import ClientLock, Journal, gone
from encamp.agent.live import Live
from encamp.agent.phases import How, Phases
from encamp.agent.plan import Plan, check_name, check_shares, new_record, wanted_shares, wanted_size
from encamp.agent.session import ANSWER_TIMEOUT, Port, hello, set_up
from encamp.guest.channel import Channel
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.machines import accelerator
from encamp.machines.account import process_user
from encamp.machines.freeze import GUEST_PROGRAM, boot_origin, make_disk, make_template
from encamp.machines.hardware import Disk, Hardware
from encamp.machines.qemu import Blueprint, Clone, Engine, Origin, launch, wake
from encamp.machines.room import check_room
from encamp.machines.template import (
    CONSOLE,
    DISK_BASE,
    DISK_OVERLAY,
    Template,
    TemplateStore,
    template_key,
)
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.job import MachineRequest
from encamp.model.machine import Machine, Move, Phase
from encamp.progress import Progress

First = Callable[[Channel, Machine], None]
"""Called with a new machine and its channel before its guest has answered: what is said then is
already waiting for the guest when it wakes up."""


T = TypeVar("T")


class WouldNotWakeError(Exception):
    """The machine's process ended before anything was said to its guest."""

    def __init__(self, error: EncampError) -> None:
        super().__init__(str(error))
        self.error = error


class Maker:
    def __init__(self, home: Home) -> None:
        self.home = home
        self.journal = Journal(home)
        self.images = ImageStore(home)
        self.templates = TemplateStore(home)

    async def make(
        self,
        request: MachineRequest,
        environment: Environment,
        *,
        tied: bool,
        outlives: bool,
        phases: Phases,
        progress: Progress,
        command: tuple[str, ...] = (),
        first: First | None = None,
    ) -> Live:
        """A machine that answers. `tied`: it is cleared away if this process dies before it says
        otherwise. `outlives`: its process does not end with this one."""
        user = process_user(request.owner.uid)
        size = wanted_size(request, environment)
        check_name(request.name)
        shares = wanted_shares(request, environment)
        slots = check_shares(shares)
        with phases.time(Phase.CHECK, "checked") as how:
            image = await self._image(environment, how, progress)
            self.images.check(image)
        with phases.time(Phase.START, "cloned") as how:
            verdict = await accelerator.decide(self.home, image, user, progress)
            hardware = Hardware(
                verdict.accelerator,
                size,
                slots,
                request.network or environment.network,
                len(image.layers),
                environment.devices,
                environment.qemu,
            )
            plan = Plan(request, environment, image, hardware, user, shares)
            machine = new_record(plan, tied=tied, command=command)
            if environment.templates and not request.boot:
                live = await self._clone(plan, machine, not outlives, progress, first)
            else:
                live = None
            if live is None:
                how.word = "booted"
                live = await self._boot(plan, machine, not outlives, first)
        try:
            with phases.time(Phase.ACTIVATION, "guest answered"):
                await self._activate(plan, live, booted=how.word == "booted")
        except EncampError as error:
            await live.destroy()
            await self._suspect_template(live.machine.template, error)
            raise
        except BaseException:
            await live.destroy()
            raise
        return live

    async def _suspect_template(self, key: str | None, error: EncampError) -> None:
        """A clone did not answer. Its first command may have begun, so it is not tried again; but
        a template that turns out to be damaged must not spoil the next one."""
        template = None if key is None else self.templates.find(key)
        if template is None or error.code not in (Code.NO_ANSWER, Code.MACHINE_LOST):
            return
        if not await asyncio.to_thread(self.templates.whole, template):
            self.templates.remove(template.key)
            error.hint = "Its template was damaged and has been removed: try again."
            error.transient = True

    async def _image(self, environment: Environment, how: How, progress: Progress) -> Image:
        """The environment's image, built or fetched if it is not here yet."""
        wanted = environment.image
        if isinstance(wanted, str):
            found = self.images.resolve(wanted)
            if found is not None:
                return found
            how.word = "fetched"
            return await self._in_thread(self.images.fetch, wanted, progress)
        found = self.images.find(wanted.name, wanted.digest())
        if found is not None:
            return found
        how.word = "built"
        return await self._in_thread(self.images.ensure, wanted, progress)

    async def _in_thread(
        self, get: Callable[[T, Progress], Image], wanted: T, progress: Progress
    ) -> Image:
        try:
            return await asyncio.to_thread(get, wanted, progress)
        except asyncio.CancelledError:
            # The thread would go on: what it runs must be ended for it.
            programs.stop_all()
            raise

    async def _clone(
        self,
        plan: Plan,
        machine: Machine,
        die_with_us: bool,
        progress: Progress,
        first: First | None,
    ) -> Live | None:
        """Clone from the template; None if that cannot be done and the machine must boot."""
        for _ in range(2):
            template = await self.template(plan, progress)
            record = msgspec.structs.replace(machine, template=template.key)
            origin = self.templates.origin(template)
            try:
                return await self._bring_up(plan, record, origin, die_with_us, first)
            except WouldNotWakeError as failure:
                # Nothing was asked of the guest, so trying again is safe.
                if await asyncio.to_thread(self.templates.whole, template):
                    last = (failure.error.detail or failure.error.sentence).splitlines()[-1]
                    progress.update(f"cloning failed, booting instead: {last}")
                    return None
                progress.update("the template is damaged, making it again")
                self.templates.remove(template.key)
            except FileNotFoundError:
                progress.update("the template was just removed, making it again")
        return None

    async def _boot(
        self, plan: Plan, machine: Machine, die_with_us: bool, first: First | None
    ) -> Live:
        try:
            return await self._bring_up(plan, machine, None, die_with_us, first)
        except WouldNotWakeError as failure:
            raise failure.error from None

    async def template(self, plan: Plan, progress: Progress) -> Template:
        """The plan's template, made if need be; by one process if many ask."""
        arguments = plan.environment.kernel_arguments
        key = template_key(plan.image, plan.hardware, arguments, GUEST_PROGRAM)
        template = self.templates.find(key)
        if template is None:
            progress.update(f"waiting for the template of '{plan.environment.name}'")
            async with self.home.wait_for(f"template-{key}"):
                template = self.templates.find(key)
                if template is None:
                    check_room(plan.hardware.size, self.home.root)
                    template = await make_template(
                        self.home,
                        key=key,
                        environment=plan.environment,
                        image=plan.image,
                        hardware=plan.hardware,
                        user=plan.user,
                        progress=progress,
                    )
        return template

    async def _bring_up(
        self,
        plan: Plan,
        machine: Machine,
        origin: Clone | None,
        die_with_us: bool,
        first: First | None,
    ) -> Live:
        """From record to running processor: journal, launch, speak, wake."""
        client = self.journal.add(machine, named=plan.request.name is not None)
        directory = self.journal.directory(machine.id)
        engine: Engine | None = None
        try:
            directory.make(plan.user, len(machine.shares))
            source = self._prepare(plan, machine, origin)
            blueprint = Blueprint(
                machine.id,
                directory,
                plan.hardware,
                plan.image,
                plan.user,
                plan.shares,
                tied=die_with_us,
            )
            try:
                with self.home.lock("room"):
                    check_room(plan.hardware.size, self.home.root)
                    engine = launch(blueprint, source)
                await engine.unless_ended(wake(engine, source))
                # Not before: a connection that QEMU accepts while it loads the machine's state
                # makes it raise an interrupt that is lost in the loading, and the guest never
                # hears of us.
                return await self._speak(plan, machine, engine, client, first)
            except EncampError as error:
                if error.code is not Code.MACHINE_LOST:
                    raise
                raise WouldNotWakeError(error) from error
        except BaseException as error:
            removed = isinstance(error, FileNotFoundError) and not directory.path.exists()
            if engine is not None:
                await engine.process.kill()
                engine.process.close()
            directory.remove()
            client.release()
            if removed:
                raise gone(machine) from error
            raise

    def _prepare(self, plan: Plan, machine: Machine, origin: Clone | None) -> Origin:
        """Put the machine's own files into its directory."""
        directory = self.journal.directory(machine.id)
        if origin is None:
            if plan.hardware.size.disk:
                make_disk(directory.disk, plan.hardware.size.disk)
                if plan.user is not None:
                    os.chown(directory.disk, *plan.user)
            arguments = plan.environment.kernel_arguments
            return boot_origin(plan.image, plan.hardware, arguments, directory.path)
        assert machine.template is not None
        made = self.templates.directory(machine.template)
        own = [directory.console]
        # What the guest printed when it booted is part of what this machine's guest printed.
        shutil.copyfile(made / CONSOLE, directory.console)
        if plan.hardware.size.disk:
            # A link keeps the template's disk for this machine even when the template is gone.
            os.link(made / DISK_BASE, directory.run / Disk.BASE)
            shutil.copyfile(made / DISK_OVERLAY, directory.disk)
            own.append(directory.disk)
        for path in own:
            path.chmod(0o600)
            if plan.user is not None:
                os.chown(path, *plan.user)
        return origin

    async def _speak(
        self,
        plan: Plan,
        machine: Machine,
        engine: Engine,
        client: ClientLock,
        first: First | None,
    ) -> Live:
        """Say all there is to say to the guest before it has answered anything."""
        port = Port.take(engine.directory)
        channel: Channel | None = None
        try:
            channel = await Channel.open(port.connect(engine.directory), hello(machine), fresh=True)
            settings = set_up(channel, plan.request.owner, machine)
            if first is not None:
                first(channel, machine)
        except BaseException:
            if channel is not None:
                await channel.close()
            port.release()
            raise
        return Live(self.journal, machine, engine, channel, port, client, settings)

    async def _activate(self, plan: Plan, live: Live, *, booted: bool) -> None:
        patience = plan.environment.ready.timeout if booted else ANSWER_TIMEOUT
        try:
            async with asyncio.timeout(patience):
                await live.engine.unless_ended(live.ready())
        except TimeoutError:
            raise live.engine.explain(
                f"The guest of environment '{plan.environment.name}' did not answer within"
                f" {patience:.0f} seconds.",
                Code.NO_ANSWER,
            ) from None
        live.record(live.machine.moved(Move.ACTIVATE, "its guest answered", time.time()))
