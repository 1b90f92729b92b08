"""How requests end: by themselves, since somebody wants it, or since something failed.

Nothing goes back to the queue of which a command may have begun.
"""

from __future__ import annotations

from typing import Any

from encamp.core.actions import EndPart, ReleaseRoom
from encamp.core.happenings import PartMoved
from encamp.core.placement.books import Books
from encamp.core.placement.queue import Entry
from encamp.model.errors import Code
from encamp.model.request import (
    Cause,
    Forsaken,
    Part,
    PartState,
    Reason,
    RequestRecord,
    RequestState,
)


class Ending:
    def __init__(self, books: Books) -> None:
        self._books = books

    # ── wanted ───────────────────────────────────────────────────────────────────────────────────

    def end_wanted(self, request: str, by: str, now: float) -> None:
        books = self._books
        entry = books.entries.get(request)
        if entry is None:
            return
        record = entry.record
        wanted = Reason(sentence=f"{by} wanted it to end", since=now)
        if record.state is RequestState.WAITING:
            books.wait_no_more(entry, now)
            self.over(entry, RequestState.CANCELLED, wanted, now)
        elif record.state is RequestState.CLAIMING:
            self.release(entry, now)
            self.over(entry, RequestState.CANCELLED, wanted, now, parts=())
        elif not record.to_stop:
            entry.blame = f"{by} wanted it to end"
            books.note(entry, now, entry.blame)
            books.write(entry, now, to_stop=True)
            self.end_parts(entry)

    def withdraw(self, entry: Entry, why: str, now: float) -> None:
        """It has waited in the queue for as long as it was to. `why`: for what."""
        assert entry.request.wait_at_most is not None
        reason = Reason(
            cause=Cause.NOT_BEGUN,
            sentence=f"it had not begun after {entry.request.wait_at_most:g} seconds: {why}",
            since=now,
            next="Ask for less, or let it wait longer: --wait-at-most says how long.",
        )
        self._books.wait_no_more(entry, now)
        self.over(entry, RequestState.CANCELLED, reason, now)

    def release(self, entry: Entry, now: float) -> None:
        """Give back what was claimed for it."""
        books = self._books
        request = entry.request
        for part in entry.record.parts:
            books.give_back(request, part.number, part.host, now)
            books.sparing.end_trial(part.host, request)
            room = books.rooms.get(part.host)
            if room is not None and room.joined:
                books.actions.append(
                    ReleaseRoom(
                        request=request.id,
                        number=part.number,
                        attempt=entry.record.attempt,
                        host=part.host,
                    )
                )

    def end_parts(self, entry: Entry, only: int | None = None) -> None:
        ends = self.ends(entry)
        self._books.actions += [end for end in ends if only is None or end.number == only]

    def ends(self, entry: Entry) -> list[EndPart]:
        """Whatever of it is not over is to end."""
        return [
            EndPart(
                request=entry.request.id,
                number=part.number,
                attempt=entry.record.attempt,
                host=part.host,
            )
            for part in entry.record.parts
            if part.state is not PartState.OVER
        ]

    def is_ending(self, entry: Entry) -> bool:
        """Are its machines to end, since one failed or somebody wants it?"""
        return entry.record.to_stop or any(part.failure for part in entry.record.parts)

    def end_stranger(self, moved: PartMoved) -> None:
        """Something of an attempt that was given up: nobody wants it."""
        if moved.host and moved.state is not PartState.OVER:
            self._books.actions.append(
                EndPart(
                    request=moved.request,
                    number=moved.number,
                    attempt=moved.attempt,
                    host=moved.host,
                )
            )

    # ── come about ───────────────────────────────────────────────────────────────────────────────

    def settle(self, entry: Entry, now: float) -> None:
        """One of its machines is over. What of the others, and of itself?"""
        books = self._books
        record = entry.record
        if all(part.state is PartState.OVER for part in record.parts):
            self.conclude(entry, now)
            return
        books.write(entry, now)
        failed = [part for part in record.parts if part.failure]
        if len(failed) == 1 and not record.to_stop:
            self.end_parts(entry)

    def conclude(self, entry: Entry, now: float) -> None:
        record = entry.record
        failed = [part for part in record.parts if part.failure]
        codes = [part.exit_code for part in record.parts if part.exit_code is not None]
        code = max(codes, default=None)
        why = entry.blame or (f"{failed[0].host}: {failed[0].failure}" if failed else "")
        if record.to_stop:
            # Who that was is not known to a manager that has started since.
            why = why or "somebody wanted it to end"
        reason = Reason(sentence=why, since=now, next=entry.hint)
        if entry.is_lost:
            self._lose(entry, why, now)
        elif record.to_stop and (failed or not codes):
            self.over(entry, RequestState.CANCELLED, reason, now, exit_code=code)
        elif not failed:
            said = Reason(sentence=_problems(record), since=now)
            self.over(entry, RequestState.DONE, said, now, exit_code=code)
        else:
            failures = record.failures + entry.was_tried
            began = any(part.began for part in record.parts)
            if began and entry.cut_short and self._may_begin_anew(record):
                self._anew(entry, why, now)
            elif began or entry.final or failures >= self._books.policy.tries:
                self.over(entry, RequestState.FAILED, reason, now, exit_code=code, code=entry.code)
            else:
                self._again(entry, why, now, failures=failures)

    def conclude_lost(self, entry: Entry, now: float) -> None:
        """It was given up for lost, and all of its hosts have told since how it ended."""
        parts = entry.record.parts
        failures = [f"{part.host}: {part.failure}" for part in parts if part.failure]
        codes = [part.exit_code for part in parts if part.exit_code is not None]
        done = not failures and (bool(codes) or entry.request.job is None)
        self.over(
            entry,
            RequestState.DONE if done else RequestState.FAILED,
            Reason(sentence=_problems(entry.record) if done else "".join(failures[:1]), since=now),
            now,
            exit_code=max(codes, default=None),
        )

    def _lose(self, entry: Entry, why: str, now: float) -> None:
        if self._may_begin_anew(entry.record):
            self._anew(entry, why, now)
        else:
            self.over(entry, RequestState.LOST, Reason(sentence=why, since=now), now)

    @staticmethod
    def _may_begin_anew(record: RequestRecord) -> bool:
        return record.lost < record.request.retries and not record.to_stop

    def _anew(self, entry: Entry, why: str, now: float) -> None:
        """Though its command may have begun: whoever asked for it has allowed that."""
        record = entry.record
        forsaken = (*record.forsaken, *_forsaken(record))
        self._again(entry, why, now, lost=record.lost + 1, forsaken=forsaken)

    def _again(self, entry: Entry, why: str, now: float, **changes: Any) -> None:
        books = self._books
        entry.forget_attempt()
        books.note(entry, now, why)
        books.write(
            entry,
            now,
            state=RequestState.WAITING,
            parts=(),
            started=0.0,
            reason=Reason(
                cause=Cause.RETRY, sentence=why, since=now, next="Other hosts are tried."
            ),
            **changes,
        )
        books.wait(entry, now)

    def over(
        self,
        entry: Entry,
        state: RequestState,
        reason: Reason,
        now: float,
        *,
        parts: tuple[Part, ...] | None = None,
        exit_code: int | None = None,
        code: Code | None = None,
    ) -> None:
        books = self._books
        record = entry.record
        books.write(
            entry,
            now,
            state=state,
            reason=reason,
            ended=now,
            exit_code=exit_code,
            code=code,
            parts=record.parts if parts is None else parts,
        )


def _problems(record: RequestRecord) -> str:
    """What is to be said of commands that have come to an end of their own."""
    return " ".join(dict.fromkeys(part.problem for part in record.parts if part.problem))


def _forsaken(record: RequestRecord) -> list[Forsaken]:
    if record.request.job is not None:
        return []
    return [
        Forsaken(number=part.number, attempt=record.attempt, host=part.host, machine=part.machine)
        for part in record.parts
        if part.machine
    ]
