"""How the hosts look to requests that are alike: which of them are open to one more machine, best
first, and why the others are not.

A view is brought up to date when it is looked at, with those hosts about which something has
changed since. Nothing goes through all hosts but the first look.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from encamp.core.expressions import Evaluator, ExpressionError
from encamp.core.expressions.frame import Frame
from encamp.core.placement.compiled import Compiled
from encamp.core.placement.following import Followed, Following, Trail
from encamp.core.placement.ranks import (
    LAST,
    Named,
    Wanted,
    has_image,
    is_steady,
    value_of,
)
from encamp.core.placement.room import HostRoom
from encamp.core.placement.sparing import Sparing
from encamp.core.placement.verdicts import Verdict
from encamp.core.placement.view import Key, Shape, View, shape_of
from encamp.core.schema import Type
from encamp.core.world import Change, Thing, Unknown, World
from encamp.model.request import Request

PAUSE = 1.0
"""Seconds between two looks at all hosts, for such an expression."""

TICK = 10.0
"""The same, for one that speaks of the time."""

MOST_KEPT = 1_000_000
"""Hosts in all views together that are kept in order; views that are not used are dropped first."""

MOST_WATCHED = 200
"""Expressions that are kept up to date. If there are more, those go for which nobody waits."""

FEWEST_VIEWS = 16
A_FEW = 8
"""Whether there are too many is looked at when there may be more by one in so many."""


class Views:
    def __init__(
        self,
        rooms: Mapping[str, HostRoom],
        sparing: Sparing,
        world: World,
        zone: datetime.tzinfo,
    ) -> None:
        self._rooms = rooms
        self._sparing = sparing
        self._world = world
        self._following = Following(world, zone)
        self.evaluator = self._following.evaluator
        self.compiled = Compiled(world, self._following.__contains__)
        self._views: dict[Shape, View] = {}
        """Those that were used last are last."""
        self._site_ranks: tuple[str, ...] = ()
        self._read: frozenset[str] = frozenset()
        """Facts of hosts that shipped ranks read."""
        self._touched = Trail()
        self._labels: dict[tuple[str, str], int] = {}
        """How many machines of each owner and label there are, on all hosts."""
        self._watched_for_some = MOST_WATCHED
        self._grown = 0
        """How many views were made or built since there was a look at whether they are too many."""
        self.judged = 0
        """How often a host was looked at, in all."""
        self.moved = False
        """Has anything changed that could open a host to somebody?"""

    @property
    def news(self) -> int:
        """Counts up when expressions of some view may have another value for some host."""
        return self._following.news

    # ── what there is ────────────────────────────────────────────────────────────────────────────

    def rule(self, ranks: tuple[str, ...]) -> None:
        """Sort by these after the requests' own ranks. All views begin anew."""
        self._site_ranks = ranks
        for view in self._views.values():
            view.clear()
            view.schema, view.incomplete = None, True
        self.moved = True

    def view(self, shape: Shape, *, grouped: bool = False) -> View:
        view = self._views.pop(shape, None)
        if view is None:
            view = View(shape)
            self._grown += 1
        self._views[shape] = view
        if grouped and not view.grouped:
            view.grouped = True
            view.clear()
        return view

    def trim(self) -> None:
        """Let go of views that nobody has used for long, if there are too many."""
        if len(self._following) > self._watched_for_some:
            self._watch_less()
        most = max(FEWEST_VIEWS, MOST_KEPT // max(len(self._rooms), 1))
        if len(self._views) <= most or self._grown * A_FEW < most:
            return
        self._grown = 0
        for shape, view in sorted(self._views.items(), key=lambda item: _last_look(item[1])):
            if len(self._views) <= most:
                return
            if not view.lines:
                self._ignore(view)
                del self._views[shape]
        built = sorted((view for view in self._views.values() if view.built), key=_last_look)
        for view in built[:-most]:
            view.clear()

    def _watch_less(self) -> None:
        """Let go of views that nobody waits for and that have something kept up to date."""
        for shape, view in list(self._views.items()):
            if not view.lines and view.followed.watched:
                self._ignore(view)
                del self._views[shape]
        self._watched_for_some = max(MOST_WATCHED, len(self._following))

    # ── what changes ─────────────────────────────────────────────────────────────────────────────

    def touch(self, host: str, *, better: bool) -> None:
        """Something about a host has changed that any view may care for; `better`: perhaps so that
        it is open to more."""
        self._touched.add(host, len(self._rooms))
        if better:
            self.moved = True

    def label(self, owner: str, label: str, more: int) -> None:
        """There are so many more machines of a label, or less."""
        named = (owner, label)
        before = self._labels.get(named, 0)
        now = before + more
        if now:
            self._labels[named] = now
        else:
            self._labels.pop(named, None)
        if bool(now) is bool(before):
            return
        for view in self._views.values():
            shape = view.shape
            if shape.owner == owner and shape.label == label and label in shape.near:
                view.clear()
                self.moved = True

    def take(self, changes: list[Change]) -> None:
        """Facts have changed."""
        if self._read:
            for change in changes:
                if change.kind == "host" and change.fact in self._read:
                    self.touch(change.key, better=True)
        self._following.take(changes, len(self._rooms))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def look(self, view: View, now: float) -> None:
        """Bring a view up to date."""
        if view.schema is not self._world.schema and view.incomplete:
            self._compile(view)
        if view.followed.is_wide():
            view.wide = True
        changed = self._changed(view) if view.built else None
        if changed is None or (view.wide and now >= view.next_wide):
            self._build(view, now)
        else:
            touched, told = changed
            names = touched | told
            if len(names) > max(len(self._rooms) // 4, 64):
                self._build(view, now)
            elif names:
                frame = self.evaluator.frame(now)
                view.forget(told)
                for name in names:
                    self._judge(view, name, frame)
        view.seen = self._touched.end
        view.followed.catch_up()

    def _changed(self, view: View) -> tuple[set[str], set[str]] | None:
        """Hosts that were touched since it was last looked at, and hosts for which its expressions
        may have another value. None: nobody knows any more."""
        touched, told = self._touched.since(view.seen), view.followed.names()
        return None if touched is None or told is None else (set(touched), told)

    def _compile(self, view: View) -> None:
        self._ignore(view)
        view.clear()
        view.schema = self._world.schema
        view.broken = ""
        view.requirements = None
        if view.shape.requirements:
            try:
                view.requirements = self.compiled.expression(view.shape.requirements, Type.BOOL)
            except ExpressionError as error:
                view.broken = error.detail or error.sentence
        own = (view.shape.rank,) if view.shape.rank else ()
        view.ranks = tuple(self.compiled.rank_or_none(text) for text in (*own, *self._site_ranks))
        named = [rank for rank in view.ranks if isinstance(rank, Named)]
        steady = view.requirements is not None and is_steady(view.requirements)
        view.met = {} if steady else None
        view.ranked = [{} if is_steady(rank) else None for rank in view.ranks]
        view.incomplete = bool(view.broken) or not all(rank.help for rank in named)
        expressions = view.expressions()
        view.followed = self._following.follow(expressions)
        view.wide_pause = TICK if any(one.timed for one in expressions) else PAUSE
        view.wide = any(one.timed for one in expressions)
        self._read = self._read.union(*(rank.reads for rank in named))
        view.wanted = self._wanted(view.shape)

    def _wanted(self, shape: Shape) -> Wanted:
        if shape.image:
            return Wanted("", shape.image)
        environment = self._world.things["environment"].get(shape.environment)
        image = environment.facts.get("image") if environment is not None else None
        return Wanted(shape.environment, image if isinstance(image, str) else "")

    def has_image(self, request: Request, but: str) -> bool:
        """Has a host that is there the image of a request, other than one that has it not?"""
        if request.own:
            return False  # What others call so may be something else.
        wanted = self._wanted(shape_of(request, owned=False))
        hosts = self._world.things["host"]
        return any(
            room.joined
            and name != but
            and (request.environment in room.proven or has_image(hosts[name].facts, wanted))
            for name, room in self._rooms.items()
            if name in hosts
        )

    def _ignore(self, view: View) -> None:
        self._following.ignore(view.followed)
        view.followed = Followed()

    def _build(self, view: View, now: float) -> None:
        view.clear()
        view.built = True
        self._grown += 1
        view.wide = view.wide_pause == TICK
        view.next_wide = now + view.wide_pause
        frame = self.evaluator.frame(now)
        things = self._world.things["host"]
        for name, room in self._rooms.items():
            thing = things.get(name)
            verdict = self._verdict(view, room, thing, frame)
            view.verdicts[name] = verdict
            view.counts[verdict] = view.counts.get(verdict, 0) + 1
            if verdict is Verdict.OPEN:
                assert thing is not None
                view.keys[name] = self._key(view, room, thing, frame)
                times = view.times[name] = self._times(view, room) if view.grouped else 1
                view.slots += times
        view.sort()
        self.judged += len(self._rooms)

    def _judge(self, view: View, name: str, frame: Frame) -> None:
        self.judged += 1
        room = self._rooms.get(name)
        thing = self._world.things["host"].get(name)
        verdict = self._verdict(view, room, thing, frame) if room is not None else None
        if verdict is not view.verdicts.get(name):
            view.judge(name, verdict)
        if verdict is Verdict.OPEN:
            assert room is not None
            assert thing is not None
            times = self._times(view, room) if view.grouped else 1
            view.offer(name, self._key(view, room, thing, frame), times)
        else:
            view.withdraw(name)

    def _verdict(self, view: View, room: HostRoom, thing: Thing | None, frame: Frame) -> Verdict:
        shape = view.shape
        if not room.joined or thing is None:
            return Verdict.ABSENT
        if not room.carries_out:
            return Verdict.TAKES_NONE
        if room.owners is not None and shape.owner not in room.owners:
            return Verdict.NOT_FOR_OWNER
        size = shape.size
        if room.cpus - room.used_cpus < size.cpus:
            if room.cpus < size.cpus:
                return Verdict.FEW_CPUS if room.told else Verdict.SILENT
            full = Verdict.NO_CPUS
        elif room.memory - room.used_memory < size.memory:
            if room.memory < size.memory:
                return Verdict.LITTLE_MEMORY if room.told else Verdict.SILENT
            full = Verdict.NO_MEMORY
        elif size.disk and room.room_disk < size.disk:
            if room.disk < size.disk:
                return Verdict.SMALL_DISK
            full = Verdict.NO_DISK
        else:
            full = Verdict.OPEN
        if full is not Verdict.OPEN and room.memory < size.memory:
            return Verdict.LITTLE_MEMORY
        if view.requirements is not None:
            known = view.met
            if known is None or not known.get(room.name):
                met = Evaluator.value_for(view.requirements, thing, frame)
                if met is not True:
                    return Verdict.UNKNOWN if isinstance(met, Unknown) else Verdict.UNMET
                if known is not None:
                    known[room.name] = True
        elif view.broken:
            return Verdict.UNKNOWN
        if shape.near and not all(self._is_near(room, shape, label) for label in shape.near):
            return Verdict.NOT_NEAR
        if shape.away and any((shape.owner, label) in room.labels for label in shape.away):
            return Verdict.NOT_AWAY
        spared = self._sparing.of(room.name, shape.environment, shape.owner, frame.now)
        if spared is not None:
            if frame.now >= spared.until:
                return Verdict.TRIED
            return Verdict.SPARED if spared.environment else Verdict.DOUBTED
        return full

    def _is_near(self, room: HostRoom, shape: Shape, label: str) -> bool:
        named = (shape.owner, label)
        # Of those that want to be near one another the first goes anywhere.
        return named in room.labels or (label == shape.label and named not in self._labels)

    def _key(self, view: View, room: HostRoom, thing: Thing, frame: Frame) -> Key:
        key: list[float | str] = []
        for rank, ranked in zip(view.ranks, view.ranked, strict=True):
            place = ranked.get(room.name) if ranked is not None else None
            if place is None:
                value = value_of(rank, room, thing, view.wanted, frame)
                place = LAST if isinstance(value, Unknown) else -value
                if ranked is not None:
                    ranked[room.name] = place
            key.append(place)
        key.append(room.name)
        return tuple(key)

    def _times(self, view: View, room: HostRoom) -> int:
        if self._sparing.only_one(room.name, view.shape.environment, view.shape.owner):
            return 1
        return room.times(view.shape.size)


def _last_look(view: View) -> int:
    return view.seen
