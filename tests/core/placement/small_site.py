"""A small site for tests: hosts that promise, make machines and fail as they are told."""

from __future__ import annotations

from typing import Any

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
    EnvironmentsRead,
    Forgotten,
    Gone,
    Happening,
    Joined,
    PartMoved,
    PolicyRead,
    Reported,
    Submitted,
    TimePassed,
)
from encamp.core.step import Core
from encamp.model.command import CommandDefinition
from encamp.model.host import Presence
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.machine import Machine, State
from encamp.model.policy import Policy
from encamp.model.property import PropertyDefinition, Reading, ValueKind
from encamp.model.request import (
    REQUEST_TRANSITIONS,
    Cause,
    Explanation,
    PartState,
    Request,
    RequestRecord,
    RequestState,
)
from encamp.model.size import Size

GIB = 1 << 30
RUN = CommandDefinition(name="request.run")

PROPERTIES = (
    PropertyDefinition(name="cpus", command="x", return_type=ValueKind.INT, ticks=3600),
    PropertyDefinition(
        name="memory_total", command="x", return_type=ValueKind.INT, ticks=3600, unit="bytes"
    ),
    PropertyDefinition(
        name="disk_total", command="x", return_type=ValueKind.INT, ticks=3600, unit="bytes"
    ),
    PropertyDefinition(name="disk_free", command="x", return_type=ValueKind.INT, unit="bytes"),
    PropertyDefinition(name="load1", command="x", return_type=ValueKind.FLOAT),
    PropertyDefinition(name="kvm", command="x", return_type=ValueKind.STR),
    PropertyDefinition(name="images", command="x", return_type=ValueKind.LIST),
    PropertyDefinition(name="templates", command="x", return_type=ValueKind.LIST),
    PropertyDefinition(name="gpus", command="x", return_type=ValueKind.INT, ticks=600),
)


def request(request_id: str, **more: Any) -> Request:
    owner = more.get("owner", "anna")
    user = User(owner, more.pop("uid", 1000), 1000, owner, (), f"/home/{owner}")
    environment = more.get("environment", "mini")
    machine = MachineRequest(environment=environment, owner=user)
    facts: dict[str, Any] = {
        "owner": owner,
        "submitted": 0.0,
        "environment": environment,
        "size": Size(1, GIB),
        "machine": machine,
        "job": Job(machine=machine, command=Command(("true",))),
    }
    return Request(id=request_id, **{**facts, **more})


