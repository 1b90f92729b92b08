"""Commands that a simulated host carries out: each makes a machine, or takes one that is idle, and
runs something in it; each is carried out once, whatever happens to the agent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from encamp.model.machine import Machine, State
from encamp.model.size import Size
from encamp.sim.said import Execute, Told

if TYPE_CHECKING:
    from encamp.sim.host import SimulatedHost

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


class Carrying:
    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._world = host.world
        self._made = 0

    def take(self, execute: Execute) -> None:
        """Write a command down, and have it carried out: it uses up its claim, which therefore does
        not expire any more."""
        host = self._host
        carried = Carried(execute)
        host.commands[execute.id] = host.open[execute.id] = carried
        promise = host.claims[execute.id]
        host.claims[execute.id] = msgspec.structs.replace(promise, until=math.inf)
        host.later(TO_BEGIN, self._begin, carried)

    def _begin(self, carried: Carried) -> None:
        if carried.result is not None:
            return  # It was cancelled meanwhile.
        host, execute = self._host, carried.execute
        host.claims.pop(execute.id, None)
        carried.begun = True
        if self._world.installed:
            self._run(carried)
            return
        if execute.reuse and not execute.standing:
            carried.machine = host.idle.take(execute)
            if carried.machine:
                self._phase(carried, "start")
                self._run(carried)
                return
        self._made += 1
        host.filled += 1
        carried.machine = f"{host.name}-{self._made}"
        now = self._world.clock.now
        host.machines[carried.machine] = Machine(
            id=carried.machine,
            name=carried.machine,
            owner=execute.owner,
            host=host.name,
            environment=execute.environment,
            image=execute.environment,
            size=execute.size,
            state=State.STARTING,
            reason="it is being made",
            created=now,
            changed=now,
        )
        host.machines_changed()
        self._with_image(carried)

    # ── a machine is made ────────────────────────────────────────────────────────────────────────

    def _with_image(self, carried: Carried) -> None:
        environment = self._world.environments[carried.execute.environment]
        if environment.name in self._host.stock.images:
            self._with_template(carried)
            return
        self._phase(carried, "image")
        self._host.stock.copy(
            environment, lambda wrong: self._go_on(carried, wrong, self._with_template)
        )

    def _with_template(self, carried: Carried) -> None:
        environment = self._world.environments[carried.execute.environment]
        self._phase(carried, "start")
        tally = self._world.tally
        if not environment.templates:
            tally.booted += 1
            self._make(carried, environment.boot)
        elif environment.name in self._host.stock.templates:
            tally.template_hits += 1
            self._make(carried, environment.clone)
        else:
            self._host.stock.make_template(
                environment, lambda wrong: self._go_on(carried, wrong, self._clone)
            )

    def _clone(self, carried: Carried) -> None:
        self._make(carried, self._world.environments[carried.execute.environment].clone)

    def _go_on(self, carried: Carried, wrong: str, then: Callable[[Carried], None]) -> None:
        if carried.result is not None:
            return  # It was cancelled meanwhile.
        if wrong:
            self._end(carried, Told(id=carried.execute.id, failure=wrong, blames_environment=True))
        else:
            then(carried)

    def _make(self, carried: Carried, seconds: float) -> None:
        fails = self._world.troubles.strikes(self._world.troubles.start)
        self._host.later(seconds, self._made_it, carried, fails)

    def _made_it(self, carried: Carried, fails: bool) -> None:
        if carried.result is not None:
            return
        if fails:
            wrong = Told(
                id=carried.execute.id, failure="the guest never answered", blames_environment=True
            )
            self._end(carried, wrong)
            return
        self._world.tally.machines_made += 1
        host = self._host
        host.machines[carried.machine] = msgspec.structs.replace(
            host.machines[carried.machine],
            state=State.RUNNING,
            reason="its guest has answered",
            changed=self._world.clock.now,
        )
        host.machines_changed()
        self._run(carried)

    # ── it is used ───────────────────────────────────────────────────────────────────────────────

    def _run(self, carried: Carried) -> None:
        execute = carried.execute
        self._phase(carried, "running")
        if execute.standing and execute.reuse:
            self._stand_ready(carried)
            return
        self._world.tally.began(execute.request, execute.id, self._world.clock.now)
        seconds = self._world.run_times[execute.request]
        dies = self._world.troubles.strikes(self._world.troubles.killed)
        if execute.standing:
            self._stand(carried, seconds, dies)
            return
        if dies:
            seconds *= self._world.troubles.chance.random()
        self._host.later(seconds, self._ran, carried, dies)

    def _stand(self, carried: Carried, seconds: float, dies: bool) -> None:
        """The machine stays until it is removed, or dies."""
        self._world.log.say(self._host.name, "stands", carried.machine, carried.execute.id)
        self._over(carried, Told(id=carried.execute.id, standing=True))
        if dies:
            seconds *= self._world.troubles.chance.random()
            self._host.later(seconds, self._host.machine_gone, carried.machine)

    def _stand_ready(self, carried: Carried) -> None:
        """The machine is nobody's, until a job takes it."""
        self._world.tally.machines_ahead += 1
        self._host.idle.leave(carried.machine)
        self._over(carried, Told(id=carried.execute.id))

    def _ran(self, carried: Carried, died: bool) -> None:
        if carried.result is not None:
            return
        execute = carried.execute
        if died:
            self._end(carried, Told(id=execute.id, failure="the machine died under its command"))
        else:
            self._world.tally.finished(execute.request, execute.id, self._world.clock.now)
            self._end(carried, Told(id=execute.id, exit_code=0), leave=execute.reuse)

    def cancel(self, command_id: str) -> None:
        """Stop a command; one that has not come yet will not be begun."""
        host = self._host
        carried = host.commands.get(command_id)
        if carried is None:
            execute = Execute(command_id, "", 0, "", Size(0, 0))
            carried = host.commands[command_id] = host.open[command_id] = Carried(execute)
        if carried.result is None:
            self._end(carried, Told(id=command_id, failure="it was cancelled"))
        elif carried.taken:
            # Whoever asks wants to hear it again.
            carried.taken = False
            host.open[command_id] = carried
            host.command_moved()

    def _end(self, carried: Carried, result: Told, *, leave: bool = False) -> None:
        """The result is on the disk; the machine goes, or is left to the next job."""
        host = self._host
        self._world.log.say(
            host.name, "ends", carried.execute.id, result.failure or f"exit code {result.exit_code}"
        )
        host.claims.pop(carried.execute.id, None)
        if carried.machine in host.machines:
            if leave:
                host.idle.leave(carried.machine)
            else:
                host.end_machine(carried.machine)
        self._over(carried, result)

    def _over(self, carried: Carried, result: Told) -> None:
        carried.result = msgspec.structs.replace(
            result, over=True, phase=carried.phase, machine=carried.machine
        )
        self._host.command_moved()

    def _phase(self, carried: Carried, phase: str) -> None:
        carried.phase = phase
        self._world.log.say(self._host.name, phase, carried.execute.id)
        self._host.command_moved()

    def boot(self) -> None:
        """The host is up again. What had begun is lost; what had only been written down begins."""
        for carried in list(self._host.open.values()):
            if carried.result is None and carried.begun:
                lost = Told(id=carried.execute.id, failure="its host has crashed", lost=True)
                self._end(carried, lost)
            elif carried.result is None:
                self._begin(carried)
