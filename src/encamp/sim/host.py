"""A simulated host: its room, its images and templates, its machines, and what is on its disk.

All of this outlives its agent. Machines, and what is being copied or made, do not outlive the
host itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from encamp.model.machine import Machine, State
from encamp.model.size import Size
from encamp.sim.clock import Clock
from encamp.sim.log import Log
from encamp.sim.said import Claim, Execute, Told
from encamp.sim.site import HostKind, Wanted
from encamp.sim.tally import Tally
from encamp.sim.troubles import Troubles

TO_BEGIN = 0.01
"""Seconds from a command's being written down until its process begins with it."""


class Carried:
    """A command that was written down on the host's disk: it is carried out once."""

    __slots__ = ("begun", "execute", "machine", "phase", "result", "taken", "told_phase")

    def __init__(self, execute: Execute) -> None:
        self.execute = execute
        self.begun = False
        self.phase = ""
        self.told_phase = ""
        """What the manager has heard of that."""
        self.machine = ""
        self.result: Told | None = None
        self.taken = False
        """The manager has written the result down."""


class Promise(msgspec.Struct, frozen=True, gc=False):
    size: Size
    environment: str
    until: float


class World:
    """What all parts of a simulation share."""

    def __init__(self, clock: Clock, log: Log, troubles: Troubles, tally: Tally) -> None:
        self.clock = clock
        self.log = log
        self.troubles = troubles
        self.tally = tally
        self.environments: dict[str, Wanted] = {}
        self.run_times: dict[str, float] = {}
        """How long the command of each request runs."""
        self.installed = False
        """Every environment is installed on its hosts: no machine has to be made."""


