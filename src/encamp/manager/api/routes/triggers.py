"""Triggers: what is watched, why each fired or did not, and reading their files again."""

from __future__ import annotations

import msgspec
from litestar import get, post
from litestar.openapi import ResponseSpec
from litestar.types import ASGIApp

from encamp.core.actions import Judged
from encamp.door import questions
from encamp.manager.api.asking import Asked
from encamp.manager.api.routes.commands import Last
from encamp.manager.api.routes.site import NAMED, USUAL, Name
from encamp.manager.api.streaming import chosen_format
from encamp.model.trigger import TriggerView

TRIGGERS = ["Triggers"]


class TriggerList(msgspec.Struct, frozen=True):
    items: list[TriggerView]


class TriggerLog(msgspec.Struct, frozen=True):
    items: list[Judged]


@get("/triggers", tags=TRIGGERS, responses=USUAL, operation_id="triggers")
async def triggers(asking: Asked) -> TriggerList:
    """Triggers that are watched."""
    return TriggerList(await asking.all(questions.AskTriggers(), TriggerView))


@get("/triggers/{name:str}", tags=TRIGGERS, responses=NAMED, operation_id="trigger")
async def trigger(asking: Asked, name: Name) -> TriggerView:
    """One trigger."""
    return await asking.one(questions.AskTriggers(name=name), TriggerView)


@get("/triggers/{name:str}/log", tags=TRIGGERS, responses=NAMED, operation_id="trigger_log")
async def trigger_log(asking: Asked, name: Name, last: Last = 100) -> TriggerLog:
    """Why a trigger fired or did not, the oldest first."""
    question = questions.AskTriggerLog(name=name, last=last)
    return TriggerLog(await asking.some(question, Judged))


@get(
    "/triggers/{name:str}/log/stream",
    tags=TRIGGERS,
    responses={
        200: ResponseSpec(
            Judged,
            media_type="application/x-ndjson",
            description="One entry in a line, without end; empty lines mean nothing.",
            generate_examples=False,
        ),
        **NAMED,
    },
    operation_id="follow_trigger_log",
)
async def follow_trigger_log(asking: Asked, name: Name, last: Last = 0) -> ASGIApp:
    """A trigger's log as it is written."""
    question = questions.AskTriggerLog(name=name, last=last, follow=True)
    return await asking.stream(asking.items(question), chosen_format(asking.accept))


@post(
    "/triggers/reload",
    tags=TRIGGERS,
    responses=USUAL,
    operation_id="reload_triggers",
    status_code=200,
)
async def reload_triggers(asking: Asked) -> TriggerList:
    """Read the files again. If they are wrong, what was watched goes on. Needs `administer`."""
    return TriggerList(await asking.all(questions.ReloadTriggers(), TriggerView))


HANDLERS = (triggers, trigger, trigger_log, follow_trigger_log, reload_triggers)
