"""Tickets: leading clients to the hosts on which their machines are."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Set
from typing import TYPE_CHECKING

from encamp.core.picture import joined
from encamp.door.peer import Peer
from encamp.door.questions import Exec, Ticket
from encamp.manager.parts import EXEC, as_argument
from encamp.manager.rights import is_administrator
from encamp.meeting import tickets
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine
from encamp.model.request import (
    PartState,
    RequestRecord,
    claim_id,
)

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

TELLING = 10.0
"""Seconds that a host may take to tell of a machine that it has made, or to come back."""
LATEST = 1000
"""So many of somebody's requests are looked at."""
LOOK = 0.05
"""Seconds between two looks whether it has."""

MET = frozenset({PartState.STARTING, PartState.RUNNING, PartState.OVER})
"""States of parts that have something to speak with; its output, if no more."""


def part_ticket(manager: Manager, record: RequestRecord, number: int) -> Ticket:
    """To one of the machines of a request."""
    short = record.request.id[:8]
    found = [part for part in record.parts if part.number == number]
    if not 0 <= number < record.request.count:
        raise EncampError(
            Code.USAGE,
            f"{short} has no machine number {number}: it has {record.request.count}.",
            "They are counted from 0.",
        )
    if not found or found[0].state not in MET:
        why = f": {record.reason.sentence}" if record.reason.sentence else ""
        raise EncampError(
            Code.WRONG_STATE,
            f"{short} has not been started on any host yet{why}.",
            f"'encamp why {short}' tells what it waits for.",
            transient=True,
        )
    name = claim_id(record.request.id, number, record.attempt)
    return _ticket(manager, found[0].host, name)


async def exec_ticket(manager: Manager, peer: Peer, reference: str, asked: Exec) -> Ticket:
    """To a command that is run in a machine for it."""
    host, machine = await reached_machine(manager, peer, reference)
    owner = manager.desk.requests.standing.owner_of_machine(host, machine.id)
    if owner is None and not is_administrator(peer):
        owner = peer.user
    name = uuid.uuid4().hex
    ticket = _ticket(manager, host, name)
    await manager.dispatcher.issue(
        [host],
        EXEC,
        {
            "machine": machine.id,
            "exec": as_argument(asked),
            "ticket": tickets.digest(ticket.secret),
            "owner": owner or "",
        },
        peer.user,
        ids=[name],
    )
    return ticket


def _ticket(manager: Manager, host: str, name: str) -> Ticket:
    if not _is_joined(manager, host):
        raise _absent(manager, host)
    return Ticket(
        host=host,
        id=name,
        secret=tickets.secret_for(manager.desk.ticket_key, name),
        meeting=manager.listener.meeting_of(host),
    )


def _is_joined(manager: Manager, host: str) -> bool:
    state = manager.core.picture.hosts.get(host)
    return state is not None and joined(state.record)


def _absent(manager: Manager, host: str) -> EncampError:
    state = manager.core.picture.hosts.get(host)
    why = f": {state.record.reason}" if state is not None and state.record.reason else ""
    return EncampError(
        Code.UNREACHABLE,
        f"Host {host}, where it is, is not joined to the site now{why}.",
        "Try again when it is back: see 'encamp hosts'.",
        transient=True,
    )


async def reached_machine(manager: Manager, peer: Peer, reference: str) -> tuple[str, Machine]:
    """The same as `awaited_machine`, on a host that is there. One that was lost a moment ago may
    only have been too busy to give a sign of life, and has as long to come back."""
    until = time.monotonic() + TELLING
    host, machine = await awaited_machine(manager, peer, reference)
    while not _is_joined(manager, host):
        state = manager.core.picture.hosts.get(host)
        lost_lately = state is not None and time.time() - state.record.since < TELLING
        if not lost_lately or time.monotonic() >= until:
            raise _absent(manager, host)
        await asyncio.sleep(LOOK)
    return host, machine


async def awaited_machine(
    manager: Manager, peer: Peer, reference: str, *, whole: bool = False
) -> tuple[str, Machine]:
    """The same as `find_machine`; one that has just been made for somebody is waited for, until its
    host has told of it, and one that has ended is found as long as there is a record of it."""
    until = time.monotonic() + TELLING
    left: set[tuple[str, str]] | None = None
    while True:
        try:
            return find_machine(manager, peer, reference, left or frozenset(), whole=whole)
        except EncampError as error:
            if error.code is not Code.UNKNOWN_MACHINE:
                raise
            if left is None:
                left = await left_of(manager, peer.user)
                continue
            host = _about_to_tell(manager, peer, reference)
            if host is None or time.monotonic() >= until:
                raise error if host is None else _untold(manager, host, error) from None
        await asyncio.sleep(LOOK)


def _untold(manager: Manager, host: str, error: EncampError) -> EncampError:
    """Nobody can say what has become of a machine of a host that is not there."""
    return error if _is_joined(manager, host) else _absent(manager, host)


def _about_to_tell(manager: Manager, peer: Peer, reference: str) -> str | None:
    """The host that has made such a machine for somebody, and has not told of it."""
    hosts, records = manager.core.picture.hosts, manager.core.placement.records
    for request, host, machine in manager.desk.requests.standing.machines_of(peer.user):
        state, record = hosts.get(host), records.get(request)
        told = state is None or machine in state.machines
        if not told and record is not None:
            name = record.request.machine.name or f"{record.request.environment}-{machine[:6]}"
            if machine.startswith(reference) or name == reference:
                return host
    return None


async def left_of(manager: Manager, user: str) -> set[tuple[str, str]]:
    """Hosts and machines of somebody's latest requests. A request for a machine is over when that
    has ended, and the machine's record stays until it is removed; what a job was to keep stays when
    the job is over."""
    return {
        (part.host, part.machine)
        async for record in manager.desk.requests.latest(user, LATEST)
        for part in record.parts
        if part.machine
    }


def find_machine(
    manager: Manager,
    peer: Peer,
    reference: str,
    left: Set[tuple[str, str]] = frozenset(),
    *,
    whole: bool = False,
) -> tuple[str, Machine]:
    """A machine of whoever asks; administrators find all. Whose one is, is said by the request that
    it was made for: numbers of users may differ from host to host, and what a host says counts for
    machines of its own. Those of hosts that are not there are meant if no others can be.
    `whole`: the beginning of an id is not enough."""
    everything = is_administrator(peer)
    owner_of = manager.desk.requests.standing.owner_of_machine
    everywhere = [
        (name, machine)
        for name, state in manager.core.picture.hosts.items()
        for machine in state.machines.values()
        if (
            reference in (machine.name, machine.id)
            or (reference and not whole and machine.id.startswith(reference))
        )
        and (everything or owner_of(name, machine.id) == peer.user or (name, machine.id) in left)
    ]
    found = [one for one in everywhere if _is_joined(manager, one[0])] or everywhere
    exact = [one for one in found if reference in (one[1].id, one[1].name)]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    if found:
        places = ", ".join(f"{machine.id[:8]} on {host}" for host, machine in found[:3])
        raise EncampError(
            Code.USAGE,
            f"Several machines of this site are '{reference}': {places}.",
            "Write more of the id.",
        )
    raise EncampError(
        Code.UNKNOWN_MACHINE,
        f"You have no machine '{reference}' on this site.",
        "'encamp ps --site' lists its machines.",
    )
