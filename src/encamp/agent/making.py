"""Making a machine: from a plan to a guest that answers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from encamp.agent.deciding import check_request, decide, find_image
from encamp.agent.journal import ClientLock, Journal, gone
from encamp.agent.live import Live
from encamp.agent.phases import Phases
from encamp.agent.plan import Plan
from encamp.agent.promised import counting
from encamp.agent.session import ANSWER_TIMEOUT, Port, hello, set_up
from encamp.guest.channel import Channel
from encamp.home import SYSTEM_HOME, Home
from encamp.images.store import ImageStore
from encamp.machines import accelerator, usermode
from encamp.machines.drivers import launch, wake
from encamp.machines.engine import Blueprint, Clone, Engine, Origin
from encamp.machines.freeze import GUEST_PROGRAM, boot_origin, make_template
from encamp.machines.hardware import Kept
from encamp.machines.room import check_room, full_disk_named
from encamp.machines.share_server import ServerEndedError, serve, window
from encamp.machines.storage import TemplateDiskGoneError, backend_of, give
from encamp.machines.template import CONSOLE, LIMIT, Template, TemplateStore, template_key
from encamp.model.driver import DRIVERS, DriverName, Isolation
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import MachineRequest
from encamp.model.machine import ALIVE, After, Machine, Phase
from encamp.progress import Note, Progress

First = Callable[[Channel, Machine], None]
"""Called with a new machine and its channel before its guest has answered: what is said then is
already waiting for the guest when it wakes up."""


class WouldNotWakeError(Exception):
    """The machine's process ended before anything was said to its guest."""

    def __init__(self, error: EncampError) -> None:
        super().__init__(str(error))
        self.error = error