class SimulatedHost:
    def __init__(self, name: str, kind: HostKind, groups: tuple[str, ...], world: World) -> None:
        self.name = name
        self.kind = kind
        self.groups = groups
        self.world = world
        self.up = True
        self.boots = 0
        """What was planned before the last crash does not come about."""
        self.claims: dict[str, Promise] = {}
        self.commands: dict[str, Carried] = {}
        """By their ids; those that are over, too: none is carried out again."""
        self.open: dict[str, Carried] = {}
        """Those whose end the manager has not written down yet."""
        self.machines: dict[str, Machine] = {}
        self.images = set(kind.images)
        self.templates: set[str] = set()
        self._copied: dict[str, list[Callable[[str], None]]] = {}
        """Images that are being copied, and who waits for each."""
        self._templated: dict[str, list[Callable[[str], None]]] = {}
        self._made = 0
        self.filled = 0
        """How often a promise or a machine has been added."""
        self.machines_changed: Callable[[], None] = lambda: None
        self.images_changed: Callable[[], None] = lambda: None
        self.command_moved: Callable[[], None] = lambda: None

    # ── room ─────────────────────────────────────────────────────────────────────────────────────

    def live_claims(self) -> dict[str, Promise]:
        """Promises that have not expired. The others are forgotten."""
        now = self.world.clock.now
        expired = [claim for claim, promise in self.claims.items() if promise.until <= now]
        for claim in expired:
            del self.claims[claim]
        return self.claims

    def used(self) -> Size:
        """What machines and promises take up."""
        cpus = memory = disk = 0
        sizes = [machine.size for machine in self.machines.values()]
        sizes += [promise.size for promise in self.live_claims().values()]
        for size in sizes:
            cpus += size.cpus
            memory += size.memory
            disk += size.disk
        return Size(cpus, memory, disk)

    def promise(self, claim: Claim) -> None:
        self.filled += 1
        until = self.world.clock.now + claim.seconds
        self.claims[claim.id] = Promise(claim.size, claim.environment, until)

    def lacks(self, size: Size) -> str:
        """What there is not enough of for one more machine; nothing, if there is room. Processors
        are shared out by the manager."""
        if size.cpus > self.kind.cpus:
            return f"it has {self.kind.cpus} processors"
        used = self.used()
        if used.memory + size.memory > self.kind.memory:
            return "it has not enough memory left"
        if used.disk + size.disk > self.kind.disk:
            return "it has not enough disk left"
        return ""

    # ── commands ─────────────────────────────────────────────────────────────────────────────────

    def take(self, execute: Execute) -> None:
        """Write a command down, and have it carried out: it uses up its claim, which therefore does
        not expire any more."""
        carried = Carried(execute)
        self.commands[execute.id] = self.open[execute.id] = carried
        promise = self.claims[execute.id]
        self.claims[execute.id] = msgspec.structs.replace(promise, until=math.inf)
        self._later(TO_BEGIN, self._begin, carried)

    def _begin(self, carried: Carried) -> None:
        if carried.result is not None:
            return  # It was cancelled meanwhile.
        execute = carried.execute
        self.claims.pop(execute.id, None)
        carried.begun = True
        if self.world.installed:
            self._run(carried)
            return
        self._made += 1
        self.filled += 1
        carried.machine = f"{self.name}-{self._made}"
        now = self.world.clock.now
        self.machines[carried.machine] = Machine(
            id=carried.machine,
            name=carried.machine,
            owner=1000,
            host=self.name,
            environment=execute.environment,
            image=execute.environment,
            size=execute.size,
            state=State.STARTING,
            reason="it is being made",
            created=now,
            changed=now,
        )
        self.machines_changed()
        self._with_image(carried)

    def _with_image(self, carried: Carried) -> None:
        environment = self.world.environments[carried.execute.environment]
        if environment.name in self.images:
            self._with_template(carried)
            return
        self._phase(carried, "image")
        waiting = self._copied.setdefault(environment.name, [])
        waiting.append(lambda wrong: self._go_on(carried, wrong, self._with_template))
        if len(waiting) == 1:
            self.world.tally.images_copied += 1
            self.world.tally.bytes_copied += environment.image
            fails = self.world.troubles.strikes(self.world.troubles.copy)
            seconds = environment.image / self.kind.network
            self._later(seconds, self._image_copied, environment.name, fails)

    def _image_copied(self, name: str, fails: bool) -> None:
        self.world.log.say(self.name, "cannot copy image" if fails else "has image", name)
        if not fails:
            self.images.add(name)
            self.images_changed()
        for wait in self._copied.pop(name):
            wait("the image could not be copied" if fails else "")

    def _with_template(self, carried: Carried) -> None:
        environment = self.world.environments[carried.execute.environment]
        self._phase(carried, "start")
        tally = self.world.tally
        if not environment.templates:
            tally.booted += 1
            self._make(carried, environment.boot)
        elif environment.name in self.templates:
            tally.template_hits += 1
            self._make(carried, environment.clone)
        else:
            waiting = self._templated.setdefault(environment.name, [])
            waiting.append(lambda wrong: self._go_on(carried, wrong, self._clone))
            if len(waiting) == 1:
                tally.templates_made += 1
                fails = self.world.troubles.strikes(self.world.troubles.start)
                self._later(environment.template, self._template_made, environment.name, fails)

    def _template_made(self, name: str, fails: bool) -> None:
        if not fails:
            self.templates.add(name)
        for wait in self._templated.pop(name):
            wait("the template could not be made" if fails else "")

    def _clone(self, carried: Carried) -> None:
        self._make(carried, self.world.environments[carried.execute.environment].clone)

    def _go_on(self, carried: Carried, wrong: str, then: Callable[[Carried], None]) -> None:
        if carried.result is not None:
            return  # It was cancelled meanwhile.
        if wrong:
            self._end(carried, Told(id=carried.execute.id, failure=wrong, blames_environment=True))
        else:
            then(carried)

    def _make(self, carried: Carried, seconds: float) -> None:
        fails = self.world.troubles.strikes(self.world.troubles.start)
        self._later(seconds, self._made_it, carried, fails)

    def _made_it(self, carried: Carried, fails: bool) -> None:
        if carried.result is not None:
            return
        if fails:
            wrong = Told(
                id=carried.execute.id, failure="the guest never answered", blames_environment=True
            )
            self._end(carried, wrong)
            return
        self.world.tally.machines_made += 1
        machine = self.machines[carried.machine]
        self.machines[carried.machine] = msgspec.structs.replace(
            machine,
            state=State.RUNNING,
            reason="its guest has answered",
            changed=self.world.clock.now,
        )
        self.machines_changed()
        self._run(carried)

    def _run(self, carried: Carried) -> None:
        execute = carried.execute
        self._phase(carried, "running")
        self.world.tally.began(execute.request, execute.id, self.world.clock.now)
        seconds = self.world.run_times[execute.request]
        dies = self.world.troubles.strikes(self.world.troubles.killed)
        if execute.standing:
            self._stand(carried, seconds, dies)
            return
        if dies:
            seconds *= self.world.troubles.chance.random()
        self._later(seconds, self._ran, carried, dies)

    def _stand(self, carried: Carried, seconds: float, dies: bool) -> None:
        """The machine stays until it is removed, or dies."""
        self.world.log.say(self.name, "stands", carried.machine, carried.execute.id)
        carried.result = Told(
            id=carried.execute.id,
            over=True,
            phase=carried.phase,
            machine=carried.machine,
            standing=True,
        )
        self.command_moved()
        if dies:
            self._later(seconds * self.world.troubles.chance.random(), self._gone, carried.machine)

    def remove(self, machine: str) -> None:
        if machine in self.machines:
            self.world.log.say(self.name, "removes", machine)
            environment = self.world.environments[self.machines[machine].environment]
            self._later(environment.end, self._gone, machine)

    def _ran(self, carried: Carried, died: bool) -> None:
        if carried.result is not None:
            return
        execute = carried.execute
        if died:
            self._end(carried, Told(id=execute.id, failure="the machine died under its command"))
        else:
            self.world.tally.finished(execute.request, execute.id, self.world.clock.now)
            self._end(carried, Told(id=execute.id, exit_code=0))

    def cancel(self, command_id: str) -> None:
        """Stop a command; one that has not come yet will not be begun."""
        carried = self.commands.get(command_id)
        if carried is None:
            execute = Execute(command_id, "", 0, "", Size(0, 0))
            carried = self.commands[command_id] = self.open[command_id] = Carried(execute)
        if carried.result is None:
            self._end(carried, Told(id=command_id, failure="it was cancelled"))
        elif carried.taken:
            # Whoever asks wants to hear it again.
            carried.taken = False
            self.open[command_id] = carried
            self.command_moved()

    def _end(self, carried: Carried, result: Told) -> None:
        """The result is on the disk; the machine goes."""
        self.world.log.say(
            self.name, "ends", carried.execute.id, result.failure or f"exit code {result.exit_code}"
        )
        self.claims.pop(carried.execute.id, None)
        carried.result = msgspec.structs.replace(
            result, over=True, phase=carried.phase, machine=carried.machine
        )
        if carried.machine in self.machines:
            seconds = self.world.environments[carried.execute.environment].end
            self._later(seconds, self._gone, carried.machine)
        self.command_moved()

    def _gone(self, machine: str) -> None:
        if self.machines.pop(machine, None) is not None:
            self.machines_changed()

    def _phase(self, carried: Carried, phase: str) -> None:
        carried.phase = phase
        self.world.log.say(self.name, phase, carried.execute.id)
        self.command_moved()

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────

    def crash(self) -> None:
        """The power is gone: what is on the disk stays."""
        self.up = False
        self.boots += 1
        self.machines.clear()
        self._copied.clear()
        self._templated.clear()

    def boot(self) -> None:
        """What had begun is lost; what had only been written down begins."""
        self.up = True
        for carried in list(self.open.values()):
            if carried.result is None and carried.begun:
                lost = Told(id=carried.execute.id, failure="its host has crashed", lost=True)
                self._end(carried, lost)
            elif carried.result is None:
                self._begin(carried)

    def _later(self, seconds: float, do: Callable[..., None], *arguments: object) -> None:
        self.world.clock.after(seconds, self._unless_crashed, self.boots, do, arguments)

    def _unless_crashed(
        self, boots: int, do: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        if boots == self.boots:
            do(*arguments)
