"""Asking hosts for room: nothing is begun before all of them have promised it."""

from __future__ import annotations

from encamp.core.actions import ClaimRoom
from encamp.core.happenings import ClaimAnswered
from encamp.core.placement.books import Books
from encamp.core.placement.ending import Ending
from encamp.core.placement.parts import Parts
from encamp.core.placement.queue import Entry
from encamp.core.placement.reasons import listed
from encamp.core.placement.timers import Due
from encamp.model.request import Cause, Part, PartState, Reason, RequestState

MARGIN = 5.0
"""Seconds beyond the life of a promise that an answer is waited for."""

PASSED_OVER = 20.0
"""Seconds for which a host that has refused a request is not asked for the same again."""

PASSED_BY = 600.0
"""The same, if it says that it makes no such machines."""


class Claims:
    def __init__(self, books: Books, parts: Parts, ending: Ending) -> None:
        self._books = books
        self._parts = parts
        self._ending = ending

    def ask(self, entry: Entry, hosts: list[str], now: float) -> None:
        """Ask the hosts that were chosen; their room is taken already."""
        books = self._books
        books.wait_no_more(entry, now)
        books.queue.reorder(entry.request.owner, now)
        attempt = entry.record.attempt + 1
        where = listed(hosts)
        books.note(entry, now, f"chosen: {where}")
        books.write(
            entry,
            now,
            state=RequestState.CLAIMING,
            attempt=attempt,
            parts=tuple(Part(number=number, host=host) for number, host in enumerate(hosts)),
            reason=Reason(
                cause=Cause.CLAIM,
                sentence=f"room for it is being reserved on {where}",
                since=now,
                next="Its machines are made as soon as the answer is there.",
            ),
        )
        request = entry.request.id
        books.actions += [
            ClaimRoom(request=request, number=number, attempt=attempt, host=host)
            for number, host in enumerate(hosts)
        ]
        books.timers.add(now + books.policy.claim + MARGIN, Due.CLAIM, request, attempt)

    def answered(self, answered: ClaimAnswered, now: float) -> None:
        entry = self._books.entries.get(answered.request)
        if (
            entry is None
            or entry.record.state is not RequestState.CLAIMING
            or entry.record.attempt != answered.attempt
            or not 0 <= answered.number < len(entry.record.parts)
        ):
            return
        part = entry.record.parts[answered.number]
        if part.state is not PartState.CLAIMING:
            return
        if answered.refusal:
            self._refused(entry, part.host, answered.refusal, answered.cause, now)
            return
        self._books.sparing.promised(part.host)
        self._books.part(entry, part.number, state=PartState.CLAIMED)
        if all(part.state is PartState.CLAIMED for part in entry.record.parts):
            self._parts.begin(entry, now)

    def expired(self, request: str, attempt: int, now: float) -> None:
        entry = self._books.entries.get(request)
        if (
            entry is None
            or entry.record.state is not RequestState.CLAIMING
            or entry.record.attempt != attempt
        ):
            return
        silent = [part.host for part in entry.record.parts if part.state is PartState.CLAIMING]
        for host in dict.fromkeys(silent):
            self._books.distrust(host, "it does not answer when it is asked for room", now)
            self._pass_over(entry, host, now)
        self.back(entry, f"{listed(silent)} did not answer", now)

    def _refused(self, entry: Entry, host: str, refusal: str, cause: Cause, now: float) -> None:
        if cause is Cause.ENVIRONMENT:
            # For this owner, or of this environment, it will make none.
            self._pass_over(entry, host, now, PASSED_BY)
        else:
            if cause is not Cause.ABSENT:
                self._books.distrust(host, refusal, now)
            self._pass_over(entry, host, now)
        self.back(entry, f"{host} would not: {refusal}", now)

    def _pass_over(self, entry: Entry, host: str, now: float, seconds: float = PASSED_OVER) -> None:
        entry.passed[host] = now + seconds
        self._books.timers.add(now + seconds, Due.AGAIN)

    def back(self, entry: Entry, why: str, now: float) -> None:
        """To the queue: nothing of it has begun."""
        books = self._books
        self._ending.release(entry, now)
        books.note(entry, now, why)
        books.write(
            entry,
            now,
            state=RequestState.WAITING,
            parts=(),
            reason=Reason(
                cause=Cause.RETRY, sentence=why, since=now, next="Other hosts are tried."
            ),
        )
        books.wait(entry, now)
