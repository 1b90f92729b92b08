"""Hosts come, go and report: what that means for the room they have, for those that wait, and for
what they have promised."""

from __future__ import annotations

from encamp.core.actions import ReleaseRoom
from encamp.core.happenings import Forgotten, Gone, Joined, Reported
from encamp.core.picture import Picture
from encamp.core.placement.absence import Absence
from encamp.core.placement.books import Books
from encamp.core.placement.claims import Claims
from encamp.core.placement.room import CARRIES_OUT
from encamp.core.placement.timers import Due
from encamp.model.request import PartState, RequestState, claim_id

CAPACITY = frozenset({"cpus", "memory_total", "disk_total", "disk_free"})
"""Readings that say what a host has."""


class Hosts:
    def __init__(self, books: Books, picture: Picture, claims: Claims, absence: Absence) -> None:
        self._books = books
        self._picture = picture
        self._claims = claims
        self._absence = absence

    def joined(self, joined: Joined, now: float) -> None:
        books = self._books
        room = books.room(joined.name)
        room.joined = True
        room.carries_out = any(command.name == CARRIES_OUT for command in joined.commands)
        room.owners = None if joined.owners is None else frozenset(joined.owners)
        books.measure(room, self._picture.hosts[joined.name].readings)
        books.stand(room, joined.machines)
        books.touch(room, better=True)
        if room.owners is not None and not books.owned:
            # Hosts begin to differ in whom they make machines for.
            books.owned = True
            books.line_up(now)
        self._compare_claims(joined, now)
        self._absence.host_back(joined.name, now)

    def gone(self, gone: Gone, now: float) -> None:
        room = self._books.rooms.get(gone.name)
        if room is None or not room.joined:
            return
        self._books.lose_sight(room)
        self._books.timers.add(now + self._books.policy.patience, Due.AWAY, gone.name)
        self._absence.host_gone(gone.name, now)

    def forget_machines(self, host: str, now: float) -> None:
        """Nobody waits any more for what is on a lost host: it is not to hold up its owners. If it
        comes back, it tells what it has."""
        room, state = self._books.rooms.get(host), self._picture.hosts.get(host)
        patience = self._books.policy.patience
        if room is None or room.joined or state is None or now < state.record.since + patience:
            return
        self._books.stand(room, ())
        self._books.epoch += 1

    def forgotten(self, forgotten: Forgotten, now: float) -> None:
        books = self._books
        room = books.rooms.get(forgotten.name)
        if room is None:
            return
        books.lose_sight(room)
        self._absence.host_forgotten(forgotten.name, now)
        books.stand(room, ())
        books.sparing.forget(forgotten.name)
        del books.rooms[forgotten.name]
        books.views.touch(forgotten.name, better=False)

    def reported(self, reported: Reported, now: float) -> None:
        books = self._books
        room = books.rooms.get(reported.name)
        if room is None or not room.joined:
            return
        if not CAPACITY.isdisjoint(reported.readings):
            books.measure(room, self._picture.hosts[reported.name].readings)
        if reported.machines is not None:
            books.stand(room, reported.machines)

    def _compare_claims(self, joined: Joined, now: float) -> None:
        """What it has promised, and what we think it has."""
        books = self._books
        wanted = {}
        for request, number in books.rooms[joined.name].promises:
            record = books.entries[request].record
            wanted[claim_id(request, number, record.attempt)] = record.parts[number]
        for claim in joined.claims:
            if claim in wanted:
                continue
            parts = claim.rsplit(".", 2)
            if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
                books.actions.append(
                    ReleaseRoom(
                        request=parts[0],
                        number=int(parts[1]),
                        attempt=int(parts[2]),
                        host=joined.name,
                    )
                )
        for claim, part in wanted.items():
            entry = books.entries.get(claim.rsplit(".", 2)[0])
            if entry is None or entry.record.state is not RequestState.CLAIMING:
                continue
            if part.state is PartState.CLAIMED and claim not in joined.claims:
                self._claims.back(entry, f"{joined.name} has forgotten its promise", now)
