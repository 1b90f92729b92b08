"""What triggers have to remember, in the store: written down before what they decided is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import msgspec

from encamp.core.triggers.engine import Engine
from encamp.core.triggers.memory import OneTrigger, TriggerMemory
from encamp.manager.store.store import Store
from encamp.model.errors import EncampError

log = logging.getLogger(__name__)

MEMORY = "trigger "
"""With a trigger's name: the key in the store of what it has to remember."""


async def recall(engine: Engine, store: Store) -> None:
    """What a former manager has written down."""
    parts = []
    for kept in (await store.kept_under(MEMORY)).values():
        with contextlib.suppress(msgspec.MsgspecError):
            parts.append(msgspec.msgpack.decode(kept, type=OneTrigger))
    engine.restore(TriggerMemory(triggers=tuple(parts)), time.time())


async def remember(engine: Engine, store: Store) -> None:
    changes = engine.memory_changes()
    try:
        await asyncio.gather(
            *(_remember_one(store, f"{MEMORY}{name}", one) for name, one in changes.items())
        )
    except EncampError as error:
        engine.write_again(changes)
        log.warning("What triggers remember could not be written down: %s", error)


async def _remember_one(store: Store, key: str, one: OneTrigger | None) -> None:
    if one is None:
        await store.drop(key)
    else:
        await store.keep(key, msgspec.msgpack.encode(one))
