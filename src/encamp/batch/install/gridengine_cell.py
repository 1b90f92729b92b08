"""What is wanted of Grid Engine, and what it says about itself."""

from __future__ import annotations

import msgspec

from encamp.batch.install import objects
from encamp.batch.install.changes import Object
from encamp.batch.install.masters import Masters, masters
from encamp.batch.install.wanted import Wanted

CALENDAR = "encamp"
"""What a closed host's queues go by."""
NODES = "@encamp"
"""The group of hosts that are machines, and worker nodes."""


class GridEngineWanted(Wanted, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ()
    """Those whose jobs may ask for an environment; none: all there are."""
    surroundings: dict[str, str]
    """SGE_ROOT and so on."""
    shared: bool = False
    """Does the master see the prefix of this host?"""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What Grid Engine says about itself."""

    complexes: str
    queues: dict[str, dict[str, str]]
    configuration: dict[str, str]
    hosts: tuple[str, ...]
    """Where jobs run."""
    calendar: str
    """What ours says, if it is there."""
    administrative: frozenset[str]
    submit: frozenset[str]
    """Hosts that may change Grid Engine, and give jobs to it."""
    masters: Masters = Masters()


def cell(surroundings: dict[str, str]) -> Cell:
    """Ask it."""

    def said(*arguments: str) -> str:
        return objects.ask(surroundings, *arguments)

    queues = {name: objects.attributes(said("-sq", name)) for name in said("-sql").split()}
    # Worker nodes that are machines, and their queue, have jobs without our doing.
    others = {name: queue for name, queue in queues.items() if queue.get("hostlist") != NODES}
    nodes = said("-shgrp_resolved", NODES).split() if len(others) < len(queues) else []
    return Cell(
        complexes=said("-sc"),
        queues=others,
        configuration=objects.attributes(said("-sconf")),
        hosts=tuple(host for host in said("-sel").split() if host not in nodes),
        calendar=objects.calendar(surroundings, CALENDAR),
        administrative=frozenset(said("-sh").split()),
        submit=frozenset(said("-ss").split()),
        masters=masters(surroundings),
    )


def changed(
    wanted: GridEngineWanted, sort: str, name: str, attribute: str, **values: str
) -> Object:
    return Object(
        sort=sort,
        name=name,
        attribute=attribute,
        surroundings=wanted.surroundings,
        before=values["before"],
        after=values["after"],
    )
