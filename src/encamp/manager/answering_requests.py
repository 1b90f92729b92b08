"""Answering questions about requests. Everybody sees and ends their own, administrators all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager.bounds import check_exec
from encamp.manager.explaining import explain
from encamp.manager.moving import both_meant, move_machine, request_of_machine
from encamp.manager.rights import is_administrator
from encamp.manager.ticketing import exec_ticket, part_ticket
from encamp.model.errors import Code, EncampError
from encamp.model.request import REQUEST_OVER, RequestRecord

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

Answer = AsyncIterator[msgspec.Struct]

LOOK = 1.0
"""Seconds after which whoever follows a request is told why it waits now, if that has changed."""


def whose(peer: Peer) -> str:
    """The owner whose requests somebody may see; empty: everybody's."""
    return "" if is_administrator(peer) else peer.user


async def _look(manager: Manager, peer: Peer, name: str) -> RequestRecord:
    return await manager.desk.requests.meant(peer, name, administrator=is_administrator(peer))


async def submit(manager: Manager, peer: Peer, asked: questions.Submit) -> Answer:
    yield await manager.desk.requests.submit(
        peer, asked.request, asked.key, asked.descriptions, administrator=is_administrator(peer)
    )


async def ask_requests(manager: Manager, peer: Peer, asked: questions.AskRequests) -> Answer:
    owner = whose(peer)
    if asked.id:
        record = await _look(manager, peer, asked.id)
        manager.desk.attendance.asked(record.request.id)
        yield record
        return
    if asked.under_way:
        found = manager.desk.requests.under_way(owner, asked.last)
    else:
        found = manager.desk.requests.latest(owner, asked.last)
    async for record in found:
        yield record


async def follow(manager: Manager, peer: Peer, asked: questions.FollowRequest) -> Answer:
    record = await _look(manager, peer, asked.id)
    request = record.request.id
    told: RequestRecord | None = None
    with manager.desk.writing.followers.follow([request]) as follower:
        while True:
            record = await manager.desk.requests.look(request)
            # That it is over is told when it is written down.
            pending = record.state in REQUEST_OVER and manager.desk.writing.unwritten(request)
            if record != told and not pending:
                told = record
                yield record
                if record.state in REQUEST_OVER:
                    return
            try:
                async with asyncio.timeout(LOOK):
                    await follower.next()
            except TimeoutError:
                pass


async def end(manager: Manager, peer: Peer, asked: questions.EndRequest) -> Answer:
    record = unknown = None
    try:
        record = await _look(manager, peer, asked.id)
    except EncampError as error:
        if error.code is not Code.USAGE:
            raise
        unknown = error
    id = record.request.id if record is not None else None
    if asked.id != id:
        # A machine that was started stands for what it was asked for with. Its name counts for
        # more than the beginning of a job's id: the wrong job must not be ended.
        made = await request_of_machine(manager, peer, asked.id)
        if made is not None and made != id:
            if record and record.request.label == asked.id and record.state not in REQUEST_OVER:
                raise both_meant(asked.id, record.request.id, made)
            id = made
    if id is None:
        assert unknown is not None
        raise unknown
    yield await manager.desk.requests.end(id, whose(peer), peer.user)


async def move(manager: Manager, peer: Peer, asked: questions.MoveMachine) -> Answer:
    yield await move_machine(manager, peer, asked)


async def ask_ticket(manager: Manager, peer: Peer, asked: questions.AskTicket) -> Answer:
    if asked.request and not asked.machine and asked.exec is None:
        record = await _look(manager, peer, asked.request)
        yield part_ticket(manager, record, asked.number)
    elif asked.machine and asked.exec is not None and not asked.request:
        check_exec(asked.exec)
        yield await exec_ticket(manager, peer, asked.machine, asked.exec)
    else:
        raise EncampError(
            Code.USAGE,
            "A ticket leads to a part of a request, or to a command in a machine.",
            "Name a request, or a machine and what to run in it.",
        )


async def ask_why(manager: Manager, peer: Peer, asked: questions.AskWhy) -> Answer:
    yield await explain(manager, peer, asked.id, asked.hosts)
