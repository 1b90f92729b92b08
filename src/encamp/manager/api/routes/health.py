"""Whether there is a manager, and whether it works; and what Prometheus is told."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import Response, get

from encamp.door import questions
from encamp.door.questions import Status
from encamp.manager.api.asking import Asked, Call
from encamp.manager.api.failures import documented
from encamp.manager.api.routes.site import USUAL
from encamp.manager.restoration import HINT
from encamp.model.errors import Code, EncampError

HEALTH = ["Health"]
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


@get("/health/live", tags=HEALTH, operation_id="live", security=[{}])
async def live() -> Health:
    """Is there a manager? Needs no token."""
    return Health()


@get(
    "/health/ready",
    tags=HEALTH,
    responses=documented((503,)),
    operation_id="ready",
    security=[{}],
)
async def ready(request: Call) -> Health:
    """Does it decide, and can it write down what it decides? Needs no token."""
    manager = request.app.state.manager
    if not manager.store.tenure.holds():
        # It was stuck, and has not found out yet who leads.
        raise EncampError(Code.UNREACHABLE, "This manager may not lead any more.", transient=True)
    if manager.restoration.sentence:
        sentence = "The manager's store was put back from a backup: nothing is started."
        raise EncampError(Code.UNREACHABLE, sentence, HINT, transient=True)
    if manager.store.trouble:
        # What is wrong in particular is told to those who show a token: see /v1/status.
        sentence = "The manager cannot write to its store."
        raise EncampError(Code.UNREACHABLE, sentence, transient=True)
    return Health()


@get("/metrics", tags=HEALTH, responses=USUAL, operation_id="metrics", media_type=TEXT)
async def metrics(request: Call, asking: Asked) -> Response[bytes]:
    """For Prometheus. All names begin with `encamp_`."""
    # Whoever may not see the site's status may not see its numbers.
    await asking.one(questions.AskStatus(), Status)
    return Response(request.app.state.meters.told(), media_type=TEXT)


HANDLERS = (live, ready, metrics)
