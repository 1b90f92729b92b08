"""Carrying out what the core decides about requests, as the real manager does it: written down
first, claims asked of hosts, and commands sent until they are answered."""

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
from encamp.core.happenings import ClaimAnswered, Happening, PartMoved
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
from encamp.sim.news import News
from encamp.sim.said import Answer, Claim, Execute, Release, Remove, Told
from encamp.sim.sending import Outbox
from encamp.sim.standing import Standing
from encamp.sim.world import World
from encamp.sim.written import Issued, Written

ANSWER = 10.0
"""Seconds that an agent has to answer."""
LATER = 1.0
"""Seconds until what is only waited for is written down."""
LOST_AGAIN = 2
"""Introductions in which an agent does not speak of a command that it was given."""

BEGUN = frozenset({RequestState.STARTING, RequestState.RUNNING})
"""States in which hosts may have been told to make machines."""

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
        self.news = News(core, written, happened)
        self._flushing = False
        self.standing = Standing(core, world, written, happened, self._end_machine)

    def resume(self) -> None:
        """Go on with what a former manager left under way."""
        for commands in self._written.under_way.values():
            for issued in commands.values():
                issued.tried = True  # Who knows how far it got.
                self.news.begun.setdefault(issued.request, set()).add(issued.id)
                if issued.to_stop or not issued.taken:
                    self._outbox(issued.host).send(issued)
        for record in self._written.remembered():
            self.standing.see(record)

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
                    self.news.moved(known, known.result)

    def kill(self) -> None:
        self.alive = self.standing.alive = False
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
        self.standing.see(record)
        if record.state is RequestState.WAITING or record.state in REQUEST_OVER:
            self._end_what_is_left(request)
        if not self._flushing and record.state not in REQUEST_OVER:
            self._flushing = True
            self._clock.after(LATER, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.alive:
            self._written.flush()

    def _end_what_is_left(self, request: str) -> None:
        """An attempt is over, one way or the other. What a host has not heard of yet, since it is
        not there, is not to begin when it comes back."""
        for name in sorted(self.news.begun.pop(request, ())):
            issued = self._written.commands[name]
            if issued.result is None:
                self._stop(issued)

    def _claim(self, action: ClaimRoom) -> None:
        request = self._request(action.request)
        claim = Claim(
            _name(action),
            request.environment,
            request.size,
            self._policy.claim,
            request.machine.owner.uid,
        )
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
        self.news.begun.setdefault(issued.request, set()).add(issued.id)
        self._outbox(action.host).send(issued)

    def _end(self, action: EndPart) -> None:
        self._written.flush()
        issued = self._written.commands.get(_name(action))
        if issued is None:
            self._never_began(action, "it was ended before it began")
        elif issued.result is not None and issued.result.standing:
            self.standing.remove(issued)
        elif issued.result is not None:
            self.news.moved(issued, issued.result)
        else:
            self._stop(issued)

    def _end_machine(self, host: str, machine: str) -> None:
        """If its host is there to hear it."""
        if self.alive and self._outbox(host).joined:
            self.ask(host, Remove(machine), lambda answer: None)

    def _stop(self, issued: Issued) -> None:
        issued.to_stop = True
        if issued.taken or issued.tried:
            self._outbox(issued.host).send(issued)
        else:
            self.news.over(issued, Told(id=issued.id, over=True, failure="it was never sent"))

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
            request.machine.owner.uid,
            request.reuse,
        )

    def _sent(self, issued: Issued, answer: Answer) -> None:
        if issued.result is not None:
            return
        if answer.refusal:
            refused = Told(id=issued.id, over=True, failure=answer.refusal, cause=Cause.CLAIM)
            self.news.over(issued, refused)
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
                    self.news.over(
                        issued, Told(id=issued.id, over=True, failure=failure, lost=True)
                    )
        outbox.try_again()
        return again


def _name(action: ClaimRoom | ReleaseRoom | BeginPart | EndPart) -> str:
    return claim_id(action.request, action.number, action.attempt)
