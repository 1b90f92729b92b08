"""Answers to `why`: of a request, and of a host."""

from __future__ import annotations

import datetime

import msgspec

from encamp.core.placement.books import Books
from encamp.core.placement.passing import Passing
from encamp.core.placement.queue import Entry, Line
from encamp.core.placement.ranks import value_of
from encamp.core.placement.reasons import NEXT, sentence_of, words_for
from encamp.core.placement.room import UNBOUNDED, HostRoom
from encamp.core.placement.verdicts import Verdict
from encamp.core.placement.view import View
from encamp.core.seen import seen_in_words
from encamp.core.world import Unknown
from encamp.model.host import Host
from encamp.model.request import (
    Cause,
    Explanation,
    HostReason,
    Reason,
)
from encamp.model.size import format_bytes

MOST_LINES = 20_000
"""Lines of the queue that are gone through to tell a place in it."""
MOST_SEEN = 4
"""Facts of a host that are told when it does not meet requirements."""


def waiting_reason(books: Books, entry: Entry) -> Reason:
    """Why a request that is in the queue is still there."""
    line = entry.line
    assert line is not None
    recorded = entry.record.reason
    if line.head != entry.place:
        return _behind(books, entry, line)
    if line.stuck < 0:
        if recorded.cause is Cause.RETRY:
            return recorded
        return msgspec.structs.replace(recorded, next=NEXT[Cause.BEHIND])
    return line_reason(books, line)


def line_reason(books: Books, line: Line) -> Reason:
    """Why there was no place for the head of a line. The sentence is made once for all who ask
    before something changes."""
    reason, view = line.reason, line.view
    seen = (line.stuck, view.seen, view.news, view.built, books.epoch)
    if line.told is None or line.told[0] != seen or line.told[1].cause is not reason.cause:
        line.told = (seen, _told(books, line))
    return line.told[1]


def _told(books: Books, line: Line) -> Reason:
    reason = line.reason
    if reason.cause is Cause.LIMIT:
        tally = books.limits.reached(line.counted, line.key.size, line.key.machines)
        sentence = (
            tally.sentence(line.key.size, line.key.machines)
            if tally is not None
            else f"limit '{reason.limit}' was reached"
        )
    elif not line.view.built:
        sentence = f"no host has {line.view.shape.size} free"
    else:
        sentence = sentence_of(line.view, _of_open(books, line)) + _why_failed(books, line.view)
    return msgspec.structs.replace(reason, sentence=sentence, next=NEXT.get(reason.cause, ""))


def _why_failed(books: Books, view: View) -> str:
    """What went wrong last where nothing is tried for a while."""
    shape = view.shape
    for host, verdict in view.verdicts.items() if view.counts.get(Verdict.SPARED) else ():
        if verdict is Verdict.SPARED:
            for (environment, owner), spared in books.sparing.of_host(host).items():
                if environment == shape.environment and owner in ("", shape.owner):
                    return f": {spared.reason}"
    return ""


def _behind(books: Books, entry: Entry, line: Line) -> Reason:
    before = line.entries.before(entry.place)
    first = books.entries[line.head[2]]
    cause = waiting_reason(books, first)
    one = "request like it is" if before == 1 else "requests like it are"
    return Reason(
        cause=Cause.BEHIND,
        sentence=f"{cause.sentence}; {before} {one} ahead of it",
        since=entry.record.changed,
        next=NEXT[Cause.BEHIND],
    )


def _of_open(books: Books, line: Line) -> dict[str, int]:
    """Of the hosts that are open: how many are not open to its head all the same."""
    entry, view = books.entries[line.head[2]], line.view
    passed = sum(view.verdicts.get(host) is Verdict.OPEN for host in entry.passed)
    return {"could not take it just now|could not take it just now": passed} if passed else {}


def explain_request(
    books: Books,
    passing: Passing,
    entry: Entry,
    now: float,
    most: int,
    zone: datetime.tzinfo,
) -> Explanation:
    record = entry.record
    position = None
    hosts: tuple[HostReason, ...] = ()
    reason = record.reason
    if entry.line is not None:
        view = entry.line.view
        books.views.look(view, now)
        reason = waiting_reason(books, entry)
        hosts = _host_reasons(books, passing, entry, view, now, most)
        if books.queue.lines <= MOST_LINES:
            position = books.queue.position(entry, now - books.policy.aging)
    return Explanation(
        kind="machine" if record.request.job is None else "job",
        id=record.request.id,
        name=record.request.label,
        state=record.state.value,
        reason=reason,
        position=position,
        hosts=hosts,
        history=tuple(f"{_clock(at, zone)} {sentence}" for at, sentence in entry.history),
    )


def _host_reasons(
    books: Books, passing: Passing, entry: Entry, view: View, now: float, most: int
) -> tuple[HostReason, ...]:
    """Those that could be chosen first, best first; then the others by what is in the way."""
    found = view.ordered()[:most]
    others = sorted(
        (name for name, verdict in view.verdicts.items() if verdict is not Verdict.OPEN),
        key=lambda name: (_NEARNESS[view.verdicts[name]], name),
    )
    names = [*found, *others[: max(most - len(found), 0)]]
    return tuple(_host_reason(books, passing, entry, view, name, now) for name in names)


_NEARNESS = {verdict: -number for number, verdict in enumerate(Verdict)}


