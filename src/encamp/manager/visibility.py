"""What of a site somebody may see: administrators everything, others what is nobody's, such as
hosts, and what is theirs. The same at every door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from encamp.core.actions import Judged
from encamp.core.picture import HostState
from encamp.core.triggers.owning import OPEN
from encamp.door.peer import Peer
from encamp.manager.notifying import without_secrets
from encamp.manager.rights import is_administrator
from encamp.model.event import Event, EventKind
from encamp.model.machine import Machine
from encamp.model.trigger import TriggerView

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

OF_EVERYBODY = frozenset(
    {
        EventKind.MANAGER_STARTED,
        EventKind.HOST_JOINED,
        EventKind.HOST_LEFT,
        EventKind.HOST_LOST,
        EventKind.HOST_REFUSED,
        EventKind.HOST_TROUBLE,
        EventKind.HOST_SPARED,
        EventKind.PROPERTY_FAILED,
        EventKind.PROPERTY_RECOVERED,
        EventKind.TRIGGERS_LOADED,
        EventKind.TRIGGERS_REFUSED,
        EventKind.STORE_TROUBLE,
    }
)
"""Events that are nobody's own. Of all others it is told whose they are; empty: nobody's."""

OF_MACHINES = frozenset(
    {EventKind.MACHINE_APPEARED, EventKind.MACHINE_CHANGED, EventKind.MACHINE_GONE}
)

LOOKED_AT_FIRST, WIDER, LOOKED_THROUGH = 100, 8, 20_000
"""Entries among which those are looked for that somebody may see: at first, so many times more if
there are too few among them, and at most."""

T = TypeVar("T")


class Visibility:
    """For one who asks, for as long as one answer takes to begin."""

    def __init__(self, manager: Manager, peer: Peer) -> None:
        self._standing = manager.desk.requests.standing
        self._peer = peer
        self.everything = is_administrator(peer)
        self._own: dict[str, list[str]] | None = None

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    def event(self, event: Event) -> Event | None:
        """As it is to be told; None: it is not."""
        if self.everything:
            return event
        owner = event.facts.get("owner")
        if event.kind not in OF_EVERYBODY or (event.kind is EventKind.HOST_SPARED and owner):
            if owner is None and event.kind in OF_MACHINES:
                # It was not known when it happened.
                owner = self._standing.owner_of_machine(event.host, event.subject)
            if owner not in ("", self._peer.user):
                return None
        return msgspec.structs.replace(event, sentence=without_secrets(event.sentence))

    def judged(self, entry: Judged) -> Judged | None:
        """An entry of a trigger's log as it is to be told; None: it is not."""
        if self.everything:
            return entry
        if entry.owner not in ("", self._peer.user):
            return None
        return msgspec.structs.replace(
            entry,
            reason=without_secrets(entry.reason),
            actions=tuple(without_secrets(action) for action in entry.actions),
        )

    async def latest(
        self,
        look: Callable[[int], Awaitable[list[T]]],
        last: int,
        told: Callable[[T], T | None],
    ) -> list[T]:
        """The last ones that may be told. `look`: finds so many of the latest, the oldest first;
        `told`: how one of them is told. Not all there ever was is looked through for them."""
        if last <= 0:
            return []
        size = last if self.everything else max(last, LOOKED_AT_FIRST)
        while True:
            found = await look(size)
            heard = [item for item in map(told, found) if item is not None]
            if len(heard) >= last or len(found) < size or size >= LOOKED_THROUGH:
                return heard[-last:]
            size = min(size * WIDER, LOOKED_THROUGH)

    # ── what there is ────────────────────────────────────────────────────────────────────────────

    def trigger(self, view: TriggerView) -> TriggerView:
        """What is written in it is for everybody, but not for what and for whom it is true."""
        if self.everything:
            return view
        view = msgspec.structs.replace(
            view, commands=tuple(without_secrets(command) for command in view.commands)
        )
        if view.about in ("", *OPEN):
            return view
        stopped = "For some, since it fired too often on its own effect." if view.stopped else ""
        return msgspec.structs.replace(view, stopped=stopped, stopped_for=(), true_for=())

    def machines(self, state: HostState) -> dict[str, Machine]:
        """The machines of a host: one's own as they are, those of others from outside."""
        if self.everything:
            return state.machines
        if self._own is None:
            self._own = {}
            for _, host, machine in self._standing.machines_of(self._peer.user):
                self._own.setdefault(host, []).append(machine)
        here = state.outside()
        if names := self._own.get(state.record.name):
            here = here | {name: state.machines[name] for name in names if name in here}
        return here
