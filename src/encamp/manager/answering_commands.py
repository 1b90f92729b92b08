"""Answering questions about commands. Everybody sees and cancels what they issued, administrators
all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager.answering_hosts import hosts_named
from encamp.manager.rights import (
    check_right,
    is_administrator,
    present_hosts,
)
from encamp.model.command import IN_WORDS, OVER, CommandRecord
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

PIECE = 256 << 10
"""Bytes of output in one item."""

Answer = AsyncIterator[msgspec.Struct]


def _refuse_commands_for_hosts(manager: Manager, asked: questions.IssueCommand) -> None:
    for name in asked.hosts:
        if name in manager.core.commands() and name not in manager.core.picture.hosts:
            raise EncampError(
                Code.USAGE,
                f"'{name}' is a command, and no host.",
                f"Hosts come first, then the command: encamp command send HOST... {name}",
            )


def _refuse_internal(manager: Manager, name: str) -> None:
    definition = manager.core.commands().get(name)
    if definition is not None and definition.internal:
        raise EncampError(
            Code.USAGE,
            f"'{name}' is for the manager to issue.",
            "'encamp run', 'encamp start' and 'encamp exec' have it issued for you.",
        )


async def issue(manager: Manager, peer: Peer, asked: questions.IssueCommand) -> Answer:
    if not asked.hosts:
        raise EncampError(Code.USAGE, "No host was named.", "Name some, or '*' for all.")
    _refuse_commands_for_hosts(manager, asked)
    _refuse_internal(manager, asked.name)
    hosts = hosts_named(manager, asked.hosts)
    if not is_administrator(peer):
        for host in hosts:
            check_right(manager.site.rights, peer.user, peer.groups, asked.name, host)
    hosts, left_out = present_hosts(asked.hosts, hosts)
    records = await manager.dispatcher.issue(
        [host.name for host in hosts],
        asked.name,
        asked.arguments,
        peer.user,
        timeout=asked.timeout,
        texts=asked.texts,
    )
    for host in left_out:
        yield questions.LeftOut(host.name, f"is {host.presence.value}: {host.reason}")
    for record in records:
        yield record


async def _look(manager: Manager, peer: Peer, id: str) -> CommandRecord:
    """What a command was told, and what came of it, is its issuer's business, and that it is there
    at all."""
    return await manager.store.command(id, "" if is_administrator(peer) else peer.user)


async def ask_commands(manager: Manager, peer: Peer, asked: questions.AskCommands) -> Answer:
    if asked.id:
        yield await _look(manager, peer, asked.id)
        return
    names = [host.name for host in hosts_named(manager, asked.hosts)] if asked.hosts else []
    issuer = "" if is_administrator(peer) else peer.user
    if asked.under_way:
        latest_first = reversed(await manager.store.under_way())
        fitting = (one for one in latest_first if not names or one.host in names)
        found = [one for one in fitting if issuer in ("", one.issuer)][: max(0, asked.last)]
    else:
        found = await manager.store.commands(names, asked.last, issuer)
    for record in found:
        yield record


async def follow(manager: Manager, peer: Peer, asked: questions.FollowCommands) -> Answer:
    offsets: dict[str, int] = {}
    for command_id, offset in asked.offsets.items():
        record = await _look(manager, peer, command_id)
        offsets[record.id] = max(0, offset)
    with manager.dispatcher.commands.followers.follow(offsets) as follower:
        while offsets:
            for command_id in await follower.next():
                if command_id not in offsets:
                    continue
                # The state first: what comes before a command's end is written down before it.
                record = await manager.store.command(command_id)
                while piece := await manager.store.output(command_id, offsets[command_id], PIECE):
                    yield questions.Output(command_id, offsets[command_id], piece)
                    offsets[command_id] += len(piece)
                if record.state in OVER:
                    yield record
                    del offsets[command_id]


async def cancel(manager: Manager, peer: Peer, asked: questions.CancelCommand) -> Answer:
    record = await _look(manager, peer, asked.id)
    if record.state in OVER:
        raise EncampError(
            Code.WRONG_STATE,
            f"There is nothing to cancel: {record.name} on {record.host}"
            f" {IN_WORDS[record.state]} already.",
            f"'encamp command show {record.id[:8]}' tells more.",
        )
    yield await manager.dispatcher.cancel(record)
