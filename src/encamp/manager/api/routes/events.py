"""Events: what happened, and what happens."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.openapi import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.types import ASGIApp

from encamp.door import questions
from encamp.manager.api.asking import Asked
from encamp.manager.api.paging import Page, page_of
from encamp.manager.api.routes.commands import Last
from encamp.manager.api.routes.site import USUAL, Hosts
from encamp.manager.api.streaming import chosen_format
from encamp.model.event import Event

EVENTS = ["Events"]

Since = Annotated[int, QueryParameter(ge=0, le=2**53, description="Only those after this number.")]


class EventList(msgspec.Struct, frozen=True):
    items: list[Event]


@get(
    "/events",
    tags=EVENTS,
    responses={**page_of(EventList), **USUAL},
    operation_id="events",
)
async def events(asking: Asked, since: Since = 0, last: Last = 100, host: Hosts = None) -> ASGIApp:
    """What happened, the oldest first."""
    question = questions.AskEvents(since=since, last=last, hosts=tuple(host or ()))
    return Page(await asking.all(question, Event))


@get(
    "/events/stream",
    tags=EVENTS,
    responses={
        200: ResponseSpec(
            Event,
            media_type="application/x-ndjson",
            description="One event in a line, without end; empty lines mean nothing. With"
            " `Accept: text/event-stream`, as server-sent events.",
            generate_examples=False,
        ),
        **USUAL,
    },
    operation_id="follow_events",
)
async def follow_events(
    asking: Asked,
    since: Annotated[
        int,
        QueryParameter(ge=-1, le=2**53, description="Go on after this; -1: from now on."),
    ] = -1,
    host: Hosts = None,
    last_event_id: Annotated[
        int,
        HeaderParameter(
            ge=-1, le=2**53, name="Last-Event-ID", description="As `since`, said by browsers."
        ),
    ] = -1,
) -> ASGIApp:
    """What happens, as it happens."""
    number = max(since, last_event_id)
    question = questions.AskEvents(
        since=max(0, number),
        last=0 if number < 0 else None,
        follow=True,
        hosts=tuple(host or ()),
    )
    return await asking.stream(asking.items(question), chosen_format(asking.accept))


HANDLERS = (events, follow_events)
