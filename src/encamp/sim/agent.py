"""A simulated agent: one run of the daemon on a host, until it ends or its host does.

It behaves as the real one does: it promises room once for each claim, takes each command once, and
tells the manager one thing after the other until it has heard that it was taken.
"""

from __future__ import annotations

import msgspec

from encamp.model.property import Reading, Value
from encamp.model.request import Cause
from encamp.sim.bus import Bus, DeafError
from encamp.sim.hearing import Hearing
from encamp.sim.host import SimulatedHost
from encamp.sim.properties import MOVING
from encamp.sim.said import (
    Answer,
    Cancel,
    Claim,
    Execute,
    Hello,
    News,
    Release,
    Remove,
    Report,
    SayHello,
    Told,
)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0
"""Seconds between two tries to reach a manager that does not answer."""
PATIENCE = 30.0
"""Seconds that a manager has for an answer."""

TAKEN = Answer()


class SimulatedAgent:
    def __init__(self, host: SimulatedHost, instance: str, bus: Bus, manager: Hearing) -> None:
        self.host = host
        self.instance = instance
        self._bus = bus
        self._manager = manager
        self._clock = host.world.clock
        self.running = True
        self._known = False
        """Does the manager know us?"""
        self._busy = False
        """Something is being told, or a pause is made."""
        self._pause = FIRST_PAUSE
        self._machines = self._images = False
        """Have they changed since they were told?"""
        host.machines_changed = self._machines_changed
        host.stock.changed = self._images_changed
        host.command_moved = self.wake
        host.idle.tended = True
        host.idle.clear()
        self._clock.after(0.0, self.wake)

    def stop(self) -> None:
        """Machines and commands go on."""
        self.running = False
        host = self.host
        host.machines_changed = host.stock.changed = host.command_moved = lambda: None
        host.idle.tended = False

    # ── what the manager asks for ────────────────────────────────────────────────────────────────

    def take(self, message: msgspec.Struct) -> Answer:
        if not self.running:
            raise DeafError
        host = self.host
        match message:
            case Claim():
                return self._claim(message)
            case Execute():
                return self._execute(message)
            case Cancel():
                host.carrying.cancel(message.id)
            case Release():
                if message.id not in host.commands:
                    host.claims.pop(message.id, None)
            case Remove():
                gone = host.remove(message.machine, only_idle=message.only_idle)
                if message.only_idle and not gone:
                    return Answer("it is not idle", Cause.NO_ROOM)
            case SayHello():
                self._known = False
                self.wake()
        return TAKEN

    def _claim(self, claim: Claim) -> Answer:
        host, world = self.host, self.host.world
        world.tally.claims += 1
        if claim.id in host.commands:
            return TAKEN  # It was used up already.
        lacks = "" if claim.id in host.live_claims() else host.find_room(claim)
        if not lacks and world.troubles.strikes(world.troubles.refused):
            lacks = "it does not want to"
        if lacks:
            world.tally.refusals += 1
            world.log.say(host.name, "refuses", claim.id, lacks)
            return Answer(f"{host.name} refuses: {lacks}", Cause.NO_ROOM)
        host.promise(claim)
        world.log.say(host.name, "promises", claim.id)
        return TAKEN

    def _execute(self, execute: Execute) -> Answer:
        host = self.host
        if execute.id in host.commands:
            return TAKEN
        if execute.id not in host.live_claims():
            host.world.log.say(host.name, "refuses", execute.id, "its claim has expired")
            return Answer("its claim has expired", Cause.NO_ROOM)
        host.world.log.say(host.name, "takes", execute.id)
        host.carrying.take(execute)
        return TAKEN

    # ── telling the manager ──────────────────────────────────────────────────────────────────────

    def _machines_changed(self) -> None:
        self._machines = True
        self.wake()

    def _images_changed(self) -> None:
        self._images = True
        self.wake()

    def wake(self) -> None:
        """There is something to tell."""
        if not self._busy and self.running:
            self._tell()

    def _tell(self) -> None:
        self._busy = True
        host = self.host
        if not self._known:
            self._known = True
            self._machines = self._images = False
            for carried in host.open.values():
                carried.told_phase = ""
            self._ask(self.hello(), None)
        elif self._machines or self._images:
            report = Report(
                instance=self.instance,
                readings={
                    **(self._image_readings() if self._images else {}),
                    **(self._moving_readings() if self._machines else {}),
                },
                machines=tuple(host.machines.values()) if self._machines else None,
            )
            self._machines = self._images = False
            self._ask(report, None)
        elif news := self._news():
            self._ask(News(instance=self.instance, commands=news), news)
        else:
            self._busy = False

    def _news(self) -> tuple[Told, ...]:
        told = []
        for command_id, carried in self.host.open.items():
            if carried.result is not None:
                told.append(carried.result)
            elif carried.phase != carried.told_phase:
                told.append(Told(id=command_id, phase=carried.phase, machine=carried.machine))
        return tuple(told)

    def _ask(self, message: msgspec.Struct, told: tuple[Told, ...] | None) -> None:
        self._bus.ask(
            self.host.name,
            False,
            self._manager.hear(self.host.name),
            message,
            lambda answer: self._answered(answer, told or ()),
            PATIENCE,
        )

    def _answered(self, answer: Answer | None, told: tuple[Told, ...]) -> None:
        if not self.running:
            return
        if answer is None or answer.refusal:
            # Whoever is there after that may be another manager.
            self._known = False
            self._clock.after(self._pause, self._again)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            return
        self._pause = FIRST_PAUSE
        for one in told:
            self._taken(one)
        self._tell()

    def _again(self) -> None:
        if self.running:
            self._tell()

    def _taken(self, told: Told) -> None:
        carried = self.host.open.get(told.id)
        if carried is None:
            return
        if told.over:
            carried.taken = True
            del self.host.open[told.id]
        else:
            carried.told_phase = told.phase

    def hello(self) -> Hello:
        host = self.host
        now = self._clock.now
        kind = host.kind
        facts = {
            "cpus": kind.cpus,
            "memory_total": kind.memory if kind.claims is None else kind.claims,
            "disk_total": kind.disk,
            "disk_free": kind.disk,
        }
        readings = {name: Reading(value, at=now) for name, value in facts.items()}
        return Hello(
            instance=self.instance,
            groups=host.groups,
            readings={**readings, **self._image_readings(), **self._moving_readings()},
            machines=tuple(host.machines.values()),
            under_way=tuple(host.open),
            claims=tuple(id for id in host.live_claims() if id not in host.commands),
        )

    def _moving_readings(self) -> dict[str, Reading]:
        host, now = self.host, self._clock.now
        return {name: Reading(MOVING[name](host), at=now) for name in host.world.told}

    def _image_readings(self) -> dict[str, Reading]:
        names: list[Value] = [*sorted(self.host.stock.images)]
        return {"images": Reading(names, at=self._clock.now)}
