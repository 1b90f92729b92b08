"""Whatever happens in whatever order: nothing is lost, nothing begins twice, no host is promised
more than it has, and everything comes to an end."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from encamp.core.actions import (
    BeginPart,
    ClaimRoom,
    EndPart,
    PlacementAction,
    ReleaseRoom,
    WriteRequest,
)
from encamp.core.happenings import (
    ClaimAnswered,
    EndWanted,
    Forgotten,
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
from encamp.core.placement.books import Books
from encamp.core.step import Core
from encamp.model.host import Presence
from encamp.model.machine import Machine
from encamp.model.policy import Limit, Per, Policy
from encamp.model.property import Reading
from encamp.model.request import (
    PLACED,
    REQUEST_OVER,
    REQUEST_TRANSITIONS,
    Cause,
    PartState,
    RequestRecord,
    RequestState,
    Together,
    claim_id,
)
from encamp.model.size import Size
from tests.core.placement.small_site import GIB, PROPERTIES, RUN, machine, request

HOSTS = ("a", "b", "c")
LIMITS = (
    Limit(name="each", machines=6),
    Limit(name="special", environments=("special",), per=Per.ALL, machines=2),
)
POLICIES = (
    Policy(limits=LIMITS, claim=30.0, patience=100.0, pause=5.0, reservation=20.0, aging=50.0),
    Policy(limits=LIMITS, claim=30.0, patience=100.0, rank=("spread", "1 / host.load1"), pause=1.0),
    Policy(limits=LIMITS[1:], claim=30.0, patience=100.0, rank=("host.room_memory",), tries=2),
)
Command = tuple[str, int, int]


class Agent:
    """A host that keeps its promises, and forgets them in time."""

    def __init__(self, cpus: int) -> None:
        self.cpus = cpus
        self.claims: dict[str, float] = {}
        self.commands: dict[Command, str] = {}
        """`taken`, `running`."""
        self.ended: dict[Command, PartMoved] = {}
        """What the manager has not heard of."""
        self.machines: dict[str, Machine] = {}
        self.to_end: set[Command] = set()


class AnythingHappens(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.core = Core(PROPERTIES)
        self.agents: dict[str, Agent] = {}
        self.present: set[str] = set()
        self.written: dict[str, RequestRecord] = {}
        self.asked: list[ClaimRoom] = []
        self.begun: set[Command] = set()
        self.ran: dict[tuple[str, int], int] = {}
        """How often a machine's command has ended by itself."""
        self.count = 0

    @property
    def books(self) -> Books:
        return self.core.placement._books

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Policy) -> None:
        self.step(PolicyRead(policy))
        self.join("a", 4)

    # ── the manager ──────────────────────────────────────────────────────────────────────────────

    def step(self, happening: Happening) -> None:
        todo = [happening]
        while todo:
            self.carry_out(self.core.step(todo.pop(), self.now).placement)
            if self.core.next_look() == 0.0:
                todo.append(TimePassed())

    def carry_out(self, actions: list[PlacementAction]) -> None:
        for action in actions:
            if isinstance(action, WriteRequest):
                self.write(action.record)
                continue
            record = self.written[action.request]
            assert record.attempt >= action.attempt, "it is written down first"
            if isinstance(action, ClaimRoom):
                assert record.state is RequestState.CLAIMING
                assert action.host in self.present
                self.asked.append(action)
            elif isinstance(action, ReleaseRoom):
                self.asked = [claim for claim in self.asked if key_of(claim) != key_of(action)]
                if action.host in self.present:
                    self.agents[action.host].claims.pop(claim_id(*key_of(action)), None)
            elif isinstance(action, BeginPart):
                self.begin_part(action)
            else:
                assert isinstance(action, EndPart)
                if action.host in self.agents:
                    self.agents[action.host].to_end.add(key_of(action))

    def write(self, record: RequestRecord) -> None:
        before = self.written.get(record.request.id)
        assert before is not None
        if record.state is not before.state:
            assert record.state in REQUEST_TRANSITIONS[before.state]
        if before.state in REQUEST_OVER:
            assert before.state is RequestState.LOST
        if record.state in PLACED:
            assert len(record.parts) == record.request.count, "all or none"
            hosts = [part.host for part in record.parts]
            if record.request.together is Together.ONE_HOST:
                assert len(set(hosts)) == 1
            if record.request.together is Together.APART:
                assert len(set(hosts)) == len(hosts)
        self.written[record.request.id] = record

    def begin_part(self, action: BeginPart) -> None:
        key = key_of(action)
        assert self.written[action.request].state is RequestState.STARTING
        if key in self.begun:
            return
        self.begun.add(key)
        agent = self.agents[action.host]
        if agent.claims.pop(claim_id(*key), None) is None:
            agent.ended[key] = moved(
                key, PartState.OVER, failure="the promise has lapsed", cause=Cause.CLAIM
            )
        else:
            agent.commands[key] = "taken"

    @rule()
    def restart(self) -> None:
        """Another manager goes on with what was written down."""
        policy = self.books.policy
        self.core = Core(PROPERTIES, settled=False)
        self.step(PolicyRead(policy))
        for record in self.written.values():
            self.step(Remembered(record))
        self.asked.clear()
        for name in sorted(self.present):
            self.rejoin(name)
        self.core.settled = True
        self.step(TimePassed())

    @rule(policy=st.sampled_from(POLICIES))
    def read_policy(self, policy: Policy) -> None:
        self.step(PolicyRead(policy))

    @rule(seconds=st.sampled_from((0.5, 3.0, 25.0, 120.0)))
    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.core.next_look()) is not None and due <= end:
            self.now = max(due, self.now)
            self.step(TimePassed())
        self.now = end
        self.step(TimePassed())

    # ── hosts ────────────────────────────────────────────────────────────────────────────────────

    @rule(name=st.sampled_from(HOSTS), cpus=st.integers(1, 4))
    def join(self, name: str, cpus: int) -> None:
        if name not in self.present:
            self.agents.setdefault(name, Agent(cpus))
            self.present.add(name)
            self.rejoin(name)

    def rejoin(self, name: str) -> None:
        agent = self.agents[name]
        self.step(
            Joined(
                name=name,
                instance="one",
                version="1",
                clock_offset=0.0,
                properties=PROPERTIES,
                commands=(RUN,),
                readings={
                    "cpus": Reading(agent.cpus),
                    "memory_total": Reading(8 * GIB),
                    "load1": Reading(float(agent.cpus % 2)),
                },
                machines=tuple(agent.machines.values()),
                claims=tuple(claim for claim, until in agent.claims.items() if until > self.now),
            )
        )
        for key, state in list(agent.commands.items()):
            if state == "running":
                self.step(moved(key, PartState.RUNNING, began=True, host=name))
        self.hear(name)

    def hear(self, name: str) -> None:
        agent = self.agents[name]
        for happening in list(agent.ended.values()):
            self.step(happening)
        agent.ended.clear()

    @rule(name=st.sampled_from(HOSTS), presence=st.sampled_from((Presence.LOST, Presence.LEFT)))
    def lose(self, name: str, presence: Presence) -> None:
        if name in self.present:
            self.present.discard(name)
            self.asked = [claim for claim in self.asked if claim.host != name]
            self.step(Gone(name, presence, "gone"))

    @rule(name=st.sampled_from(HOSTS))
    def forget(self, name: str) -> None:
        if name in self.agents and name not in self.present:
            del self.agents[name]
            self.step(Forgotten(name))

    @rule(name=st.sampled_from(HOSTS))
    def report(self, name: str) -> None:
        if name in self.present:
            machines = tuple(self.agents[name].machines.values())
            self.step(Reported(name, {"load1": Reading(self.now % 3)}, machines))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    @rule(
        owner=st.sampled_from(("anna", "berta")),
        cpus=st.integers(1, 3),
        count=st.sampled_from((1, 1, 1, 2, 3)),
        together=st.sampled_from(Together),
        environment=st.sampled_from(("mini", "special")),
        requirements=st.sampled_from(("", "host.load1 < 1", "host.name != 'a'")),
        rank=st.sampled_from(("", "pack", "-host.room_cpus", "1 / host.load1")),
        label=st.sampled_from(("", "x")),
        neighbours=st.sampled_from(("", "near", "away")),
        priority=st.integers(-1, 1),
        retries=st.integers(0, 1),
    )
    def submit(self, neighbours: str, cpus: int, **more: Any) -> None:
        self.count += 1
        if neighbours:
            more[neighbours] = ("x",)
        wanted = request(f"r{self.count}", submitted=self.now, size=Size(cpus, GIB), **more)
        self.written[wanted.id] = RequestRecord(request=wanted)
        self.step(Submitted(wanted))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        alive = [name for name, record in self.written.items() if record.state not in REQUEST_OVER]
        if alive:
            self.step(EndWanted(data.draw(st.sampled_from(alive)), "anna"))

    @precondition(lambda self: self.asked)
    @rule(refuses=st.sampled_from((False, False, False, True)), data=st.data())
    def answer(self, refuses: bool, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.asked))
        self.asked.remove(claim)
        refusal = "no" if refuses else ""
        if not refuses:
            self.agents[claim.host].claims[claim_id(*key_of(claim))] = self.now + 30.0
        self.step(
            ClaimAnswered(
                request=claim.request,
                number=claim.number,
                attempt=claim.attempt,
                refusal=refusal,
                cause=Cause.NO_ROOM if refuses else Cause.NONE,
            )
        )

    def under_way(self) -> list[tuple[str, Command]]:
        return [(name, key) for name, agent in self.agents.items() for key in agent.commands]

    @precondition(lambda self: self.under_way())
    @rule(reports=st.booleans(), data=st.data())
    def make(self, reports: bool, data: st.DataObject) -> None:
        """A machine comes up; its host may report it before or after its command has begun."""
        name, key = data.draw(st.sampled_from(self.under_way()))
        agent = self.agents[name]
        made = f"m-{'-'.join(map(str, key))}"
        record = self.written[key[0]]
        agent.machines[made] = machine(
            made, cpus=record.request.size.cpus, environment=record.request.environment
        )
        if reports:
            self.report(name)
        agent.commands[key] = "running"
        if name in self.present:
            self.step(moved(key, PartState.RUNNING, machine=made, began=True, host=name))

    @precondition(lambda self: self.under_way())
    @rule(fails=st.booleans(), lost=st.booleans(), lingers=st.booleans(), data=st.data())
    def end(self, fails: bool, lost: bool, lingers: bool, data: st.DataObject) -> None:
        name, key = data.draw(st.sampled_from(self.under_way()))
        self.end_command(name, key, fails=fails, lost=lost, lingers=lingers)

    def end_command(
        self, name: str, key: Command, *, fails: bool, lost: bool = False, lingers: bool = False
    ) -> None:
        agent = self.agents[name]
        began = agent.commands.pop(key) == "running"
        if not lingers:
            agent.machines.pop(f"m-{'-'.join(map(str, key))}", None)
        if fails or key in agent.to_end or not began:
            outcome = moved(key, PartState.OVER, failure="it failed", began=began, lost=lost)
        else:
            part = key[:2]
            self.ran[part] = self.ran.get(part, 0) + 1
            record = self.written[key[0]]
            assert self.ran[part] <= 1 + record.request.retries, "a command has run twice"
            outcome = moved(key, PartState.OVER, exit_code=0, began=True)
        agent.ended[key] = outcome
        if name in self.present:
            self.hear(name)
            self.report(name)

    @rule()
    def tidy(self) -> None:
        """Machines whose commands are over go."""
        for name, agent in self.agents.items():
            kept = {f"m-{'-'.join(map(str, key))}" for key in agent.commands}
            agent.machines = {key: made for key, made in agent.machines.items() if key in kept}
            self.report(name)

    # ── what always holds ────────────────────────────────────────────────────────────────────────

    @invariant()
    def no_host_has_more_than_it_can_take(self) -> None:
        for name in self.present:
            agent = self.agents[name]
            under_way = {f"m-{'-'.join(map(str, key))}" for key in agent.commands}
            if set(agent.machines) - under_way or len(under_way) > len(agent.machines):
                continue  # What goes on there unknown to the manager is not its doing.
            room = self.books.rooms[name]
            promised = sum(promise.size.cpus for promise in room.promises.values())
            assert promised <= agent.cpus

    @invariant()
    def the_ledger_is_what_it_is_made_of(self) -> None:
        for room in self.books.rooms.values():
            hidden = [one for one in room.promises.values() if not one.visible]
            assert room.used_cpus == sum(one.size.cpus for one in hidden) + sum(
                standing.machine.size.cpus for standing in room.standing.values()
            )
            assert room.machines == len(hidden) + len(room.standing)
        parts = {
            (name, part.number): part.host
            for name, entry in self.books.entries.items()
            for part in entry.record.parts
            if part.state is not PartState.OVER
        }
        promises = {key: room.name for room in self.books.rooms.values() for key in room.promises}
        assert parts == promises

    @invariant()
    def limits_are_kept(self) -> None:
        special = [
            part
            for entry in self.books.entries.values()
            if entry.request.environment == "special"
            for part in entry.record.parts
            if part.state is not PartState.OVER
        ]
        assert len(special) <= 2

    @invariant()
    def every_wait_has_a_reason(self) -> None:
        for name, record in self.core.placement.records.items():
            if record.state is RequestState.WAITING:
                assert record.reason.cause is not Cause.NONE
                assert record.reason.sentence
                assert record.reason.since <= self.now
                explained = self.core.placement.why(name, self.now)
                assert explained.position is not None
                assert len(explained.hosts) == len(self.books.rooms)
        for name in self.core.picture.hosts:
            assert self.core.placement.why_host(name, self.now).reason.sentence

    @invariant()
    def what_is_known_is_what_was_written(self) -> None:
        alive = {name for name, record in self.written.items() if record.state not in REQUEST_OVER}
        assert set(self.core.placement.records) == alive
        for name in alive:
            assert self.core.placement.records[name].state is self.written[name].state

    def teardown(self) -> None:
        """Once nothing fails any more, everything comes to an end."""
        for name in HOSTS:
            if name not in self.agents:
                self.agents[name] = Agent(4)
            if name not in self.present:
                self.present.add(name)
                self.rejoin(name)
        for _ in range(200):
            while self.asked:
                claim = self.asked.pop(0)
                self.agents[claim.host].claims[claim_id(*key_of(claim))] = self.now + 30.0
                self.step(
                    ClaimAnswered(request=claim.request, number=claim.number, attempt=claim.attempt)
                )
            for name, key in self.under_way():
                agent = self.agents[name]
                if agent.commands[key] == "taken" and key not in agent.to_end:
                    agent.commands[key] = "running"
                    self.step(moved(key, PartState.RUNNING, began=True))
                if key in agent.commands:
                    self.end_command(name, key, fails=False)
            for name in HOSTS:
                self.hear(name)
            self.tidy()
            if not self.core.placement.records:
                break
            self.wait(30.0)
        for name, record in list(self.core.placement.records.items()):
            # Three machines of three processors on one host: there is no such host.
            assert record.state is RequestState.WAITING
            assert record.reason.cause in (
                Cause.NO_HOST_FITS,
                Cause.REQUIREMENTS,
                Cause.NEIGHBOURS,
                Cause.NO_ROOM,
                Cause.LIMIT,
                Cause.BEHIND,
            )
            self.step(EndWanted(name, "anna"))
        assert not self.core.placement.records
        assert all(not room.promises for room in self.books.rooms.values())
        assert not len(self.books.queue)
        assert not self.core.picture.world.things["request"]


def key_of(action: ClaimRoom | ReleaseRoom | BeginPart | EndPart) -> Command:
    return (action.request, action.number, action.attempt)


def moved(key: Command, state: PartState, **more: Any) -> PartMoved:
    return PartMoved(request=key[0], number=key[1], attempt=key[2], state=state, **more)


TestAnythingHappens = AnythingHappens.TestCase
TestAnythingHappens.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
