"""A simulated manager: one run of the daemon around the core, until it is killed.

What it decides is decided by the core that real managers run. Around it is what the real daemon
does with these decisions: it writes down, asks hosts, sends commands, and takes what hosts tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from encamp.core.actions import Action, PlaceMachines, PlacementAction
from encamp.core.happenings import (
    EndWanted,
    EnvironmentsRead,
    Gone,
    Happening,
    Joined,
    PartMoved,
    PolicyRead,
    Remembered,
    Reported,
    Submitted,
    TimePassed,
)
from encamp.core.step import Core
from encamp.core.triggers import TriggerMemory
from encamp.model.host import Presence
from encamp.model.policy import Policy
from encamp.model.property import Value
from encamp.model.request import Request, RequestRecord
from encamp.sim.acting import Hands
from encamp.sim.bus import Bus, DeafError
from encamp.sim.placing import Agents, Placing
from encamp.sim.properties import COMMANDS, PROPERTIES
from encamp.sim.requests import ready_request
from encamp.sim.said import Answer, Hello, News, Report, SayHello
from encamp.sim.world import World
from encamp.sim.written import Written

INTERVAL = 2.0
SILENCE = 6.0
"""Seconds after which a host that is not heard of is lost."""
HELLO_PATIENCE = 5.0
"""Seconds in which an agent that is on the bus should have introduced itself."""

TAKEN = Answer()
UNKNOWN = Answer("The manager does not know this run of the agent.")


def check_policy(policy: Policy) -> None:
    """Raises EncampError, if the policy makes no sense on a simulated site."""
    Core(PROPERTIES).check_policy(policy)


class SimulatedManager:
    def __init__(
        self, world: World, written: Written, bus: Bus, agents: Agents, policy: Policy
    ) -> None:
        self._world = world
        self._clock = world.clock
        self._written = written
        self._agents = agents
        self._policy = policy
        self.core = Core(PROPERTIES, world.commands, settled=False)
        self._placing = Placing(self.core, world, written, bus, agents, policy, self.happened)
        self._hands = Hands(
            self.core,
            world,
            written,
            self._placing.ask,
            self.happened,
            self._place,
            lambda action: self.acts(action),
        )
        self._instances: dict[str, str] = {}
        """Which run of each agent is known."""
        self._expected: set[str] = set()
        """Hosts that a former manager knew, and that have not been heard of yet."""
        self._happenings: deque[Happening] = deque()
        self._look = float("inf")
        self.stepped: Callable[[SimulatedManager], None] = lambda _: None
        """Called after each step."""
        self.acts: Callable[[PlacementAction | Action], None] = lambda _: None
        """Called before each thing it does; may kill it."""

    @property
    def alive(self) -> bool:
        return self._placing.alive

    def kill(self) -> None:
        self._placing.kill()
        self._hands.alive = False

    # ── beginning ────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Know what a former one wrote down; then find out who is there."""
        environments: dict[str, dict[str, Value]] = {
            name: {
                "name": name,
                "cpus": wanted.cpus,
                "memory": wanted.memory,
                "classes": list(wanted.classes),
                "reuse": wanted.reuse,
                "image": name,
                "enrols": "",
            }
            for name, wanted in self._world.environments.items()
        }
        self.happened(PolicyRead(self._policy))
        self.happened(EnvironmentsRead(environments))
        for record in self._written.remembered():
            self.happened(Remembered(record))
        self._placing.resume()
        if self._world.triggers:
            self._watch()
        self._expected = set(self._written.hosts)
        if not self._expected:
            self.core.settled = True
            self._hands.resume()
        else:
            self._clock.after(INTERVAL + 1.0, self._settle, False)
            self._clock.after(INTERVAL + 1.0 + HELLO_PATIENCE + SILENCE, self._settle, True)
        for host in self._agents:
            self.ask_hello(host)

    def _watch(self) -> None:
        """Have triggers judged; they go on where a former manager was."""
        self.core.picture.learn((), self._world.groups)
        self.core.load(self._world.triggers, self._clock.now)
        memory = TriggerMemory(triggers=tuple(self._written.memory.values()))
        self.core.engine.restore(memory, self._clock.now)

    def forget_triggers(self) -> None:
        """Somebody has taken all of them out of the site's files."""
        self.core.load((), self._clock.now)

    def _settle(self, in_any_case: bool) -> None:
        if not self.alive or self.core.settled or (self._expected and not in_any_case):
            return
        for name in sorted(self._expected):
            self.core.picture.put_host(self._written.hosts[name])
            reason = "nothing was heard of it since the manager started"
            self.happened(Gone(name, Presence.LOST, reason))
        self._expected.clear()
        self.core.settled = True
        self._placing.catch_up()
        self._hands.resume()
        self.happened(TimePassed())

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────

    def happened(self, happening: Happening) -> None:
        """One thing after the other: what comes of doing something waits until all is done."""
        self._happenings.append(happening)
        if len(self._happenings) > 1:
            return
        while self._happenings and self.alive:
            self._step(self._happenings[0])
            self._happenings.popleft()

    def _step(self, happening: Happening) -> None:
        gone: list[PartMoved] = []
        if isinstance(happening, Joined | Reported):
            gone = self._placing.standing.vanished(happening)
        decision = self.core.step(happening, self._clock.now)
        for action in decision.placement:
            self.acts(action)
            if not self.alive:
                return
            self._placing.take(action)
        if decision.actions:
            self._hands.take(decision.actions)
            if not self.alive:
                return
        self._happenings.extend(gone)
        self.stepped(self)
        due = self.core.next_look()
        if due is not None and due < self._look:
            self._look = due
            self._clock.at(due, self._looked, due)

    def _looked(self, due: float) -> None:
        if self.alive and due == self._look:
            self._look = float("inf")
            self.happened(TimePassed())

    def submit(self, request: Request) -> None:
        """Raises EncampError, if it makes no sense."""
        self.core.check_request(request)
        self._written.write(RequestRecord(request=request, changed=self._clock.now))
        self._written.flush()
        self.happened(Submitted(request))

    def _place(self, wanted: PlaceMachines, request: str) -> None:
        """Have one machine made ready for jobs to come; once, whoever has begun with it."""
        if self._written.latest(request) is None:
            self.submit(ready_request(self._world, wanted, request))

    def end(self, request: str, by: str) -> None:
        self.happened(EndWanted(request, by))

    # ── hosts ────────────────────────────────────────────────────────────────────────────────────

    def ask_hello(self, host: str) -> None:
        if self.alive:
            self._placing.ask(host, SayHello(), lambda answer: None)

    def gone(self, host: str, presence: Presence, reason: str) -> None:
        if self.alive and self._instances.pop(host, None) is not None:
            self._placing.host_gone(host)
            self.happened(Gone(host, presence, reason))

    def knows(self, host: str) -> bool:
        return host in self._instances

    def take(self, host: str, message: msgspec.Struct) -> Answer:
        """What an agent says."""
        if not self.alive:
            raise DeafError
        match message:
            case Hello():
                self._hello(host, message)
                return TAKEN
            case Report() | News() if self._instances.get(host) != message.instance:
                return UNKNOWN
            case Report():
                self.happened(Reported(host, message.readings, message.machines))
            case News():
                for told in message.commands:
                    self._placing.news.told(host, told)
        if not self.alive:
            raise DeafError  # It died over it.
        return TAKEN

    def _hello(self, host: str, hello: Hello) -> None:
        self._world.log.say("manager", "welcomes", host)
        self._instances[host] = hello.instance
        self._expected.discard(host)
        self.happened(
            Joined(
                name=host,
                instance=hello.instance,
                version="simulated",
                clock_offset=0.0,
                groups=hello.groups,
                properties=PROPERTIES,
                commands=COMMANDS,
                readings=hello.readings,
                machines=hello.machines,
                claims=hello.claims,
            )
        )
        if not self.alive:
            return
        self._written.hosts[host] = self.core.picture.hosts[host].record
        self._placing.standing.end_forsaken(host, hello.machines)
        if self._placing.host_joined(host, hello.under_way):
            self._clock.after(HELLO_PATIENCE, self.ask_hello, host)
