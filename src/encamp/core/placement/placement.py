"""Placement: requests wait here until hosts have promised to make all of their machines.

Pure: what happens goes in, what is to be done about requests comes out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from encamp.core.actions import PlacementAction
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
    Remembered,
    Reported,
    StoodStill,
    Submitted,
)
from encamp.core.picture import Picture
from encamp.core.placement.absence import Absence
from encamp.core.placement.books import Books
from encamp.core.placement.checking import Checker, check_ranks
from encamp.core.placement.claims import Claims
from encamp.core.placement.ending import Ending
from encamp.core.placement.explaining import explain_host, explain_request
from encamp.core.placement.hosts import Hosts
from encamp.core.placement.parts import Parts
from encamp.core.placement.passing import Passing
from encamp.core.placement.queue import Entry
from encamp.core.placement.records import Records
from encamp.core.placement.timers import Due
from encamp.core.world import Change
from encamp.model.event import Event
from encamp.model.policy import Policy
from encamp.model.request import (
    NOT_YET,
    PLACED,
    REQUEST_OVER,
    Cause,
    Explanation,
    PartState,
    Reason,
    Request,
    RequestRecord,
    RequestState,
)

STANDS_STILL = "the manager stands still, since its store was put back from a backup"
STILL_NEXT = "'encamp status' tells more."


class Placement:
    def __init__(self, picture: Picture, zone: datetime.tzinfo = datetime.UTC) -> None:
        self._picture = picture
        self._zone = zone
        self._books = Books(picture.world, zone)
        self._books.views.rule(self._books.policy.rank)
        self._ending = Ending(self._books)
        self._parts = Parts(self._books, self._ending)
        self._claims = Claims(self._books, self._parts, self._ending)
        self._absence = Absence(self._books, self._claims, self._ending)
        self._passing = Passing(self._books, self._claims)
        self._checker = Checker(self._books, picture)
        self._hosts = Hosts(self._books, picture, self._claims, self._absence)
        self._settled = False
        self.records: Mapping[str, RequestRecord] = Records(self._books)
        self._taken: dict[type[Happening], Callable[[Any, float], None]] = {
            Joined: self._hosts.joined,
            Gone: self._hosts.gone,
            Forgotten: self._hosts.forgotten,
            Reported: self._hosts.reported,
            EnvironmentsRead: self._environments_read,
            PolicyRead: self._policy_read,
            Submitted: self._submitted,
            Remembered: self._remembered,
            EndWanted: self._end_wanted,
            StoodStill: self._stood_still,
            ClaimAnswered: self._claims.answered,
            PartMoved: self._part_moved,
        }

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    def take(self, happening: Happening, now: float) -> None:
        """After the picture has taken it."""
        taken = self._taken.get(type(happening))
        if taken is not None:
            taken(happening, now)

    def decide(self, changes: list[Change], now: float) -> None:
        """What is to be done, now that these facts have changed?"""
        books = self._books
        if not self._settled:
            self._settled = True
            self._settle(now)
        books.views.take(changes)
        waited = []
        for due, subject, number in books.timers.pop(now):
            if due is Due.CLAIM:
                self._claims.expired(subject, number, now)
            elif due is Due.PATIENCE:
                self._absence.patience_over(subject, number, now)
            elif due is Due.WAITED:
                waited.append(subject)
            elif due is Due.AWAY:
                self._hosts.forget_machines(subject, now)
            elif due is Due.SPARED:
                books.views.touch(subject, better=True)
            else:
                books.epoch += 1
        self._passing.go(now)
        # There may just have been a place; and if not, it is known why.
        for request in waited:
            self._waited(request, now)

    def notice(self, changes: list[Change]) -> None:
        """Facts that placement itself has changed."""
        self._books.views.take(changes)

    def take_actions(self) -> list[PlacementAction]:
        actions, self._books.actions = self._books.actions, []
        return actions

    def take_events(self) -> list[Event]:
        events, self._books.events = self._books.events, []
        return events

    def next_look(self) -> float | None:
        """When `decide` is due though nothing happens; 0: at once."""
        times = (self._passing.next_look, self._books.timers.next())
        return min((time for time in times if time is not None), default=None)

    def _submitted(self, submitted: Submitted, now: float) -> None:
        request = submitted.request
        if request.id in self._books.entries:
            return
        record = RequestRecord(
            request=request, changed=request.submitted, reason=_not_yet(request.submitted)
        )
        self._books.wait(self._books.enter(record, now), now)

    def _remembered(self, remembered: Remembered, now: float) -> None:
        record = remembered.record
        books = self._books
        if record.state is RequestState.LOST:
            books.remember_lost(record)
        if record.state in REQUEST_OVER or record.request.id in books.entries:
            return
        if record.state is RequestState.WAITING and record.reason.cause is Cause.NONE:
            record = msgspec.structs.replace(record, reason=_not_yet(record.changed))
        entry = books.enter(record, now)
        if record.state is RequestState.WAITING:
            books.wait(entry, now)
            return
        entry.is_lost = any(part.lost for part in record.parts)
        for part in record.parts:
            if part.state is not PartState.OVER:
                books.promise(record.request, part.number, part.host, now, part.machine)

    def _settle(self, now: float) -> None:
        """The picture is whole: go on with what a former manager has left."""
        books = self._books
        for name in self._picture.hosts:
            books.room(name)
        for entry in list(books.entries.values()):
            if entry.record.state is RequestState.CLAIMING:
                self._claims.back(entry, "the manager was started anew", now)
            elif entry.record.state in PLACED:
                self._resume(entry, now)

    def _resume(self, entry: Entry, now: float) -> None:
        books = self._books
        for part in entry.record.parts:
            room = books.room(part.host)
            absent = not room.joined and part.state is not PartState.OVER
            if absent and part.host not in entry.lost_hosts:
                self._absence.wait_for(entry, part.host, now)
        if self._ending.is_ending(entry):
            self._ending.end_parts(entry)
        else:
            self._parts.begin_parts(entry)

    def _waited(self, request: str, now: float) -> None:
        """It was to wait no longer. One whose hosts are asked already goes back to the queue, or
        does not need to."""
        entry = self._books.entries.get(request)
        until = None if entry is None else entry.waits_until
        if entry is not None and entry.line is not None and until is not None and until <= now:
            self._ending.withdraw(entry, self.records[request].reason.sentence, now)

    def _stood_still(self, stood: StoodStill, now: float) -> None:
        """What waits is told why, and waits no longer than it was to."""
        for request, entry in list(self._books.entries.items()):
            if entry.line is not None:
                if entry.record.reason.sentence != STANDS_STILL:
                    reason = Reason(sentence=STANDS_STILL, since=now, next=STILL_NEXT)
                    self._books.say(entry, reason)
                self._waited(request, now)

    def _end_wanted(self, wanted: EndWanted, now: float) -> None:
        self._ending.end_wanted(wanted.request, wanted.by, now)

    def _part_moved(self, moved: PartMoved, now: float) -> None:
        if moved.request in self._books.entries:
            self._parts.moved(moved, now)
        else:
            self._absence.lost_moved(moved, now)

    def _policy_read(self, read: PolicyRead, now: float) -> None:
        books = self._books
        books.policy = read.policy
        # Whoever has mended something has the site's files read again.
        books.forgive()
        books.shares.rule(read.policy.shares, read.policy.half_life)
        for entry in books.entries.values():
            books.shares.account(entry.request.owner, entry.request.groups, now)
        books.recount(now)
        books.views.rule(read.policy.rank)
        for name, room in books.rooms.items():
            state = self._picture.hosts.get(name)
            if state is not None:
                books.measure(room, state.readings)
        books.epoch += 1

    def _environments_read(self, read: EnvironmentsRead, now: float) -> None:
        self._books.demand.tell_all()
        self._picture.batch_queue.tell_all()

    # ── questions ────────────────────────────────────────────────────────────────────────────────

    def check(self, request: Request) -> None:
        """Raises EncampError: it makes no sense, or could never be placed."""
        self._checker.check(request, whole=self._settled)

    def check_ranks(self, policy: Policy) -> None:
        """Raises EncampError: a rank of a policy makes no sense with what is known now."""
        check_ranks(policy, self._books)

    def why(self, request: str, now: float, hosts: int = 100) -> Explanation:
        """Of a request that is not over."""
        entry = self._books.entries[request]
        return explain_request(self._books, self._passing, entry, now, hosts, self._zone)

    def why_host(self, name: str, now: float, owner: str = "") -> Explanation:
        """What is on a host, what it has room for, what it is spared and until when. `owner`: who
        asks, and is not told whose jobs beside theirs have failed there."""
        state = self._picture.hosts[name]
        return explain_host(self._books, self._passing, state.record, now, owner)

    def waiting(self) -> dict[Cause, int]:
        """How many requests wait for what; without making a sentence for each of them."""
        return self._books.queue.causes()

    def oldest(self) -> float | None:
        """When the oldest of those that wait was submitted."""
        entry = self._books.queue.oldest()
        return entry.request.submitted if entry is not None else None

    def owner_of(self, request: str) -> str:
        """Whose a request is that is not over; empty: there is none."""
        entry = self._books.entries.get(request)
        return entry.request.owner if entry is not None else ""

    def owners_of_machines(self, host: str) -> dict[str, str]:
        """Of the machines on a host that were made for requests which are not over: whose they
        are."""
        room = self._books.rooms.get(host)
        promises = room.promises.values() if room is not None else ()
        return {one.machine: one.counted.owner for one in promises if one.machine}

    def usage(self, now: float) -> dict[str, float]:
        """Processor-seconds that each owner has used, as much as they still count."""
        return self._books.shares.usage(now)

    def recall_usage(self, used: Mapping[str, float], now: float) -> None:
        """Before requests are remembered: what `usage` said when it was last written down."""
        self._books.shares.recall(used, now)


def _not_yet(since: float) -> Reason:
    return Reason(cause=Cause.BEHIND, sentence=NOT_YET, since=since)
