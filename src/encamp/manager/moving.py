"""Moves that owners make with their machines, wherever on the site those are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encamp.door.peer import Peer
from encamp.door.questions import Move, MoveMachine
from encamp.images.reference import check_tag
from encamp.manager.rights import is_administrator
from encamp.manager.ticketing import awaited_machine, reached_machine
from encamp.model.command import CommandRecord
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager


async def move_machine(manager: Manager, peer: Peer, asked: MoveMachine) -> CommandRecord:
    """That it is the caller's machine is right enough: no other has to be granted."""
    host, machine = await reached_machine(manager, peer, asked.machine)
    owner = manager.desk.requests.standing.owner_of_machine(host, machine.id)
    if owner is None and not is_administrator(peer):
        owner = peer.user
    arguments: dict[str, Value] = {"machine": machine.id, "owner": owner or ""}
    if asked.move is Move.REMOVE:
        arguments["force"] = asked.force
    elif asked.move is Move.SAVE:
        arguments["image"] = check_tag(asked.image)
        arguments["compression"] = asked.compression.value
    [record] = await manager.dispatcher.issue(
        [host], f"machine.{asked.move.value}", arguments, peer.user
    )
    return record


async def request_of_machine(manager: Manager, peer: Peer, reference: str) -> str | None:
    """The request that a machine of the caller's was made for, by its whole name or id, if that
    request has no others."""
    try:
        host, machine = await awaited_machine(manager, peer, reference, whole=True)
    except EncampError as error:
        if error.code is Code.UNKNOWN_MACHINE:
            return None
        raise
    request = manager.desk.requests.standing.made_for(host, machine.id)
    record = manager.core.placement.records.get(request or "")
    return request if record is not None and record.request.count == 1 else None


def both_meant(name: str, labelled: str, made: str) -> EncampError:
    return EncampError(
        Code.USAGE,
        f"'{name[:64]}' is the label of {labelled}, and the name of the machine of {made}.",
        "Write the id of the one that is meant.",
    )
