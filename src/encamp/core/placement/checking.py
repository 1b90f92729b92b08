"""What is said at once about a request that makes no sense, or could never be placed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from encamp.core.expressions import Expression, ExpressionError, reading
from encamp.core.expressions.frame import TOO_MUCH, Frame, NotKnown, TooMuch
from encamp.core.expressions.language import FEW_STEPS
from encamp.core.picture import HostState, Picture, known
from encamp.core.placement.books import Books
from encamp.core.placement.counted import counted
from encamp.core.placement.ranks import NAMED
from encamp.core.placement.room import HostRoom
from encamp.core.placement.view import Shape, shape_of
from encamp.core.schema import Schema, Type
from encamp.core.seen import seen_in_words
from encamp.core.world import Thing, Unknown
from encamp.model.errors import Code, EncampError
from encamp.model.policy import Policy
from encamp.model.request import MOST_MACHINES, Request, Together
from encamp.model.size import Size, format_bytes

LASTING = 600.0
"""Seconds between two readings of a property that hardly ever changes."""

OF_EVERY_HOST = ("name", "groups")
"""What stays as it is of every host, beside such properties."""

MOST_LISTED, MOST_SEEN = 3, 4
"""Hosts that a refusal speaks of, and facts of each."""
MOST_REMEMBERED = 1000


class Checker:
    def __init__(self, books: Books, picture: Picture) -> None:
        self._books = books
        self._picture = picture
        self._able: dict[Shape, str] = {}
        """Of requests that were found to make sense: a host that could take one, to look at first
        when there is another like it."""

    def check(self, request: Request, *, whole: bool) -> None:
        """`whole`: all hosts of the site are known."""
        books, picture = self._books, self._picture
        if not 1 <= request.count <= MOST_MACHINES:
            raise EncampError(
                Code.USAGE,
                f"{request.count} machines cannot be asked for at once.",
                f"A request has 1 to {MOST_MACHINES:,} machines.",
            )
        requirements = _requirements(request, books)
        if request.rank.strip():
            _check_rank(request.rank.strip(), books)
        books.keeping.check(request)
        _check_limits(request, books)
        if not picture.hosts or not whole:
            return  # Nobody knows yet what there will be.
        lasting = _lasting(picture) if requirements is not None else frozenset()
        shape = shape_of(request, owned=True)
        left = request.count if request.together is not Together.ONE_HOST else 1
        for state in self._hosts(shape):
            room = _as_known(state, books)
            times = _times(request, room, shape.size)
            if not times or (requirements is not None and not _could(requirements, state, lasting)):
                continue
            if len(self._able) > MOST_REMEMBERED:
                self._able.clear()
            self._able.setdefault(shape, room.name)
            left -= 1 if request.together is Together.APART else times
            if left <= 0:
                return
        self._able.pop(shape, None)
        self._refuse(request, requirements)

    def _hosts(self, shape: Shape) -> Iterator[HostState]:
        hosts = self._picture.hosts
        first = self._able.get(shape, "")
        if first in hosts:
            yield hosts[first]
        for name, state in hosts.items():
            if name != first:
                yield state

    def _refuse(self, request: Request, requirements: Expression | None) -> None:
        """Say what is lacking."""
        rooms = [_as_known(state, self._books) for state in self._picture.hosts.values()]
        rooms = _of_owner(request, rooms)
        _check_size(request, rooms)
        if requirements is not None:
            able = [room for room in rooms if room.times_if_empty(request.size)]
            raise _unmet(request, requirements, able, self._picture)


def _times(request: Request, room: HostRoom, size: Size) -> int:
    """How many machines it could take if it were empty; any number, if it does not tell."""
    if room.owners is not None and request.owner not in room.owners:
        return 0
    if not room.told and not room.cpus:
        return request.count
    return room.times_if_empty(size)


def _requirements(request: Request, books: Books) -> Expression | None:
    text = request.requirements.strip()
    if not text:
        return None
    try:
        compiled = books.views.compiled.expression(text, Type.BOOL)
    except ExpressionError as error:
        raise _mistaken("The requirements", error) from error
    _check_cost("The requirements", compiled, books)
    return compiled


def check_ranks(policy: Policy, books: Books) -> None:
    for text in policy.rank:
        _check_rank(text, books)


def _check_rank(text: str, books: Books) -> None:
    try:
        rank = books.views.compiled.rank(text)
    except ExpressionError as error:
        names = ", ".join(sorted(NAMED))
        if text.strip().isidentifier():
            near = difflib.get_close_matches(text.strip(), NAMED, n=1)
            meant = f"Did you mean '{near[0]}'? " if near else ""
            raise EncampError(
                Code.USAGE,
                f"There is no rank '{_short(text.strip())}'.",
                f"{meant}Shipped are: {names}; or write an expression about a host.",
            ) from error
        raise _mistaken("The rank", error, f"Shipped ranks are: {names}.") from error
    if isinstance(rank, Expression):
        _check_cost("The rank", rank, books)


def _mistaken(what: str, error: ExpressionError, hint: str = "") -> EncampError:
    first = error.mistakes[0]
    more = f" ({len(error.mistakes) - 1} more)" if len(error.mistakes) > 1 else ""
    return EncampError(
        Code.USAGE,
        f"{what} '{_short(error.text)}' cannot be read, at {first.line}:{first.column}:"
        f" {first.sentence}{more}",
        f"{hint} {error.hint}".strip(),
        detail=error.detail if more else "",
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _check_limits(request: Request, books: Books) -> None:
    tally = books.limits.too_small(counted(request), request.size, request.count)
    if tally is not None:
        limit = tally.limit
        most = [
            _many(limit.machines, "machine") if limit.machines is not None else "",
            _many(limit.cpus, "processor") if limit.cpus is not None else "",
            f"{format_bytes(limit.memory)} of memory" if limit.memory is not None else "",
        ]
        raise EncampError(
            Code.NOT_PERMITTED,
            f"{_many(request.count, 'machine')} of {request.size}"
            f" {'is' if request.count == 1 else 'are'} more than limit '{limit.name}' allows:"
            f" {', '.join(one for one in most if one)} at a time.",
            "Ask for less, or ask the site's administrators.",
        )


def _many(count: float, what: str) -> str:
    return f"{count:g} {what}" if count == 1 else f"{count:g} {what}s"


def _as_known(state: HostState, books: Books) -> HostRoom:
    """What a host has, also if it is not there now."""
    room = books.rooms.get(state.record.name)
    if room is not None and room.joined:
        return room
    absent = HostRoom(state.record.name)
    absent.measure(state.readings, books.policy)
    absent.owners = room.owners if room is not None else None
    absent.told = False
    return absent


def _of_owner(request: Request, rooms: list[HostRoom]) -> list[HostRoom]:
    found = [room for room in rooms if room.owners is None or request.owner in room.owners]
    if not found:
        raise EncampError(
            Code.NOT_PERMITTED,
            f"No host of this site makes machines for {request.owner}.",
            "An agent that is not root makes them for its own user alone.",
        )
    return found


def _share_of(room: HostRoom, size: Size) -> float:
    """How much of a machine would fit into a host, by what it has least of."""
    wanted = ((room.cpus, size.cpus), (room.memory, size.memory), (room.disk, size.disk))
    return min((has / needs for has, needs in wanted if needs), default=0.0)


def _check_size(request: Request, rooms: list[HostRoom]) -> None:
    """Could the hosts take it if they were empty? One that does not tell might."""
    if any(not room.told and not room.cpus for room in rooms):
        return
    size = request.size
    times = [room.times_if_empty(size) for room in rooms]
    if not any(times):
        largest = max(rooms, key=lambda room: _share_of(room, size))
        disk = f" and {format_bytes(largest.disk)} of disk" if 0 < size.disk > largest.disk else ""
        raise EncampError(
            Code.NO_ROOM,
            f"No host of this site could ever take a machine of {size} (the largest is"
            f" {largest.name}: {largest.cpus:g} processors, {format_bytes(largest.memory)} of"
            f" memory{disk} for machines).",
            "Ask for less, or see 'encamp hosts'.",
        )
    if request.together is Together.ONE_HOST:
        most, how = max(times), "on one host"
    elif request.together is Together.APART:
        most, how = sum(1 for number in times if number), "on hosts of their own"
    else:
        most, how = sum(times), "at once"
    if most < request.count:
        raise EncampError(
            Code.NO_ROOM,
            f"{request.count} machines of {size} could never be {how}: if they were empty, the"
            f" hosts of this site could take {most}.",
            "Ask for fewer, or for less each.",
        )


def _lasting(picture: Picture) -> frozenset[str]:
    return frozenset(
        name
        for name, kinds in picture.definitions.items()
        if any(definition.ticks >= LASTING for definition in kinds.values())
    )


def _unmet(
    request: Request, requirements: Expression, rooms: list[HostRoom], picture: Picture
) -> EncampError:
    lasting = _lasting(picture)
    found = sum(_could(requirements, picture.hosts[room.name], lasting) for room in rooms)
    text = _short(request.requirements)
    if found:
        return EncampError(
            Code.NO_ROOM,
            f"Only {found} of the hosts that could take a machine of {request.size} could ever meet"
            f" '{text}', which is too little for {_many(request.count, 'machine')}.",
            "Ask for fewer, or for less each.",
        )
    schema = picture.world.schema
    refused = [
        _shown(requirements, picture.hosts[room.name], lasting, schema)
        for room in rooms[:MOST_LISTED]
    ]
    return EncampError(
        Code.NO_ROOM,
        f"No host of this site could ever meet '{text}':"
        f" {'; '.join(refused)}{' ...' if len(rooms) > MOST_LISTED else ''}.",
        "See 'encamp hosts' for what there is.",
    )


_MAY_CHANGE = Unknown("it may change")


def _could(requirements: Expression, state: HostState, lasting: frozenset[str]) -> bool:
    """Are they not false of a host, whatever may still change about it?"""
    if requirements.timed or reading.aggregates(requirements.uses):
        return True
    thing = Thing("host", state.record.name)
    thing.facts = {"name": state.record.name, "groups": list(state.record.groups)}
    for name, reading_ in state.readings.items():
        thing.facts[name] = known(reading_) if name in lasting else _MAY_CHANGE
    things = {"host": {thing.key: thing}}
    frame = Frame(things, thing, 0.0, _no_aggregates, steps=FEW_STEPS)
    try:
        return requirements.run(frame) is not False
    except (NotKnown, TooMuch, RecursionError, KeyError):
        return True


def _check_cost(what: str, expression: Expression, books: Books) -> None:
    """Try it with one host: what takes too long there would never have a value."""
    if reading.aggregates(expression.uses):
        return  # To work those out for the first time takes a look at everything.
    things = books.views.evaluator.world.things["host"]
    thing = next(iter(things.values()), None)
    if thing is None:
        return
    frame = books.views.evaluator.frame(0.0)
    if books.views.evaluator.value_for(expression, thing, frame) is TOO_MUCH:
        raise EncampError(
            Code.USAGE,
            f"{what} '{_short(expression.text)}' take{'s' if what == 'The rank' else ''} more than"
            f" {FEW_STEPS:,} steps for each host.",
            "Make the lists that they go through shorter.",
        )


def _no_aggregates(*_: object) -> object:
    raise NotKnown("nothing is known of the others")


def _shown(
    requirements: Expression, state: HostState, lasting: frozenset[str], schema: Schema
) -> str:
    seen = {}
    for text in requirements.reads:
        name = text.removeprefix("host.")
        if name in OF_EVERY_HOST:
            continue
        reading_ = state.readings.get(name)
        if name in lasting and reading_ is not None and not reading_.error:
            seen[text] = reading_.value
    if not seen:
        return f"not {state.record.name}"
    return f"of {state.record.name} {seen_in_words(seen, schema, MOST_SEEN)}"
