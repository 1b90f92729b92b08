"""The machines of the site: one of them, or those that were asked for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from encamp.core.picture import HostState, joined
from encamp.door.peer import Peer, uid_named
from encamp.door.questions import AskMachines, SiteMachine
from encamp.manager.rights import chosen_hosts
from encamp.manager.ticketing import left_of
from encamp.manager.visibility import Visibility
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager


async def machines(manager: Manager, peer: Peer, asked: AskMachines) -> list[SiteMachine]:
    """Sorted by host and id. There may be very many: each costs little."""
    view = _everything if asked.mine else Visibility(manager, peer).machines
    found = [_one(manager, asked.id, view)] if asked.id else await _several(manager, asked, view)
    if not asked.mine:
        return found
    left = await left_of(manager, peer.user)
    return [
        msgspec.structs.replace(one, home=manager.listener.home_of(one.host))
        for one in found
        if one.owner == peer.user or (one.host, one.machine.id) in left
    ]


View = Callable[[HostState], dict[str, Machine]]
"""The machines of a host, as somebody may see them."""


def _everything(state: HostState) -> dict[str, Machine]:
    return state.machines


async def _several(manager: Manager, asked: AskMachines, view: View) -> list[SiteMachine]:
    owner = await asyncio.to_thread(uid_named, asked.owner) if asked.owner else None
    first, after = asked.after
    most = sys.maxsize if asked.most is None else max(0, asked.most)
    filtered = bool(asked.environment or asked.states or asked.owner)
    states = manager.core.picture.hosts
    owner_of = manager.desk.requests.standing.owner_of_machine
    found: list[SiteMachine] = []
    for host in chosen_hosts(asked.hosts, [state.record for state in states.values()]):
        if host.name < first:
            continue
        here = view(states[host.name])
        ids = sorted(here)
        if host.name == first:
            ids = [one for one in ids if one > after]
        if filtered:
            ids = [one for one in ids if _is_wanted(here[one], asked, owner)]
        name, known = host.name, joined(host)
        found += [
            SiteMachine(host=name, known=known, machine=here[one], owner=owner_of(name, one) or "")
            for one in ids
        ]
        if len(found) >= most:
            break
    return found[:most]


def _is_wanted(machine: Machine, asked: AskMachines, owner: int | None) -> bool:
    return (
        asked.environment in ("", machine.environment)
        and (not asked.states or machine.state in asked.states)
        and owner in (None, machine.owner)
    )


def _one(manager: Manager, name: str, view: View) -> SiteMachine:
    owner_of = manager.desk.requests.standing.owner_of_machine
    found = [
        SiteMachine(
            host=state.record.name,
            known=joined(state.record),
            machine=machine,
            owner=owner_of(state.record.name, machine.id) or "",
        )
        for state in manager.core.picture.hosts.values()
        for machine in view(state).values()
        if machine.id.startswith(name) or machine.name == name
    ]
    exact = [one for one in found if name in (one.machine.id, one.machine.name)]
    if len(exact or found) != 1:
        many = "Several machines have" if found else "No machine has"
        raise EncampError(
            Code.UNKNOWN_MACHINE,
            f"{many} a name or id that fits '{name[:64]}'.",
            "Write more of the id." if found else "'encamp ps --site' lists them.",
        )
    return (exact or found)[0]
