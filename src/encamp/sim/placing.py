"""Carrying out what the core decides about requests, as the real manager does it: written down
first, claims asked of hosts, commands sent until they are answered, and their ends told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from encamp.core.actions import (
    BeginPart,
    ClaimRoom,
    EndPart,
    PlacementAction,
    ReleaseRoom,
    WriteRequest,
)
from encamp.core.happenings import ClaimAnswered, Happening, Joined, PartMoved, Remembered, Reported
from encamp.core.step import Core
from encamp.model.policy import Policy
from encamp.model.request import (
    REQUEST_OVER,
    Cause,
    PartState,
    Request,
    RequestRecord,
    RequestState,
    claim_id,
)
from encamp.sim.bus import Bus
from encamp.sim.host import World
from encamp.sim.said import Answer, Claim, Execute, Release, Remove, Told
from encamp.sim.sending import Outbox
from encamp.sim.written import Issued, Written

ANSWER = 10.0
"""Seconds that an agent has to answer."""
LATER = 1.0
"""Seconds until what is only waited for is written down."""
LOST_AGAIN = 2
"""Introductions in which an agent does not speak of a command that it was given."""

AGAIN = 5.0
"""Seconds after which a machine is removed again that is still there."""

BEGUN = frozenset({RequestState.STARTING, RequestState.RUNNING})
"""States in which hosts may have been told to make machines."""

CAUSES = {"image": Cause.IMAGE, "start": Cause.START}
RUNNING = "running"

Agents = Mapping[str, Callable[[msgspec.Struct], Answer]]
"""How to reach the agent of each host, whichever runs there."""


class Placing:
    def __init__(
        self,
        core: Core,
        world: World,
        written: Written,
        bus: Bus,
        agents: Agents,
        policy: Policy,
        happened: Callable[[Happening], None],
    ) -> None:
        self._core = core
        self._world = world
        self._clock = world.clock
        self._written = written
        self._bus = bus
        self._agents = agents
        self._policy = policy
        self._happened = happened
        self.alive = True
        self._outboxes: dict[str, Outbox] = {}
        self._missing: dict[str, int] = {}
        self._begun: dict[str, set[str]] = {}
        """Of each request, the commands that were issued for it and may not be over."""
        self._flushing = False
        self._standing: dict[str, Issued] = {}
        """Commands that are over and whose machines stand, while their requests are not over."""

    def resume(self) -> None:
        """Go on with what a former manager left under way."""
        for commands in self._written.under_way.values():
            for issued in commands.values():
                issued.tried = True  # Who knows how far it got.
                self._begun.setdefault(issued.request, set()).add(issued.id)
                if issued.to_stop or not issued.taken:
                    self._outbox(issued.host).send(issued)
        for record in self._written.remembered():
            if record.request.job is None:
                self._stand(record)

    def catch_up(self) -> None:
        """Tell what is known of the machines of requests that a former manager has begun; what
        belongs to an attempt that was given up is stopped."""
        for commands in list(self._written.under_way.values()):
            for issued in list(commands.values()):
                now = self._core.placement.records.get(issued.request)
                if now is None or now.attempt != issued.attempt or now.state not in BEGUN:
                    self._stop(issued)
        for record in [*self._written.remembered(), *self._written.not_settled()]:
            for part in record.parts:
                name = claim_id(record.request.id, part.number, record.attempt)
                known = self._written.commands.get(name)
                if known is not None and known.result is not None:
                    self._moved(known, known.result)

    def kill(self) -> None:
        self.alive = False
        self._written.lose()
        for outbox in self._outboxes.values():
            outbox.alive = False

    # ── what is decided ──────────────────────────────────────────────────────────────────────────

    def take(self, action: PlacementAction) -> None:
        match action:
            case WriteRequest():
                self._write(action.record)
            case ClaimRoom():
                self._claim(action)
            case ReleaseRoom():
                self._release(action.host, _name(action))
            case BeginPart():
                self._begin(action)
            case EndPart():
                self._end(action)

    def _write(self, record: RequestRecord) -> None:
        request = record.request.id
        self._world.log.say("manager", "writes", request, record.state.value, record.attempt)
        self._written.write(record)
        if record.request.job is None:
            self._stand(record)
        if record.state is RequestState.WAITING or record.state in REQUEST_OVER:
            self._end_what_is_left(request)
        if not self._flushing and record.state not in REQUEST_OVER:
            self._flushing = True
            self._clock.after(LATER, self._flush)

    def _stand(self, record: RequestRecord) -> None:
        for part in record.parts:
            name = claim_id(record.request.id, part.number, record.attempt)
            issued = self._written.commands.get(name)
            if issued is None or issued.result is None or not issued.result.standing:
                continue
            if part.state is PartState.RUNNING and record.state not in REQUEST_OVER:
                self._standing[name] = issued
            else:
                self._standing.pop(name, None)

    def _flush(self) -> None:
        self._flushing = False
        if self.alive:
            self._written.flush()

    def _end_what_is_left(self, request: str) -> None:
        """An attempt is over, one way or the other. What a host has not heard of yet, since it is
        not there, is not to begin when it comes back."""
        for name in sorted(self._begun.pop(request, ())):
            issued = self._written.commands[name]
            if issued.result is None:
                self._stop(issued)

    def _claim(self, action: ClaimRoom) -> None:
        request = self._request(action.request)
        claim = Claim(_name(action), request.environment, request.size, self._policy.claim)
        self.ask(action.host, claim, lambda answer: self._claimed(action, answer))

    def _claimed(self, action: ClaimRoom, answer: Answer | None) -> None:
        silent = answer is None
        if answer is None:
            answer = Answer(f"{action.host} did not answer", Cause.ABSENT)
        self._happened(
            ClaimAnswered(
                request=action.request,
                number=action.number,
                attempt=action.attempt,
                refusal=answer.refusal,
                cause=answer.cause,
            )
        )
        if silent:
            # It may have promised all the same.
            self._release(action.host, _name(action))

    def _release(self, host: str, name: str) -> None:
        if self.alive:
            self.ask(host, Release(name), lambda answer: None)

    def _begin(self, action: BeginPart) -> None:
        self._written.flush()
        issued = Issued(action.request, action.number, action.attempt, action.host)
        if issued.id in self._written.commands:
            return
        if not self._outbox(action.host).joined:
            self._never_began(action, f"{action.host} is not there")
            self._release(action.host, issued.id)
            return
        self._written.issue(issued)
        self._begun.setdefault(issued.request, set()).add(issued.id)
        self._outbox(action.host).send(issued)

    def _end(self, action: EndPart) -> None:
        self._written.flush()
        issued = self._written.commands.get(_name(action))
        if issued is None:
            self._never_began(action, "it was ended before it began")
        elif issued.result is not None and issued.result.standing:
            self._remove(issued)
        elif issued.result is not None:
            self._moved(issued, issued.result)
        else:
            self._stop(issued)

    def _remove(self, issued: Issued) -> None:
        """End a machine that stands, as soon as its host is there; until it is gone."""
        assert issued.result is not None
        state = self._core.picture.hosts.get(issued.host)
        if not self.alive or state is None:
            return
        joined, machine = self._outbox(issued.host).joined, issued.result.machine
        if joined and machine not in state.machines:
            self._happened(_vanished(issued, machine))
            return
        if joined:
            self.ask(issued.host, Remove(machine), lambda answer: None)
        self._clock.after(AGAIN, self._remove, issued)

    def _stop(self, issued: Issued) -> None:
        issued.to_stop = True
        if issued.taken or issued.tried:
            self._outbox(issued.host).send(issued)
        else:
            self._over(issued, Told(id=issued.id, over=True, failure="it was never sent"))

    def _never_began(self, action: BeginPart | EndPart, failure: str) -> None:
        self._happened(
            PartMoved(
                request=action.request,
                number=action.number,
                attempt=action.attempt,
                state=PartState.OVER,
                failure=failure,
                cause=Cause.ABSENT,
                host=action.host,
            )
        )

    def _request(self, request: str) -> Request:
        record = self._written.latest(request)
        assert record is not None
        return record.request

    # ── hosts ────────────────────────────────────────────────────────────────────────────────────

    def ask(
        self, host: str, message: msgspec.Struct, then: Callable[[Answer | None], None]
    ) -> None:
        self._bus.ask(
            host,
            True,
            self._agents[host],
            message,
            lambda answer: then(answer) if self.alive else None,
            ANSWER,
        )

    def _outbox(self, host: str) -> Outbox:
        outbox = self._outboxes.get(host)
        if outbox is None:
            outbox = Outbox(host, self._clock, self.ask, self._execute, self._sent)
            self._outboxes[host] = outbox
        return outbox

    def _execute(self, issued: Issued) -> Execute:
        request = self._request(issued.request)
        return Execute(
            issued.id,
            issued.request,
            issued.number,
            request.environment,
            request.size,
            request.job is None,
        )

    def _sent(self, issued: Issued, answer: Answer) -> None:
        if issued.result is not None:
            return
        if answer.refusal:
            refused = Told(id=issued.id, over=True, failure=answer.refusal, cause=Cause.CLAIM)
            self._over(issued, refused)
        else:
            issued.taken = True

    def host_gone(self, host: str) -> None:
        self._outbox(host).joined = False

    def host_joined(self, host: str, under_way: Sequence[str]) -> bool:
        """An agent has introduced itself, with the commands it has. True: it should do so again,
        since it did not speak of one that it may have been given just then."""
        outbox = self._outbox(host)
        outbox.joined = True
        again = False
        for issued in list(self._written.under_way.get(host, {}).values()):
            if issued.id in under_way:
                issued.taken = True
                self._missing.pop(issued.id, None)
                if issued.to_stop:
                    outbox.send(issued)
            elif not issued.taken or issued.to_stop:
                outbox.send(issued)
            else:
                missed = self._missing[issued.id] = self._missing.get(issued.id, 0) + 1
                again = again or missed < LOST_AGAIN
                if missed >= LOST_AGAIN:
                    failure = "its agent knows nothing of it any more"
                    self._over(issued, Told(id=issued.id, over=True, failure=failure, lost=True))
        outbox.try_again()
        return again

    def vanished(self, told: Joined | Reported) -> list[PartMoved]:
        """The machines that stood on a host and are gone, before the core is told."""
        state = self._core.picture.hosts.get(told.name)
        if told.machines is None or not self._standing:
            return []
        before = state.machines if state is not None else {}
        present = {machine.id for machine in told.machines}
        moved = []
        for issued in self._standing.values():
            result = issued.result
            assert result is not None
            gone = result.machine not in present and (
                result.machine in before or isinstance(told, Joined)
            )
            if issued.host == told.name and gone:
                moved.append(_vanished(issued, result.machine))
        return moved

    # ── news ─────────────────────────────────────────────────────────────────────────────────────

    def told(self, host: str, told: Told) -> None:
        """How a command gets on, as its agent tells."""
        issued = self._written.commands.get(told.id)
        if issued is None or issued.host != host:
            return
        if issued.result is not None:
            if issued.result.lost and told.over and not told.lost:
                # It was thought lost, and its host has come back and tells.
                self._over(issued, told)
            return
        issued.taken = True
        if told.over:
            self._over(issued, told)
        else:
            issued.told = told
            self._moved(issued, told)

    def _over(self, issued: Issued, told: Told) -> None:
        self._written.over(issued, told)
        self._begun.get(issued.request, set()).discard(issued.id)
        self._moved(issued, told)

    def _moved(self, issued: Issued, told: Told) -> None:
        if not told.over and told.phase not in (*CAUSES, RUNNING):
            return
        if told.over and issued.request not in self._core.placement.records:
            record = self._written.latest(issued.request)
            if record is not None and record.state is RequestState.LOST:
                self._happened(Remembered(record))
        running = PartState.RUNNING if told.phase == RUNNING else PartState.STARTING
        self._happened(
            PartMoved(
                request=issued.request,
                number=issued.number,
                attempt=issued.attempt,
                state=PartState.OVER if told.over and not told.standing else running,
                machine=told.machine,
                exit_code=told.exit_code,
                failure=told.failure,
                cause=told.cause if told.over else CAUSES.get(told.phase, Cause.NONE),
                began=_may_have_begun(issued, told),
                blames_environment=told.blames_environment,
                final=told.final,
                host=issued.host,
            )
        )


def _vanished(issued: Issued, machine: str) -> PartMoved:
    """A machine that stood is gone."""
    return PartMoved(
        request=issued.request,
        number=issued.number,
        attempt=issued.attempt,
        host=issued.host,
        state=PartState.OVER,
        machine=machine,
        began=True,
    )


def _name(action: ClaimRoom | ReleaseRoom | BeginPart | EndPart) -> str:
    return claim_id(action.request, action.number, action.attempt)


def _may_have_begun(issued: Issued, told: Told) -> bool:
    """Only what is known not to have begun may be begun elsewhere."""
    if told.lost and not told.phase:
        return not (issued.told is not None and issued.told.phase in CAUSES)
    return told.phase == RUNNING
