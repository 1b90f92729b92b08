"""Answering what happened, and what happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager.answering_hosts import hosts_named
from encamp.manager.visibility import Visibility

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

Answer = AsyncIterator[msgspec.Struct]


async def ask_events(manager: Manager, peer: Peer, asked: questions.AskEvents) -> Answer:
    names = [host.name for host in hosts_named(manager, asked.hosts)] if asked.hosts else []
    visibility = Visibility(manager, peer)
    number = asked.since
    heard = manager.recorder.news.count
    if asked.last is None:
        events = await manager.store.events(asked.since, None, names)
    else:
        # What is older than those asked for is not news.
        latest = await manager.store.events(last=1)
        number = max([number, *(event.number for event in latest)])
        look = partial(manager.store.events, asked.since, hosts=names)
        events = await visibility.latest(look, asked.last, visibility.event)
    while True:
        for event in events:
            number = max(number, event.number)
            told = visibility.event(event)
            if told is not None:
                yield told
        if not asked.follow:
            return
        await manager.recorder.news.wait(heard)
        heard = manager.recorder.news.count
        events = await manager.store.events(number, None, names)
