"""All that placement keeps: hosts' room, requests, the queue, what counts against limits and
shares. Whatever takes room or gives it back goes through here, so that all of it agrees.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from encamp.core.actions import PlacementAction, WriteRequest
from encamp.core.kinds import request_facts
from encamp.core.placement.counted import Counted, counted
from encamp.core.placement.demand import Demand
from encamp.core.placement.keeping import Keeping
from encamp.core.placement.limits import Limits
from encamp.core.placement.queue import Entry, Queue, line_key
from encamp.core.placement.room import ROOM_FACTS, HostRoom, Promise, Standing
from encamp.core.placement.roomiest import Roomiest
from encamp.core.placement.shares import Shares
from encamp.core.placement.sparing import Spared, Sparing
from encamp.core.placement.timers import Due, Timers
from encamp.core.placement.view import shape_of
from encamp.core.placement.views import Views
from encamp.core.world import Unknown, World
from encamp.model.event import Event, EventKind
from encamp.model.machine import ALIVE, Machine
from encamp.model.policy import Policy
from encamp.model.property import Reading
from encamp.model.request import (
    REQUEST_OVER,
    REQUEST_TRANSITIONS,
    Part,
    Reason,
    Request,
    RequestRecord,
    RequestState,
)

LONGEST_HISTORY = 30


MOST_LOST = 10_000
"""Requests that were lost and are remembered, in case their hosts come back."""


class Books:
    def __init__(self, world: World, zone: datetime.tzinfo) -> None:
        self.world = world
        self.policy = Policy()
        self.rooms: dict[str, HostRoom] = {}
        self.roomiest = Roomiest()
        self.sparing = Sparing()
        self.limits = Limits()
        self.shares = Shares(self.policy.shares, self.policy.half_life)
        self.views = Views(self.rooms, self.sparing, world, zone)
        self.queue = Queue(self.shares)
        self.timers = Timers()
        self.demand = Demand(world)
        self.keeping = Keeping(self.views.compiled)
        self.entries: dict[str, Entry] = {}
        """Requests that are not over."""
        self.lost: dict[str, RequestRecord] = {}
        """Requests that are lost."""
        self.epoch = 0
        """Counts up whenever there may be a place for somebody for whom there was none."""
        self.actions: list[PlacementAction] = []
        self.events: list[Event] = []
        self.owned = False
        """Do hosts differ in whom they make machines for?"""
        self._entered = 0
        self._owners: dict[int, tuple[str, tuple[str, ...]]] = {}
        """Names and groups of users that have asked for something, by their numbers."""

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    def enter(self, record: RequestRecord, now: float) -> Entry:
        """A request is there from now on."""
        request = record.request
        entry = self.entries[request.id] = Entry(record, self._entered)
        self._entered += 1
        user = request.machine.owner
        self._owners[user.uid] = (request.owner, request.groups)
        self.shares.account(request.owner, request.groups, now)
        self.world.put("request", request.id, request_facts(record))
        self.demand.comes(record)
        return entry

    def wait(self, entry: Entry, now: float) -> None:
        """It stands in the queue."""
        request = entry.request
        apart = (request.environment, request.owner) in self.sparing.apart
        shape = shape_of(request, owned=self.owned or apart)
        view = self.views.view(shape, grouped=entry.request.count > 1)
        self.queue.add(entry, line_key(entry.request, shape), view, now)
        if entry.waits_until is not None:
            self.timers.add(entry.waits_until, Due.WAITED, entry.request.id)
        self.demand.waits(entry.request)
        self.keeping.waits(entry.request)

    def wait_no_more(self, entry: Entry, now: float) -> None:
        self.queue.remove(entry, now)
        self.demand.waits_no_more(entry.request)
        self.keeping.waits_no_more(entry.request)

    def line_up(self, now: float, environment: str = "", owner: str = "") -> None:
        """Those who wait, of an owner in an environment or all of them, stand in other lines: hosts
        are not the same to all owners any more."""
        waiting = [
            entry
            for entry in self.queue.entries.values()
            if environment in ("", entry.request.environment) and owner in ("", entry.request.owner)
        ]
        for entry in waiting:
            self.wait_no_more(entry, now)
        for entry in waiting:
            self.wait(entry, now)

    def write(self, entry: Entry, now: float, **changes: Any) -> None:
        """Have a request written down as it is now."""
        before = entry.record.state
        state = changes.get("state", before)
        if state is not before:
            assert state in REQUEST_TRANSITIONS[before], f"{before} -> {state}"
            changes["changed"] = now
        entry.record = msgspec.structs.replace(entry.record, **changes)
        self.actions.append(WriteRequest(entry.record))
        request = entry.request
        self.demand.comes(entry.record)
        if state in REQUEST_OVER:
            del self.entries[request.id]
            self.world.drop("request", request.id)
            if state is RequestState.LOST:
                self.remember_lost(entry.record)
            elif state is RequestState.CANCELLED:
                self._absolve(entry)
        else:
            self.world.put("request", request.id, request_facts(entry.record))

    def remember_lost(self, record: RequestRecord) -> None:
        self.lost[record.request.id] = record
        if len(self.lost) > MOST_LOST:
            del self.lost[next(iter(self.lost))]

    def say(self, entry: Entry, reason: Reason) -> None:
        """Why it is where it is; kept, and not worth writing down at once."""
        former = entry.record.reason
        if former.cause is reason.cause:
            reason = msgspec.structs.replace(reason, since=former.since)
        entry.record = msgspec.structs.replace(entry.record, reason=reason)
        facts = {"cause": reason.cause.value}
        self.world.put("request", entry.request.id, facts)

    def part(self, entry: Entry, number: int, **changes: Any) -> Part:
        """One of its machines has got on. Not written down yet."""
        parts = list(entry.record.parts)
        parts[number] = msgspec.structs.replace(parts[number], **changes)
        entry.record = msgspec.structs.replace(entry.record, parts=tuple(parts))
        return parts[number]

    def note(self, entry: Entry, now: float, sentence: str) -> None:
        entry.history = (*entry.history, (now, sentence))[-LONGEST_HISTORY:]

    # ── hosts that are spared ────────────────────────────────────────────────────────────────────

    def environment_failed(self, host: str, entry: Entry, why: str, now: float) -> None:
        request = entry.request
        entry.blamed = tuple({*entry.blamed, host})
        known = (request.environment, request.owner) in self.sparing.apart
        for spared in self.sparing.failed(host, request, why, self.policy, now):
            self._spare(host, spared, now)
        if not known:
            self.line_up(now, request.environment, request.owner)

    def distrust(self, host: str, reason: str, now: float) -> None:
        """It does not keep to what it says it has room for."""
        spared = self.sparing.refused(host, reason, self.policy, now)
        if spared is not None:
            self._spare(host, spared, now)

    def _spare(self, host: str, spared: Spared, now: float) -> None:
        self.views.touch(host, better=False)
        self.timers.add(spared.until, Due.SPARED, host)
        what = f"Environment {spared.environment}" if spared.environment else "Everything"
        whose = f" of {spared.owner}'s" if spared.owner else ""
        pause = f"{spared.until - now:.0f} seconds"
        self.events.append(
            Event(
                at=now,
                kind=EventKind.HOST_SPARED,
                sentence=f"{what}{whose} is kept from host {host} for {pause}: {spared.reason}",
                host=host,
                subject=spared.environment,
                facts={"owner": spared.owner},
            )
        )

    def _absolve(self, entry: Entry) -> None:
        """It was cancelled: what it has caused is over with it."""
        for host in entry.blamed:
            if self.sparing.absolve(host, entry.request.id):
                self.views.touch(host, better=True)

    def forgive(self) -> None:
        """No host is spared anything any more."""
        for host in self.sparing.forgive():
            self.views.touch(host, better=True)

    # ── room ─────────────────────────────────────────────────────────────────────────────────────

    def room(self, name: str) -> HostRoom:
        room = self.rooms.get(name)
        if room is None:
            room = self.rooms[name] = HostRoom(name)
        return room

    def promise(
        self, request: Request, number: int, host: str, now: float, machine: str = ""
    ) -> None:
        """A machine of a request takes room."""
        room = self.room(host)
        promise = Promise(counted(request), request.size, request.label)
        promise.machine = machine
        room.take((request.id, number), promise)
        if not promise.visible:
            self.limits.take(promise.counted, promise.size)
        self.shares.begin(request.owner, request.size, now)
        if request.label:
            self.views.label(request.owner, request.label, 1)
        self.touch(room, better=bool(request.label))

    def give_back(self, request: Request, number: int, host: str, now: float) -> None:
        """It takes room no more, but as its host reports it."""
        room = self.rooms.get(host)
        promise = room.give_back((request.id, number)) if room is not None else None
        if room is None or promise is None:
            return
        if promise.visible:
            self.demand.stand(room)
        else:
            self.limits.give_back(promise.counted, promise.size)
        if request.label:
            self.views.label(request.owner, request.label, -1)
        self.shares.end(request.owner, request.size, now)
        self.queue.reorder(request.owner, now)
        self.touch(room, better=True)

    def identify(self, entry: Entry, number: int, host: str, machine: str) -> None:
        room = self.rooms.get(host)
        if room is None or not machine:
            return
        key = (entry.request.id, number)
        promise = room.promises.get(key)
        if promise is None or promise.machine == machine:
            return
        seen = promise.visible
        room.identify(key, machine)
        standing = room.standing.get(machine)
        if standing is None or seen or not promise.visible:
            return
        # It was counted as one of nobody's.
        self.limits.give_back(standing.counted, standing.machine.size)
        room.standing[machine] = Standing(standing.machine, promise.counted)
        self.limits.take(promise.counted, standing.machine.size)
        self.limits.give_back(promise.counted, promise.size)
        self.demand.stand(room)
        self.touch(room, better=True)

    def stand(self, room: HostRoom, machines: Iterable[Machine]) -> None:
        """These are all the machines on a host."""
        before = room.standing
        hidden = {key for key, promise in room.promises.items() if not promise.visible}
        promised = {
            promise.machine: promise.counted
            for promise in room.promises.values()
            if promise.machine
        }
        used = (room.used_cpus, room.used_memory, room.used_disk)
        alive = [machine for machine in machines if machine.state in ALIVE]
        # Those that stand idle give way to whatever is to come.
        room.idle = tuple(machine for machine in alive if machine.idle)
        room.stand(
            Standing(machine, self._whose(machine, before.get(machine.id), promised))
            for machine in alive
            if not machine.idle
        )
        for standing in before.values():
            self.limits.give_back(standing.counted, standing.machine.size)
        for standing in room.standing.values():
            self.limits.take(standing.counted, standing.machine.size)
        for key, promise in room.promises.items():
            if promise.visible and key in hidden:
                self.limits.give_back(promise.counted, promise.size)
            elif not promise.visible and key not in hidden:
                self.limits.take(promise.counted, promise.size)
        self.demand.stand(room)
        self.touch(room, better=_is_less((room.used_cpus, room.used_memory, room.used_disk), used))

    def measure(self, room: HostRoom, readings: Mapping[str, Reading]) -> None:
        """A host tells what it has."""
        had = (-room.cpus, -room.memory, -room.disk, -room.disk_free)
        room.measure(readings, self.policy)
        has = (-room.cpus, -room.memory, -room.disk, -room.disk_free)
        if has != had:
            self.touch(room, better=_is_less(has, had))

    def lose_sight(self, room: HostRoom) -> None:
        """Nothing more is placed on a host, and nobody knows what it has room for."""
        room.joined = False
        self.roomiest.see(room)
        self.views.touch(room.name, better=False)
        gone = Unknown(f"host {room.name} is not there")
        if room.name in self.world.things["host"]:
            self.world.put("host", room.name, dict.fromkeys(ROOM_FACTS, gone))

    def _whose(
        self, machine: Machine, before: Standing | None, promised: dict[str, Counted]
    ) -> Counted:
        if machine.id in promised:
            return promised[machine.id]
        if before is not None:
            return before.counted
        owner, groups = self._owners.get(machine.owner, (f"uid {machine.owner}", ()))
        return Counted(owner, groups, machine.environment, self.demand.classes(machine.environment))

    def touch(self, room: HostRoom, *, better: bool) -> None:
        """Something about a host's room is another."""
        self.roomiest.see(room)
        self.views.touch(room.name, better=better)
        if room.joined:
            values = (room.room_cpus, room.room_memory, room.room_disk, room.machines)
            facts = dict(zip(ROOM_FACTS, values, strict=True))
            self.world.put("host", room.name, facts)

    def recount(self, now: float) -> None:
        """The limits are others: count everything anew."""
        self.limits = Limits(self.policy.limits)
        for room in self.rooms.values():
            for standing in room.standing.values():
                self.limits.take(standing.counted, standing.machine.size)
            for promise in room.promises.values():
                if not promise.visible:
                    self.limits.take(promise.counted, promise.size)


def _is_less(now: tuple[float, ...], before: tuple[float, ...]) -> bool:
    """Is any of it?"""
    return any(one < other for one, other in zip(now, before, strict=True))
