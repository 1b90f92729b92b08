"""The machines of a request, from the moment all hosts have promised them until they are over."""

from __future__ import annotations

import msgspec

from encamp.core.actions import BeginPart
from encamp.core.happenings import PartMoved
from encamp.core.placement.books import Books
from encamp.core.placement.ending import Ending
from encamp.core.placement.queue import Entry
from encamp.core.placement.reasons import listed
from encamp.model.request import UNDER_WAY, Cause, Part, PartState, Reason, RequestState

_NOT_TRIED = frozenset({Cause.CLAIM, Cause.ABSENT})
"""Its host had forgotten its promise, or was gone before it heard of it: nobody's failure."""


class Parts:
    def __init__(self, books: Books, ending: Ending) -> None:
        self._books = books
        self._ending = ending

    def begin(self, entry: Entry, now: float) -> None:
        books = self._books
        hosts = [part.host for part in entry.record.parts]
        books.write(
            entry,
            now,
            state=RequestState.STARTING,
            parts=tuple(
                msgspec.structs.replace(part, state=PartState.STARTING)
                for part in entry.record.parts
            ),
            reason=Reason(
                cause=Cause.START,
                sentence=f"{_machines(entry)} being made on {listed(hosts)}",
                since=now,
            ),
        )
        books.note(entry, now, f"{listed(hosts)} promised room")
        self.begin_parts(entry)

    def begin_parts(self, entry: Entry) -> None:
        """Those of which nothing was heard; again after a restart of the manager."""
        self._books.actions += [
            BeginPart(
                request=entry.request.id,
                number=part.number,
                attempt=entry.record.attempt,
                host=part.host,
            )
            for part in entry.record.parts
            if part.state is PartState.STARTING and not part.began
        ]

    def moved(self, moved: PartMoved, now: float) -> None:
        books = self._books
        entry = books.entries[moved.request]
        record = entry.record
        if (
            record.attempt != moved.attempt
            or record.state not in UNDER_WAY
            or not 0 <= moved.number < len(record.parts)
        ):
            self._ending.end_stranger(moved)
            return
        part = record.parts[moved.number]
        if part.state is PartState.OVER:
            if part.lost and moved.state is PartState.OVER and not moved.unknown:
                self._told_at_last(entry, part, moved, now)
            return
        books.identify(entry, part.number, part.host, moved.machine)
        if moved.state is PartState.OVER:
            self._part_over(entry, part, moved, now)
        elif moved.state is PartState.RUNNING:
            self._part_runs(entry, part, moved, now)
        else:
            self._part_starts(entry, part, moved, now)

    def _told_at_last(self, entry: Entry, part: Part, moved: PartMoved, now: float) -> None:
        """It was given up since its host was gone, and others of the request are not over yet."""
        books = self._books
        books.part(
            entry,
            part.number,
            exit_code=moved.exit_code,
            failure=moved.failure,
            problem=moved.problem,
            machine=moved.machine or part.machine,
            began=part.began or moved.began or moved.exit_code is not None,
            lost=False,
        )
        entry.is_lost = any(part.lost for part in entry.record.parts)
        if not entry.record.to_stop:
            failed = [f"{one.host}: {one.failure}" for one in entry.record.parts if one.failure]
            entry.blame = failed[0] if failed else ""
            entry.final = entry.final or moved.final
        books.write(entry, now)

    def _part_starts(self, entry: Entry, part: Part, moved: PartMoved, now: float) -> None:
        books = self._books
        if moved.machine and moved.machine != part.machine:
            books.part(entry, part.number, machine=moved.machine)
            books.write(entry, now)
        if entry.lost_hosts or part.state is PartState.RUNNING:
            return
        if moved.cause is Cause.IMAGE:
            sentence = f"the image is still being copied to {part.host}, or built there"
            books.say(entry, Reason(cause=Cause.IMAGE, sentence=sentence, since=now))
        elif moved.cause is Cause.START:
            sentence = f"{_machines(entry)} being made on {part.host}"
            books.say(entry, Reason(cause=Cause.START, sentence=sentence, since=now))

    def _part_runs(self, entry: Entry, part: Part, moved: PartMoved, now: float) -> None:
        if self._ending.is_ending(entry):
            # It came up before its host had heard that it is to end.
            self._ending.end_parts(entry, part.number)
        if part.state is PartState.RUNNING and moved.machine in ("", part.machine):
            return
        books = self._books
        self._succeeded(entry, part)
        books.part(
            entry,
            part.number,
            state=PartState.RUNNING,
            machine=moved.machine or part.machine,
            began=True,
        )
        started = entry.record.started or now
        on = {PartState.RUNNING, PartState.OVER}
        if entry.record.state is RequestState.STARTING and all(
            part.state in on for part in entry.record.parts
        ):
            reason = entry.record.reason if entry.lost_hosts else Reason(since=now)
            books.write(entry, now, state=RequestState.RUNNING, reason=reason, started=started)
            books.note(entry, now, "its machines are there")
        else:
            books.write(entry, now, started=started)

    def _succeeded(self, entry: Entry, part: Part) -> None:
        books = self._books
        environment = entry.request.environment
        room = books.rooms.get(part.host)
        if room is not None and environment not in room.proven:
            room.proven.add(environment)
            books.views.touch(room.name, better=False)
        if books.sparing.succeeded(part.host, entry.request):
            books.views.touch(part.host, better=True)

    def _part_over(self, entry: Entry, part: Part, moved: PartMoved, now: float) -> None:
        books = self._books
        request = entry.request
        failure = moved.failure
        if not failure and moved.exit_code is None and request.job is not None:
            failure = "it ended, and nobody knows how"
        began = part.began or moved.began or moved.exit_code is not None
        books.part(
            entry,
            part.number,
            state=PartState.OVER,
            machine=moved.machine or part.machine,
            exit_code=moved.exit_code,
            failure=failure,
            problem=moved.problem,
            began=began,
            lost=moved.unknown,
        )
        entry.is_lost = entry.is_lost or moved.unknown
        books.give_back(request, part.number, part.host, now)
        if not any(one.host == part.host for one in _not_over(entry)):
            entry.lost_hosts.pop(part.host, None)
        if not failure:
            self._succeeded(entry, part)
        elif not entry.record.to_stop and not entry.blame:
            entry.blame = f"{part.host}: {failure}"
            entry.final, entry.code, entry.hint = moved.final, moved.code, moved.hint
            entry.cut_short = moved.lost
            entry.was_tried = moved.cause not in _NOT_TRIED
            if moved.cause is Cause.IMAGE and not books.views.has_image(request, part.host):
                # Others would only say the same, one after the other.
                entry.final = True
            elif moved.blames_environment or (entry.was_tried and not began and not moved.final):
                books.environment_failed(part.host, entry, failure, now)
        if books.sparing.end_trial(part.host, request):
            books.views.touch(part.host, better=True)
        self._ending.settle(entry, now)


def _not_over(entry: Entry) -> list[Part]:
    return [part for part in entry.record.parts if part.state is not PartState.OVER]


def _machines(entry: Entry) -> str:
    return "its machine is" if entry.request.count == 1 else "its machines are"
