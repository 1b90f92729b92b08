"""Questions as they are asked at the manager's door: the command line's way in from other hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Request, post
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import (
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    RequestBody,
    Schema,
)
from litestar.types import ASGIApp

from encamp.door.frames import ANSWER, QUESTION
from encamp.door.server import understood
from encamp.manager.api.asking import Asked
from encamp.manager.api.failures import RefusedError, documented
from encamp.manager.api.streaming import Frames
from encamp.model.errors import Code, EncampError

QUESTIONS = ["Questions"]


@dataclass
class AskOperation(Operation):
    """What the framework cannot know: it is not JSON that is taken here."""

    def __post_init__(self) -> None:
        binary = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
        self.request_body = RequestBody(
            content={QUESTION: OpenAPIMediaType(schema=binary)},
            description="One question, in MessagePack.",
            required=True,
        )


@post(
    "/questions",
    tags=QUESTIONS,
    status_code=200,
    operation_class=AskOperation,
    responses={
        200: ResponseSpec(
            bytes,
            media_type=ANSWER,
            description="Frames: four bytes that say how long one is, and that much MessagePack."
            " That it was heard, which is repeated while there is nothing else to say; the items of"
            " the answer; that this was all, or what went wrong.",
            generate_examples=False,
        ),
        **documented((400, 401, 403, 408, 413, 415, 429, 500, 503)),
    },
    operation_id="ask",
)
async def ask(asking: Asked, request: Request[Any, Any, Any]) -> ASGIApp:
    """Ask as the command line does. Questions and answers are those of its own version, and are
    understood by it: programs have the other addresses."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != QUESTION:
        error = EncampError(Code.USAGE, f"A question is of the type {QUESTION}.")
        raise RefusedError(415, error)
    try:
        question = understood(await request.body())
    except EncampError as error:
        raise RefusedError(400, error) from error
    return asking.stream_at_once(lambda: asking.items_once_more(question), Frames())


HANDLERS = (ask,)