class Maker:
    def __init__(self, home: Home, shared: Path | None = SYSTEM_HOME) -> None:
        """`shared`: the home whose images serve this one, too."""
        self.home = home
        self._shared = shared
        self.journal = Journal(home)
        self.images = ImageStore(home, shared)
        self.templates = TemplateStore(home, shared)
        self.shielded = False
        """Are its machines among the processes of a batch system's job?"""
        self.on_launch: Callable[[int], None] = lambda pid: None
        """Called with a machine's process before it does anything."""

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
        after: After | None = None,
    ) -> Live:
        """A machine that answers. `tied`: it is cleared away if this process dies before it says
        otherwise. `outlives`: its process does not end with this one. `after`: one with which that
        cannot be done is not even begun."""
        wish = check_request(self.home, request, environment, after=after)
        environment = wish.environment
        # What is not ready when its guest answers is not sent any work then.
        late = environment.context.handed or environment.ready.tested
        with ExitStack() as held:
            with phases.time(Phase.CHECK, "checked") as how:
                image = await find_image(self.images, environment, phases, how, progress)
                # Nobody removes it to make room before the machine that needs it is written down.
                held.enter_context(self.images.using(image))
                self.images.check(image)
            with phases.time(Phase.START, "cloned") as how:
                tap = None
                if (request.network or environment.network) == "bridge":
                    from encamp.agent.linking import take_place

                    # Its own once its process has it; until then ours.
                    tap = held.enter_context(take_place(self.home))
                plan, machine = await decide(
                    self.home,
                    self.images,
                    wish,
                    image,
                    progress,
                    tied=tied,
                    command=command,
                    tap=tap,
                )
                environment = plan.environment
                late = late or plan.bundle is not None
                early = None if late else first
                phases.on_machine(machine)
                live = await self._clone_or_boot(plan, machine, not outlives, progress, early)
                booted = live.machine.template is None
                how.word = "booted" if booted else "cloned"
                how.word += f", {live.machine.runs_on}"
        try:
            with phases.time(Phase.ACTIVATION, "guest answered") as activation:
                began = time.monotonic()
                reason = "its guest answered"
                if image.disk is None:
                    await self._answer(plan, live, booted=booted)
                else:
                    from encamp.agent.whole import answered

                    for_command = first is not None or bool(command) or late
                    reason = activation.word = await answered(
                        live, environment, for_command=for_command, tell=progress.update
                    )
                if late:
                    # There is one limit for all of it.
                    left = max(0.0, environment.ready.timeout - (time.monotonic() - began))
                    activation.word = await self._make_ready(plan, live, left, progress)
                    reason = f"{reason}: {activation.word}"
                await live.activate(reason)
            if late and first is not None:
                first(live.channel, live.machine)
        except EncampError as error:
            if error.code is Code.NOT_READY and not tied:
                await live.fail(error.sentence)
                error.hint = f"{error.hint} 'encamp console {live.machine.name}' shows its console."
                raise
            ended = await live.withdraw()
            if ended is not None:
                raise ended from error
            await self._suspect_template(live.machine.template, error)
            raise
        except BaseException:
            await live.withdraw()
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

    async def _clone_or_boot(
        self,
        plan: Plan,
        machine: Machine,
        die_with_us: bool,
        progress: Progress,
        first: First | None,
    ) -> Live:
        for _ in range(2):
            try:
                if (
                    plan.environment.templates
                    and DRIVERS[plan.hardware.driver].clones
                    and not plan.request.boot
                    and plan.image.disk is None
                    and (live := await self._clone(plan, machine, die_with_us, progress, first))
                ):
                    return live
                return await self._boot(plan, machine, die_with_us, first)
            except EncampError as error:
                if plan.hardware.driver is not DriverName.KVM or not accelerator.refused(error):
                    raise
                # It worked before: the module may have been reloaded, or another hypervisor has
                # the processor. Nothing was asked of the guest, so trying again is safe.
                reason = f"KVM was refused: {error.detail or error.sentence}".splitlines()[0]
                accelerator.distrust(self.home, reason)
                hint = "'encamp accelerator --again' tries KVM again"
                progress.update(Note(f"This machine is emulated, and slower: {reason} ({hint})."))
                plan.hardware = msgspec.structs.replace(plan.hardware, driver=DriverName.EMULATION)
                machine = msgspec.structs.replace(
                    machine,
                    driver=DriverName.EMULATION,
                    isolation=Isolation.KERNEL,
                    processor="",
                    kvm="",
                )
        raise AssertionError("emulation is refused by nobody")

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
                if accelerator.refused(failure.error):
                    raise failure.error from None
                # Nothing was asked of the guest, so trying again is safe.
                if self.templates.is_open_to(template, plan.user) and await asyncio.to_thread(
                    self.templates.whole, template
                ):
                    # QEMU's words come before the console's.
                    said = (failure.error.detail or failure.error.sentence).splitlines()[0]
                    progress.update(f"cloning failed, booting instead: {said}")
                    return None
                progress.update("the template is damaged or another's, making it again")
                self.templates.remove(template.key)
            except FileNotFoundError as error:
                progress.update("the template was just removed, making it again")
                if isinstance(error, TemplateDiskGoneError):
                    self.templates.remove(template.key)
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
                    # Before a guest boots: a mistake in the settings is told at once.
                    limit = self.images.settings.template_limit
                    check_room(plan.hardware, self._disk_directory(plan), counting(self.home))
                    template = await make_template(
                        self.home,
                        key=key,
                        environment=plan.environment,
                        image=plan.image,
                        hardware=plan.hardware,
                        user=plan.user,
                        progress=progress,
                        shared=self._shared,
                    )
                    self._make_room(template, limit)
        return template

    def _make_room(self, newest: Template, limit: int | None) -> None:
        """Remove the templates that are used least, if there are too many now."""
        alive = [machine for machine in self.journal.all() if machine.state in ALIVE]
        needed = {newest.key, *(machine.template or "" for machine in alive)}
        self.templates.make_room(LIMIT if limit is None else limit, needed)

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
            with full_disk_named(self.home.root, f"machine {machine.name} was made"):
                directory.make(plan.user, len(machine.shares))
                source = self._prepare(plan, machine, origin)
                disk = backend_of(plan.image, plan.storage, self.home).attach(directory)
            blueprint = Blueprint(
                machine.id,
                directory,
                plan.hardware,
                plan.image,
                plan.user,
                plan.shares,
                disk,
                tied=die_with_us,
                shielded=self.shielded,
                isolation=plan.isolation,
                tap=plan.tap,
            )
            try:
                with ExitStack() as held:
                    if plan.shares and plan.hardware.has_window:
                        blueprint.window = held.enter_context(window())
                    with self.home.lock("room"):
                        check_room(plan.hardware, self._disk_directory(plan), counting(self.home))
                        engine = launch(blueprint, source)
                    self.on_launch(engine.process.pid)
                    await engine.unless_ended(wake(engine, source))
                    if origin is None and plan.hardware.driver is DriverName.KVM:
                        # One that boots is asked for nothing above. If KVM is refused to it, that
                        # is to show before its guest is sent any work.
                        await engine.unless_ended(engine.check_accepted())
                    # Not before: a connection that QEMU accepts while it loads the machine's state
                    # makes it raise an interrupt that is lost in the loading, and the guest never
                    # hears of us.
                    if plan.shares:
                        serve(blueprint)
                return await self._speak(plan, machine, engine, client, first)
            except ServerEndedError:
                raise  # Neither the machine nor its template is to blame.
            except EncampError as error:
                if error.code is not Code.MACHINE_LOST:
                    raise
                raise WouldNotWakeError(error) from error
        except BaseException as error:
            removed = isinstance(error, FileNotFoundError) and not directory.path.exists()
            if engine is not None:
                await engine.process.kill()
                engine.process.close()
            ended = await self.journal.withdraw(machine)
            client.release()
            if removed:
                raise gone(machine) from error
            if ended is not None and isinstance(error, Exception):
                raise ended from error
            raise

    def _prepare(self, plan: Plan, machine: Machine, origin: Clone | None) -> Origin:
        """Put the machine's own files into its directory."""
        directory = self.journal.directory(machine.id)
        storage = backend_of(plan.image, plan.storage, self.home)
        if origin is None:
            storage.make(directory, plan.hardware.size.disk, plan.user)
            if plan.image.disk is not None:
                from encamp.agent.whole import write_seed

                return write_seed(plan, machine, directory)
            arguments = plan.environment.kernel_arguments
            if plan.hardware.driver is DriverName.USERMODE:
                return usermode.boot_origin(
                    self.home, GUEST_PROGRAM, plan.hardware, arguments, directory.path
                )
            return boot_origin(self.home, plan.image, plan.hardware, arguments, directory.path)
        assert machine.template is not None
        made = self.templates.directory(machine.template)
        # What the guest printed when it booted is part of what this machine's guest printed.
        shutil.copyfile(made / CONSOLE, directory.console)
        give(directory.console, plan.user)
        storage.clone(made, directory, plan.user)
        return origin

    def _disk_directory(self, plan: Plan) -> Path | None:
        """Where the file of the machine's disk will be, if it is in a file."""
        return self.home.root if plan.hardware.kept is Kept.FILE else None

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

    async def _answer(self, plan: Plan, live: Live, *, booted: bool) -> None:
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

    async def _make_ready(self, plan: Plan, live: Live, patience: float, progress: Progress) -> str:
        from encamp.agent.activation import make_ready

        owner = plan.request.owner
        work = make_ready(live, plan.environment, owner, patience, progress, plan.bundle)
        return await live.engine.unless_ended(work)
