"""Answering questions about triggers: what is watched, and why each fired or did not."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager.rights import administrators_only
from encamp.manager.visibility import Visibility
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

Answer = AsyncIterator[msgspec.Struct]


async def ask_triggers(manager: Manager, peer: Peer, asked: questions.AskTriggers) -> Answer:
    visibility = Visibility(manager, peer)
    if not asked.name:
        for view in manager.core.engine.views():
            yield visibility.trigger(view)
        return
    named = manager.core.engine.view(asked.name)
    if named is None:
        raise _unknown_trigger(manager, asked.name)
    yield visibility.trigger(named)


def _unknown_trigger(manager: Manager, name: str) -> EncampError:
    near = difflib.get_close_matches(name[:64], manager.core.engine.triggers, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return EncampError(
        Code.USAGE, f"There is no trigger '{name[:64]}'.", f"{hint}'encamp trigger ls' lists them."
    )


async def ask_log(manager: Manager, peer: Peer, asked: questions.AskTriggerLog) -> Answer:
    visibility = Visibility(manager, peer)
    logged = manager.recorder.logged
    look = partial(manager.store.judged, asked.name)
    if asked.name and asked.name not in manager.core.engine.triggers and not await look(1):
        raise _unknown_trigger(manager, asked.name)
    entries = await visibility.latest(look, asked.last, visibility.judged)
    while True:
        for entry in entries:
            yield entry
        if not asked.follow:
            return
        while manager.recorder.logged == logged:
            await manager.recorder.news.wait()
        new, logged = manager.recorder.judged_since(logged), manager.recorder.logged
        told = (visibility.judged(entry) for entry in new if asked.name in ("", entry.trigger))
        entries = [entry for entry in told if entry is not None]


async def reload(manager: Manager, peer: Peer, asked: questions.ReloadTriggers) -> Answer:
    administrators_only(peer, "load triggers")
    manager.load_triggers()
    manager.core.engine.release()
    async for view in ask_triggers(manager, peer, questions.AskTriggers()):
        yield view