class Site:
    """The core, with everything it has decided; tests play the manager and the hosts."""

    def __init__(self, policy: Policy | None = None, **more: Any) -> None:
        self.core = Core(PROPERTIES, **more)
        self.now = 1000.0
        self.written: dict[str, RequestRecord] = {}
        self.actions: list[PlacementAction] = []
        """Of the last step."""
        self.claims: list[ClaimRoom] = []
        """Not answered yet."""
        self.begun: list[BeginPart] = []
        """Begun, and not over."""
        self.steps = 0
        """How many it took for what happened last."""
        if policy is not None:
            self.rule(policy)

    def rule(self, policy: Policy) -> None:
        self.happens(PolicyRead(policy))

    def happens(self, happening: Happening, after: float = 0.0) -> list[PlacementAction]:
        self.now += after
        self.steps = 1
        self.actions = list(self.core.step(happening, self.now).placement)
        self._follow(self.actions)
        while self.core.next_look() == 0.0:
            self.steps += 1
            further = self.core.step(TimePassed(), self.now).placement
            self._follow(further)
            self.actions += further
        return self.actions

    def _follow(self, actions: list[PlacementAction]) -> None:
        for action in actions:
            if isinstance(action, WriteRequest):
                record = action.record
                before = self.written.get(record.request.id)
                former = before.state if before is not None else RequestState.WAITING
                assert record.state is former or record.state in REQUEST_TRANSITIONS[former]
                self.written[record.request.id] = record
            elif isinstance(action, ClaimRoom):
                self.claims.append(action)
            elif isinstance(action, ReleaseRoom):
                self.claims = [
                    claim
                    for claim in self.claims
                    if (claim.request, claim.number, claim.attempt)
                    != (action.request, action.number, action.attempt)
                ]
            elif isinstance(action, BeginPart):
                self.begun.append(action)
            else:
                assert isinstance(action, EndPart)

    def wait_until(self, moment: float) -> list[PlacementAction]:
        self.now = max(self.now, moment)
        return self.happens(TimePassed())

    def wait(self, seconds: float) -> None:
        """Let time pass, as a manager does: from one moment at which something is due to the
        next."""
        end = self.now + seconds
        while (due := self.core.next_look()) is not None and due <= end:
            self.wait_until(due)
        self.wait_until(end)

    def knows(self, environment: str, **facts: Any) -> None:
        known = {"name": environment, "cpus": 1, "memory": GIB, **facts}
        self.happens(EnvironmentsRead({environment: known}))

    def why(self, request_id: str) -> Explanation:
        return self.core.placement.why(request_id, self.now)

    # ── hosts ────────────────────────────────────────────────────────────────────────────────────

    def join(
        self,
        name: str,
        cpus: int = 4,
        memory: float = 8.0,
        *,
        machines: tuple[Machine, ...] = (),
        **more: Any,
    ) -> None:
        told: dict[str, Any] = {
            "cpus": cpus,
            "memory_total": int(memory * GIB) + GIB // 2,
            "disk_total": 101 * GIB,
            "disk_free": 101 * GIB,
            "load1": 0.0,
            **more.pop("readings", {}),
        }
        facts: dict[str, Any] = {
            "instance": "one",
            "version": "1",
            "clock_offset": 0.0,
            "properties": PROPERTIES,
            "commands": (RUN,),
        }
        readings = {key: Reading(value) for key, value in told.items() if value is not None}
        self.happens(Joined(name=name, readings=readings, machines=machines, **{**facts, **more}))

    def lose(self, name: str, after: float = 0.0) -> None:
        self.happens(Gone(name, Presence.LOST, "it fell silent"), after)

    def go(self, name: str, presence: Presence) -> None:
        self.happens(Gone(name, presence, "it is gone"))

    def forget(self, name: str) -> None:
        self.happens(Forgotten(name))

    def read(self, name: str, **values: Any) -> None:
        self.happens(Reported(name, {key: Reading(value) for key, value in values.items()}))

    def machines(self, name: str, *machines: Machine) -> None:
        self.happens(Reported(name, {}, machines))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    def submit(self, request_id: str, **more: Any) -> list[PlacementAction]:
        return self.happens(Submitted(request(request_id, **{"submitted": self.now, **more})))

    def answer(self, refusal: str = "", cause: Cause = Cause.NO_ROOM) -> None:
        """The oldest claim that is open."""
        claim = self.claims.pop(0)
        self.happens(
            ClaimAnswered(
                request=claim.request,
                number=claim.number,
                attempt=claim.attempt,
                refusal=refusal,
                cause=cause if refusal else Cause.NONE,
            )
        )

    def answer_all(self) -> None:
        while self.claims:
            self.answer()

    def moves(self, part: BeginPart, state: PartState, **more: Any) -> None:
        if state is PartState.OVER and part in self.begun:
            self.begun.remove(part)
        self.happens(
            PartMoved(
                request=part.request,
                number=part.number,
                attempt=part.attempt,
                state=state,
                **more,
            )
        )

    def part(self, request_id: str, number: int = 0) -> BeginPart:
        return next(
            part for part in self.begun if (part.request, part.number) == (request_id, number)
        )

    def run(self, request_id: str, number: int = 0, machine: str = "") -> None:
        self.moves(self.part(request_id, number), PartState.RUNNING, machine=machine, began=True)

    def run_part(self, part: BeginPart) -> None:
        self.moves(part, PartState.RUNNING, began=True)

    def finish(self, request_id: str, number: int = 0, exit_code: int = 0) -> None:
        part = self.part(request_id, number)
        self.moves(part, PartState.OVER, exit_code=exit_code, began=True)

    def fail(self, request_id: str, number: int = 0, why: str = "no answer", **more: Any) -> None:
        self.moves(self.part(request_id, number), PartState.OVER, failure=why, **more)

    def end(self, request_id: str) -> list[PlacementAction]:
        return self.happens(EndWanted(request_id, "anna"))

    def place(self, request_id: str, **more: Any) -> str:
        """Submit it, and have it run; the host of its first machine."""
        self.submit(request_id, **more)
        self.answer_all()
        record = self.record(request_id)
        for part in record.parts:
            self.run(request_id, part.number)
        return record.parts[0].host

    def record(self, request_id: str) -> RequestRecord:
        """As it is now, or as it was written at its end."""
        records = self.core.placement.records
        return records[request_id] if request_id in records else self.written[request_id]

    def state(self, request_id: str) -> RequestState:
        return self.record(request_id).state

    def host(self, request_id: str) -> str:
        return self.record(request_id).parts[0].host

    def cause(self, request_id: str) -> Cause:
        return self.record(request_id).reason.cause

    def sentence(self, request_id: str) -> str:
        return self.record(request_id).reason.sentence


def machine(machine_id: str, cpus: int = 1, memory: float = 1.0, **more: Any) -> Machine:
    facts: dict[str, Any] = {
        "name": machine_id,
        "owner": 1000,
        "host": "",
        "environment": "mini",
        "image": "digest",
        "state": State.RUNNING,
        "reason": "",
        "created": 1.0,
        "changed": 1.0,
    }
    return Machine(id=machine_id, size=Size(cpus, int(memory * GIB)), **{**facts, **more})
