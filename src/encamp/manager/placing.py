"""Carrying out what the core decides about requests, in order, each written down before it is done.

Whoever has to wait waits alone: what follows a write waits for that write, what a host is told of
one machine waits for what it was told of the same machine before, and nothing else waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from encamp.bus.messages import Claim, Release, encode
from encamp.core.actions import (
    BeginPart,
    ClaimRoom,
    EndPart,
    PlacementAction,
    ReleaseRoom,
    WriteRequest,
)
from encamp.core.happenings import ClaimAnswered, PartMoved
from encamp.core.picture import joined
from encamp.manager.parts import RUN, as_argument, is_standing, part_id, part_moved
from encamp.manager.workplace import Workplace
from encamp.manager.writing import FIRST_PAUSE, LONGEST_PAUSE, Writing
from encamp.meeting import tickets
from encamp.model.command import OVER, CommandRecord, CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value
from encamp.model.request import (
    PLACED,
    Cause,
    PartState,
    RequestRecord,
    RequestState,
    claim_id,
)

log = logging.getLogger(__name__)

ANSWER = 10.0
"""Seconds that a host has to answer a claim."""

CAUSES = {
    Code.NO_ROOM: Cause.NO_ROOM,
    Code.DISK_FULL: Cause.NO_ROOM,
    Code.UNREACHABLE: Cause.ABSENT,
    Code.UNKNOWN_ENVIRONMENT: Cause.ENVIRONMENT,
    Code.CONFIGURATION: Cause.ENVIRONMENT,
    Code.NOT_PERMITTED: Cause.ENVIRONMENT,
    Code.PROGRAM_MISSING: Cause.ENVIRONMENT,
    Code.UNTRUSTED: Cause.ENVIRONMENT,
}
"""Why a host does not promise a machine, by the code of its refusal."""

BEGUN = frozenset({RequestState.STARTING, RequestState.RUNNING})
"""States in which hosts may have been told to make machines."""

PartAction = ClaimRoom | ReleaseRoom | BeginPart | EndPart


class Placing:
    def __init__(self, workplace: Workplace) -> None:
        self._core = workplace.core
        self._dispatcher = workplace.dispatcher
        self._bus = workplace.bus
        self._pace = workplace.pace
        self._happened = workplace.happened
        self._site = workplace.site
        self._key = workplace.ticket_key
        self.inherited: set[str] = set()
        """Requests that a former manager may have begun."""
        self._begun: dict[str, dict[str, str]] = {}
        """Of each request, the commands that are issued for it, by `claim_id`, and their hosts."""
        self.writing = Writing(workplace.store, workplace.recorder, self._do)
        self._turns: dict[str, asyncio.Task[None]] = {}
        """What is being done last about each part, by its `claim_id`."""
        self._ending: set[str] = set()
        """Those of them whose end is under way."""

    # ── what is decided ──────────────────────────────────────────────────────────────────────────

    def take(self, actions: Iterable[PlacementAction]) -> None:
        for action in actions:
            match action:
                case WriteRequest():
                    self.writing.take(action.record)
                    if action.record.state not in PLACED:
                        self._end_what_is_left(action.record.request.id)
                case ClaimRoom():
                    # At once: a claim ends by itself, and nothing begins by it.
                    self._in_turn(action, self._claim)
                case ReleaseRoom():
                    self._in_turn(action, self._release)
                case BeginPart() | EndPart():
                    self.writing.then(action)

    def begun(self, command: CommandRecord) -> None:
        """A machine of a request may be there, or may yet come to be."""
        part = part_id(command.id)
        if part is not None:
            self._begun.setdefault(part.request, {})[command.id] = command.host

    def _end_what_is_left(self, request: str) -> None:
        """An attempt is over, one way or the other. What a host has not heard of yet, since it is
        not there, is not to begin when it comes back."""
        for name, host in self._begun.pop(request, {}).items():
            going_on = name in self._dispatcher.commands.records or name in self._turns
            if name in self._ending:
                continue  # That is its end.
            part = part_id(name)
            if going_on and part is not None:
                # At once: it may be sent any moment.
                self._dispatcher.commands.to_stop.add(name)
                self.writing.then(
                    EndPart(
                        request=part.request,
                        number=part.number,
                        attempt=part.attempt,
                        host=host,
                    )
                )

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self.writing.run()
        finally:
            tasks = list(self._turns.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _do(self, action: BeginPart | EndPart) -> None:
        """What had to be written before is on the disk."""
        self._in_turn(action, self._begin if isinstance(action, BeginPart) else self._end)

    # ── what hosts are told, one thing after the other for each part ─────────────────────────────

    def _in_turn(
        self, action: PartAction, work: Callable[[PartAction, str], Awaitable[None]]
    ) -> None:
        name = claim_id(action.request, action.number, action.attempt)
        former = self._turns.get(name)

        async def turn() -> None:
            if former is not None:
                await asyncio.wait([former])
            try:
                await work(action, name)
            except Exception:
                log.exception("A mistake was made with %s.", name)

        task = asyncio.create_task(turn(), name=f"{type(action).__name__} {name}")
        self._turns[name] = task
        if isinstance(action, EndPart):
            self._ending.add(name)
        task.add_done_callback(lambda over: self._had_turn(name, over))

    def _had_turn(self, name: str, task: asyncio.Task[None]) -> None:
        if self._turns.get(name) is task:
            del self._turns[name]
            self._ending.discard(name)

    def _record(self, action: PartAction) -> RequestRecord | None:
        """The request, if it is still about this attempt."""
        record = self._core.placement.records.get(action.request)
        return record if record is not None and record.attempt == action.attempt else None

    async def _claim(self, action: PartAction, name: str) -> None:
        record = self._record(action)
        if record is None:
            return
        request = record.request
        claim = Claim(
            id=name,
            owner=request.owner,
            environment=request.environment,
            described=request.described is not None,
            own=request.own,
            size=request.size,
            seconds=self._site().placement.claim,
        )
        refusal, cause = "", Cause.NONE
        await self._pace.turn()
        try:
            await self._bus.request(action.host, encode(claim), timeout=ANSWER)
        except EncampError as error:
            refusal, cause = error.sentence, CAUSES.get(error.code, Cause.CLAIM)
        self._happened(
            ClaimAnswered(
                request=action.request,
                number=action.number,
                attempt=action.attempt,
                refusal=refusal,
                cause=cause,
            )
        )
        if cause is Cause.ABSENT:
            # It may have promised all the same.
            await self._release(action, name)

    async def _release(self, action: PartAction, name: str) -> None:
        try:
            await self._bus.request(action.host, encode(Release(id=name)), timeout=ANSWER)
        except EncampError as error:
            log.info("Host %s keeps room for a while that nobody needs: %s", action.host, error)

    async def _begin(self, action: PartAction, name: str) -> None:
        record = self._record(action)
        if record is None or record.state not in BEGUN or await self._was_begun(action, name):
            return
        secret = tickets.secret_for(self._key, name)
        try:
            command = self._dispatcher.prepared(
                name,
                action.host,
                RUN,
                {
                    "request": as_argument(record.request),
                    "number": action.number,
                    "ticket": tickets.digest(secret),
                },
                record.request.owner,
            )
        except EncampError as error:
            self._never_began(action, error.sentence)
            await self._release(action, name)
            return
        self.begun(command)
        await self._until_written(lambda: self._dispatcher.issue_prepared([command]))

    async def _was_begun(self, action: PartAction, name: str) -> bool:
        """By a former manager, perhaps; or by this one, before its host was lost for a while."""
        if name in self._dispatcher.commands.records:
            return True
        return action.request in self.inherited and await self._find(name) is not None

    async def _find(self, name: str) -> CommandRecord | None:
        """However long the store takes to answer."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._dispatcher.commands.find(name)
            except EncampError as error:
                log.warning("%s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _never_began(self, action: PartAction, failure: str) -> None:
        self._happened(
            PartMoved(
                request=action.request,
                number=action.number,
                attempt=action.attempt,
                state=PartState.OVER,
                failure=failure,
                cause=Cause.ABSENT,
                began=False,
                host=action.host,
            )
        )

    async def _until_written(self, work: Callable[[], Awaitable[object]]) -> None:
        """Nobody knows what a store that breaks off has written, so it is written again."""
        pause = FIRST_PAUSE
        while True:
            try:
                await work()
                return
            except EncampError as error:
                log.warning("%s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _end(self, action: PartAction, name: str) -> None:
        command = self._dispatcher.commands.records.get(name) or await self._find(name)
        if command is None:
            self._never_began(action, "it was ended before it began")
        elif command.state not in OVER:
            await self._until_written(lambda: self._dispatcher.stop(command))
        elif is_standing(command):
            await self._remove(action, command)
        else:
            moved = part_moved(command)
            if moved is not None:
                self._happened(moved)

    async def _remove(self, action: PartAction, command: CommandRecord) -> None:
        """End a machine that stands, as soon as its host is there; until it is gone."""
        moved = part_moved(command)
        machine = moved.machine if moved is not None else ""
        await self._remove_machine(action, command, machine)
        if not self._is_gone(action.host, machine):
            return  # Its host will tell.
        # It may have told so before anybody knew whose it was.
        self._happened(
            PartMoved(
                request=action.request,
                number=action.number,
                attempt=action.attempt,
                host=action.host,
                state=PartState.OVER,
                machine=machine,
                began=True,
            )
        )

    async def _remove_machine(
        self, action: PartAction, command: CommandRecord, machine: str
    ) -> None:
        arguments: dict[str, Value] = {"machine": machine, "force": True}
        pause = FIRST_PAUSE
        while True:
            try:
                [issued] = await self._dispatcher.issue(
                    [action.host], "machine.remove", arguments, command.issuer
                )
                end = await self._dispatcher.commands.end_of(issued.id)
                if end.state is CommandState.DONE:
                    return
                log.warning("%s cannot be removed from %s: %s", machine, action.host, end.reason)
            except EncampError as error:
                log.info("Machine %s is not removed yet: %s", machine, error)
            if self._is_gone(action.host, machine):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _is_gone(self, host: str, machine: str) -> bool:
        """A host that is not there may have it still."""
        state = self._core.picture.hosts.get(host)
        return state is None or (joined(state.record) and machine not in state.machines)
