"""One run of a simulated site, from its first job to its last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from encamp.model.command import CommandDefinition
from encamp.model.errors import Code, EncampError
from encamp.model.host import Presence
from encamp.progress import Progress, Silent
from encamp.sim.agent import SimulatedAgent
from encamp.sim.bus import Bus, DeafError
from encamp.sim.clock import Clock
from encamp.sim.costs import MEASURED
from encamp.sim.dividing import divide, own_group
from encamp.sim.host import SimulatedHost
from encamp.sim.log import Log
from encamp.sim.manager import HELLO_PATIENCE, SILENCE, SimulatedManager, check_policy
from encamp.sim.measures import Course, measure
from encamp.sim.properties import COMMANDS
from encamp.sim.requests import MANAGER, job_request
from encamp.sim.said import Answer
from encamp.sim.site import Compared, Sharing, SimulatedSite
from encamp.sim.tally import Tally
from encamp.sim.triggers import check_triggers, told, watched
from encamp.sim.troubles import Troubles
from encamp.sim.workload import SimulatedJob
from encamp.sim.world import World
from encamp.sim.written import Written

BEGIN = 30.0
"""Seconds after which the first job can come: all hosts have joined by then."""

TOLD_EVERY = 2000
"""Things that happen between two looks at how far the simulation is."""

STUCK = 30 * 86_400.0
"""Seconds in which no job gets on, though none is running that could make room."""

AGAIN = 5.0
"""Seconds after which somebody tries again who finds no manager."""


class Simulation:
    def __init__(
        self,
        site: SimulatedSite,
        jobs: Sequence[SimulatedJob],
        compared: Compared,
        *,
        seed: int = 0,
        faults: bool = False,
        keep: int = 0,
        listen: Callable[[str], None] | None = None,
        commands: Mapping[str, CommandDefinition] | None = None,
    ) -> None:
        """`commands`: what real hosts offer, which triggers may therefore speak of."""
        check_policy(compared.policy)
        self.site = site
        self.compared = compared
        self.jobs = {job.id: job for job in jobs}
        self.clock = Clock()
        self.log = Log(self.clock, keep, listen)
        self.troubles = Troubles(seed, none=not faults)
        self.tally = Tally()
        world = World(self.clock, self.log, self.troubles, self.tally)
        world.environments = site.environments
        world.run_times = {job.id: job.run for job in jobs}
        world.installed = compared.sharing is Sharing.STATIC
        for job in jobs:
            world.add_user(job.owner)
        world.add_user(MANAGER)
        world.groups = tuple({group: None for kind in site.hosts for group in kind.groups})
        world.commands = {one.name: one for one in (*(commands or {}).values(), *COMMANDS)}
        world.triggers = watched(site, compared)
        check_triggers(world)
        world.told = told(world.triggers, jobs, compared.policy)
        self.world = world
        self.bus = Bus(self.clock, self.troubles, self.log, MEASURED.message)
        self.written = Written()
        self.refused: dict[str, str] = {}
        """Jobs that made no sense, and why."""
        self.hosts = self._hosts(world)
        self.agents: dict[str, SimulatedAgent] = {}
        self._takes = {name: self._reach(name) for name in self.hosts}
        self._instances = 0
        self._reachable: dict[str, int] = dict.fromkeys(self.hosts, 0)
        """Counts how often a host could be reached again, or could not any more."""
        self.manager: SimulatedManager | None = None
        self.watch: Callable[[SimulatedManager], None] = lambda _: None
        """Is shown every new manager."""
        self._waiting = len(self.jobs)
        """Jobs that nobody has submitted yet."""

    def _hosts(self, world: World) -> dict[str, SimulatedHost]:
        static = self.compared.sharing is Sharing.STATIC
        jobs = list(self.jobs.values())
        owners = divide(self.site, jobs, self.compared.division) if static else {}
        return {
            name: SimulatedHost(
                name,
                kind,
                (*kind.groups, *(own_group(owner) for owner in owners.get(name, ()))),
                world,
            )
            for kind in self.site.hosts
            for name in kind.names()
        }

    def _reach(self, name: str) -> Callable[[msgspec.Struct], Answer]:
        def take(message: msgspec.Struct) -> Answer:
            agent = self.agents.get(name)
            if agent is None or not agent.running:
                raise DeafError
            return agent.take(message)

        return take

    def hear(self, host: str) -> Callable[[msgspec.Struct], Answer]:
        def take(message: msgspec.Struct) -> Answer:
            if self.manager is None:
                raise DeafError
            return self.manager.take(host, message)

        return take

    # ── running it ───────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self.start_manager()
        for name in self.hosts:
            self.start_agent(name)
        for job in self.jobs.values():
            self.clock.at(BEGIN + job.submitted, self._submit, job)
            if job.cancelled is not None:
                self.clock.at(BEGIN + job.submitted + job.cancelled, self._cancel, job.id)

    @property
    def open(self) -> int:
        """Jobs that are not over."""
        return self._waiting + len(self.written.open) - len(self.written.ahead)

    def run(self, progress: Progress | None = None) -> Course:
        """Until all jobs are over."""
        progress = progress or Silent()
        self.start()
        patience = STUCK + max((job.run for job in self.jobs.values()), default=0.0)
        before, since = self.open, self.clock.now
        while self.open:
            for _ in range(TOLD_EVERY):
                if not self.open or not self.clock.step():
                    break
            open_now = self.open
            done = len(self.jobs) - open_now
            progress.update(
                f"simulating '{self.compared.name}' · {done:,} of {len(self.jobs):,} jobs",
                done / max(1, len(self.jobs)),
            )
            if open_now != before:
                before, since = open_now, self.clock.now
            elif self.clock.next() is None or self.clock.now - since > patience:
                raise self.stuck()
        return self.course()

    def course(self) -> Course:
        idle = [span for host in self.hosts.values() for span in host.idle.spans()]
        return measure(
            self.site,
            self.compared.name,
            self.compared.sharing,
            [_shifted(job) for job in self.jobs.values()],
            self.written.records,
            self.refused,
            self.tally,
            self._fired(),
            [*self.tally.idle, *idle],
        )

    def _fired(self) -> dict[str, int]:
        """How often each trigger has."""
        engine = self.manager.core.engine if self.manager is not None else None
        triggers = engine.triggers.values() if engine is not None else ()
        return {trigger.name: trigger.fired for trigger in triggers}

    def stuck(self) -> EncampError:
        """Jobs wait, and nothing happens any more."""
        left = sorted(self.written.open - self.written.ahead)
        why = ""
        if self.manager is not None and left:
            record = self.written.latest(left[0])
            assert record is not None
            why = f"{left[0]} is {record.state.value}"
            if left[0] in self.manager.core.placement.records:
                why += (
                    f": {self.manager.core.placement.why(left[0], self.clock.now).reason.sentence}"
                )
        return EncampError(
            Code.INTERNAL,
            f"{self.open:,} jobs are left, and nothing happens any more. {why}",
            "That must not be; please report it with the files that it came of.",
        )

    # ── whoever wants something ──────────────────────────────────────────────────────────────────

    def _submit(self, job: SimulatedJob) -> None:
        if self.manager is None:
            self.clock.after(AGAIN, self._submit, job)
            return
        try:
            self.manager.submit(job_request(self.world, job, reuse=self.compared.reuse))
        except EncampError as error:
            self.log.say("manager", "refuses", job.id, error.sentence)
            self.refused[job.id] = str(error)
        self._waiting -= 1

    def _cancel(self, job: str) -> None:
        if job in self.refused:
            return
        manager = self.manager
        if manager is not None and job in self.written.records:
            manager.end(job, self.jobs[job].owner)
            if manager.alive:
                return
        # Nobody has answered.
        self.clock.after(AGAIN, self._cancel, job)

    # ── daemons that come and go ─────────────────────────────────────────────────────────────────

    def start_manager(self) -> None:
        manager = SimulatedManager(
            self.world,
            self.written,
            self.bus,
            self._takes,
            self.compared.policy,
        )
        self.manager = manager
        self.watch(manager)
        self.log.say("manager", "starts")
        manager.start()
        for name in self.agents:
            if self.is_reachable(name):
                self.clock.after(HELLO_PATIENCE, self._introduced, name, self._reachable[name])

    def forget_triggers(self) -> None:
        """From now on none is at work."""
        self.world.triggers = ()
        if self.manager is not None:
            self.manager.forget_triggers()

    def kill_manager(self) -> None:
        if self.manager is not None:
            self.log.say("manager", "dies")
            self.manager.kill()
            self.manager = None

    def start_agent(self, name: str) -> None:
        """On a host that is up; it introduces itself."""
        self._instances += 1
        self.log.say(name, "agent starts")
        self.agents[name] = SimulatedAgent(
            self.hosts[name], f"run-{self._instances}", self.bus, self
        )
        self.reach_changed(name)

    def stop_agent(self, name: str, *, goodbye: bool) -> None:
        agent = self.agents.get(name)
        if agent is None or not agent.running:
            return
        self.log.say(name, "agent stops")
        if goodbye and self.manager is not None and name not in self.bus.cut:
            self.manager.gone(name, Presence.LEFT, "its agent was stopped")
        agent.stop()
        self.reach_changed(name)

    def reach_changed(self, name: str) -> None:
        """A host can be reached now, or not any more; the manager notices after a while."""
        self._reachable[name] += 1
        count = self._reachable[name]
        if self.is_reachable(name):
            self.clock.after(HELLO_PATIENCE, self._introduced, name, count)
        else:
            self.clock.after(SILENCE, self._lost, name, count)

    def is_reachable(self, name: str) -> bool:
        return self.agents[name].running and name not in self.bus.cut

    def _introduced(self, name: str, count: int) -> None:
        """A host that is there and has not introduced itself is asked to, again and again."""
        manager = self.manager
        if count == self._reachable[name] and manager is not None and not manager.knows(name):
            manager.ask_hello(name)
            self.clock.after(HELLO_PATIENCE, self._introduced, name, count)

    def _lost(self, name: str, count: int) -> None:
        if count == self._reachable[name] and self.manager is not None:
            self.manager.gone(name, Presence.LOST, "it has not been heard of")


def _shifted(job: SimulatedJob) -> SimulatedJob:
    return msgspec.structs.replace(job, submitted=job.submitted + BEGIN)
