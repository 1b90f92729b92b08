"""Hosts that are gone, and what they had of requests: waited for, given up, or found again."""

from __future__ import annotations

from encamp.core.actions import EndPart
from encamp.core.happenings import PartMoved
from encamp.core.placement.books import Books
from encamp.core.placement.claims import Claims
from encamp.core.placement.ending import Ending
from encamp.core.placement.queue import Entry
from encamp.core.placement.reasons import listed
from encamp.core.placement.timers import Due
from encamp.model.request import UNDER_WAY, Cause, PartState, Reason, RequestState


class Absence:
    def __init__(self, books: Books, claims: Claims, ending: Ending) -> None:
        self._books = books
        self._claims = claims
        self._ending = ending

    def host_gone(self, host: str, now: float) -> None:
        """It has left, or is lost. It may come back."""
        for entry in self._of_host(host):
            if entry.record.state is RequestState.CLAIMING:
                # What it has promised it forgets by itself.
                self._claims.back(entry, f"{host} was lost before it had promised room", now)
            else:
                self.wait_for(entry, host, now)

    def wait_for(self, entry: Entry, host: str, now: float) -> None:
        books = self._books
        until = now + books.policy.patience
        entry.lost_hosts[host] = until
        books.timers.add(until, Due.PATIENCE, entry.request.id, entry.record.attempt)
        books.note(entry, now, f"{host} is not heard of")
        books.write(
            entry,
            now,
            reason=Reason(
                cause=Cause.HOST_LOST,
                sentence=f"{host} is not heard of",
                since=now,
                next=f"It is waited for, {books.policy.patience:.0f} seconds from then on.",
            ),
        )

    def host_back(self, host: str, now: float) -> None:
        books = self._books
        for entry in self._of_host(host):
            if entry.lost_hosts.pop(host, None) is not None and not entry.lost_hosts:
                books.note(entry, now, f"{host} is back")
                running = entry.record.state is RequestState.RUNNING
                cause = Cause.NONE if running else Cause.START
                books.write(entry, now, reason=Reason(cause=cause, since=now))
            if entry.record.state in UNDER_WAY and self._ending.is_ending(entry):
                self._ending.end_parts(entry)

    def host_forgotten(self, host: str, now: float) -> None:
        """It will not come back."""
        for entry in self._of_host(host):
            if entry.record.state is RequestState.CLAIMING:
                self._claims.back(entry, f"{host} is no longer part of the site", now)
            else:
                self._give_up(entry, {host}, f"{host} is no longer part of the site", now)

    def patience_over(self, request: str, attempt: int, now: float) -> None:
        entry = self._books.entries.get(request)
        if entry is None or entry.record.attempt != attempt:
            return
        hosts = {host for host, until in entry.lost_hosts.items() if until <= now}
        if hosts:
            self._give_up(entry, hosts, f"{listed(sorted(hosts))} did not come back", now)

    def _give_up(self, entry: Entry, hosts: set[str], why: str, now: float) -> None:
        books = self._books
        others = False
        ended = self._ending.ends(entry)
        for part in entry.record.parts:
            if part.state is PartState.OVER:
                continue
            if part.host not in hosts:
                others = True
                continue
            books.part(entry, part.number, state=PartState.OVER, failure=why, lost=True)
            books.give_back(entry.request, part.number, part.host, now)
        for host in hosts:
            entry.lost_hosts.pop(host, None)
            books.sparing.end_trial(host, entry.request)
        entry.is_lost = True
        entry.blame = entry.blame or why
        if others:
            books.write(entry, now)
        else:
            self._ending.conclude(entry, now)
        # On the lost hosts too: what has not begun there shall not begin later.
        books.actions += ended

    def lost_moved(self, moved: PartMoved, now: float) -> None:
        """A request that was given up for lost, and whose host tells of it."""
        books = self._books
        record = books.lost.get(moved.request)
        if (
            record is None
            or record.attempt != moved.attempt
            or not 0 <= moved.number < len(record.parts)
        ):
            self._ending.end_stranger(moved)
            return
        part = record.parts[moved.number]
        if moved.state is not PartState.OVER:
            # Its owner was told that it is lost: it is not to go on unseen.
            books.actions.append(
                EndPart(
                    request=moved.request,
                    number=moved.number,
                    attempt=moved.attempt,
                    host=part.host,
                )
            )
            return
        if not part.lost or moved.unknown:
            return
        if part.began and moved.exit_code is None and not moved.began:
            # It has begun there, and the host has forgotten: it has another disk, say.
            return
        del books.lost[moved.request]
        entry = Entry(record)
        books.entries[moved.request] = entry
        books.part(
            entry,
            part.number,
            exit_code=moved.exit_code,
            failure=moved.failure,
            problem=moved.problem,
            machine=moved.machine,
            lost=False,
        )
        if any(part.lost for part in entry.record.parts):
            books.write(entry, now)
        else:
            self._ending.conclude_lost(entry, now)

    def _of_host(self, host: str) -> list[Entry]:
        room = self._books.rooms.get(host)
        if room is None:
            return []
        ids = dict.fromkeys(request for request, _ in room.promises)
        return [self._books.entries[request] for request in ids]