def _host_reason(
    books: Books, passing: Passing, entry: Entry, view: View, name: str, now: float
) -> HostReason:
    verdict = view.verdicts[name]
    room = books.rooms[name]
    if verdict is not Verdict.OPEN:
        meaning = verdict.value
        sentence = meaning.one.format(**words_for(view)) + _details(books, view, room, verdict, now)
        return HostReason(host=name, cause=meaning.cause, sentence=sentence)
    rank, doubt = _ranks(books, view, room, now)
    if name in entry.passed:
        return HostReason(
            host=name,
            cause=Cause.CLAIM,
            sentence=f"has refused it, and is asked again in {entry.passed[name] - now:.0f} s",
            rank=rank,
        )
    kept = passing.kept
    if kept is not None and kept.request.id != entry.request.id and name in kept.hosts:
        return HostReason(
            host=name,
            cause=Cause.NO_ROOM,
            sentence=f"is kept free for request {kept.request.id}, which has waited for long",
            rank=rank,
        )
    return HostReason(host=name, sentence=doubt, rank=rank)


def _ranks(books: Books, view: View, room: HostRoom, now: float) -> tuple[tuple[float, ...], str]:
    thing = books.world.things["host"][room.name]
    frame = books.views.evaluator.frame(now)
    values = []
    doubt = ""
    for rank in view.ranks:
        value = value_of(rank, room, thing, view.wanted, frame)
        if isinstance(value, Unknown):
            doubt = doubt or f"ranks last: {value.reason}"
            break
        values.append(float(value))
    return tuple(values), doubt


def _details(books: Books, view: View, room: HostRoom, verdict: Verdict, now: float) -> str:
    size = view.shape.size
    if verdict in (Verdict.NO_CPUS, Verdict.FEW_CPUS):
        return f": {room.room_cpus:g} of {room.cpus:g} free"
    if verdict in (Verdict.NO_MEMORY, Verdict.LITTLE_MEMORY):
        return f": {format_bytes(max(room.room_memory, 0))} of {format_bytes(room.memory)} free"
    if verdict in (Verdict.NO_DISK, Verdict.SMALL_DISK):
        return f": {format_bytes(max(room.room_disk, 0))} free" if size.disk else ""
    if verdict is Verdict.UNKNOWN:
        if view.requirements is None:
            return f": {view.broken}"
        value = books.views.evaluator.value(view.requirements, room.name, now)
        return f": {value.reason}" if isinstance(value, Unknown) else ""
    if verdict is Verdict.UNMET and view.requirements is not None:
        seen = books.views.evaluator.evaluate(view.requirements, room.name, now).seen
        shown = seen_in_words(seen, books.world.schema, MOST_SEEN)
        return f": {shown}" if shown else ""
    if verdict in (Verdict.SPARED, Verdict.TRIED, Verdict.DOUBTED):
        spared = books.sparing.of(room.name, view.shape.environment, view.shape.owner, now)
        if spared is None:
            return ""
        if verdict is Verdict.TRIED:
            return f" ({spared.reason})"
        again = f"it is tried again in {spared.until - now:.0f} s"
        return f" {spared.failures} times ({spared.reason}); {again}"
    return ""


def explain_host(books: Books, passing: Passing, host: Host, now: float, owner: str) -> Explanation:
    """`owner`: who asks, and is told of everybody's affairs and their own; empty: of all."""
    room = books.room(host.name)
    memory = f"{format_bytes(max(room.room_memory, 0))} of {format_bytes(room.memory)} memory"
    disk = f"{format_bytes(max(room.room_disk, 0))} of {format_bytes(room.disk)} disk"
    knows_disk = 0 < room.disk < UNBOUNDED
    count = len(room.standing)
    machines = "1 machine is" if count == 1 else f"{count} machines are"
    lines = [f"{machines} on it, {len(room.promises)} for requests"]
    left = f"{room.room_cpus:g} of {room.cpus:g} processors"
    left += f", {memory} and {disk}" if knows_disk else f" and {memory}"
    lines.append(f"{left} are left for machines")
    known = books.sparing.of_host(host.name)
    for (environment, whose), spared in sorted(known.items()):
        if owner and whose not in ("", owner):
            continue
        what = f"{environment or 'everything'}{f' of {whose}' if whose else ''}"
        state = (
            f"for {spared.until - now:.0f} s more"
            if now < spared.until
            else "until one machine has come up"
        )
        lines.append(
            f"{what} is not tried there {state}, after {spared.failures} failures: {spared.reason}"
        )
    if passing.kept is not None and host.name in passing.kept.hosts:
        lines.append(f"room is kept free for request {passing.kept.request.id}")
    if not room.joined:
        cause, sentence = Cause.ABSENT, host.reason or "it is not there"
    elif not room.carries_out:
        cause, sentence = Cause.ENVIRONMENT, "it takes no requests of a site"
    elif not room.told:
        cause, sentence = Cause.NO_HOST_FITS, "it does not tell its processors and memory"
    elif any(now < spared.until and not spared.owner for spared in known.values()):
        cause, sentence = Cause.LEFT_ALONE, "environments keep failing there"
    elif room.room_cpus < 1 or room.room_memory <= 0:
        cause, sentence = Cause.NO_ROOM, "it is full"
    elif knows_disk and room.room_disk <= 0:
        cause, sentence = Cause.NONE, "it has room, but none on its disk"
    else:
        cause, sentence = Cause.NONE, "it has room"
    return Explanation(
        kind="host",
        id=host.name,
        name=host.name,
        state=host.presence.value,
        reason=Reason(cause=cause, sentence=sentence, since=host.since),
        history=tuple(lines),
    )


def _clock(at: float, zone: datetime.tzinfo) -> str:
    return datetime.datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S")
