"""What goes wrong, as HTTP says it: one shape for everything, and a status for every code."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, ValidationException
from litestar.types import ExceptionHandlersMap

from encamp.model.errors import Code, EncampError
from encamp.model.problem import Problem

log = logging.getLogger(__name__)

STATUSES: dict[Code, int] = {
    Code.USAGE: 422,
    Code.INPUT_MISSING: 422,
    Code.CONFIGURATION: 422,
    Code.NOT_PERMITTED: 403,
    Code.UNTRUSTED: 403,
    Code.UNKNOWN_ENVIRONMENT: 404,
    Code.UNKNOWN_MACHINE: 404,
    Code.WRONG_STATE: 409,
    Code.CORRUPT: 500,
    Code.PROGRAM_MISSING: 500,
    Code.INTERNAL: 500,
    Code.BUILD_FAILED: 500,
    Code.MACHINE_LOST: 502,
    Code.PROTOCOL: 502,
    Code.COPY_FAILED: 502,
    Code.COMMAND_FAILED: 502,
    Code.NO_ROOM: 503,
    Code.UNREACHABLE: 503,
    Code.NO_ANSWER: 504,
    Code.NOT_READY: 504,
    Code.NOT_BEGUN: 504,
    Code.TIMEOUT: 504,
    Code.DISK_FULL: 507,
}


class RefusedError(Exception):
    """A refusal for which HTTP has a status of its own, whatever the code."""

    def __init__(self, status: int, error: EncampError, headers: dict[str, str] | None = None):
        super().__init__(error.sentence)
        self.status = status
        self.error = error
        self.headers = headers or {}


def unknown(error: EncampError) -> Exception:
    """The address names something that there is not: that is 404, and no mistake in the words."""
    return RefusedError(404, error) if error.code is Code.USAGE else error


def failure(error: Exception) -> tuple[int, Problem, dict[str, str]]:
    """Status, body and headers. What nobody expected is told in the log alone."""
    match error:
        case RefusedError():
            return error.status, Problem.of(error.error), error.headers
        case EncampError():
            headers = {"Retry-After": "1"} if error.transient else {}
            status = STATUSES[error.code]
            if error.code is Code.NO_ROOM and not error.transient:
                status = 422  # Waiting for room that there will never be makes no sense.
            return status, Problem.of(error), headers
        case ValidationException():
            told = EncampError(Code.USAGE, _invalid(error), "See /v1/openapi.json.")
            return 400, Problem.of(told), {}
        case RecursionError():
            sentence = "The call is not understood: it is nested too deeply."
            told = EncampError(Code.USAGE, sentence, "See /v1/openapi.json.")
            return 400, Problem.of(told), {}
        case UnicodeDecodeError():
            sentence = "The call is not understood: it is not all UTF-8."
            told = EncampError(Code.USAGE, sentence, "See /v1/openapi.json.")
            return 400, Problem.of(told), {}
        case MethodNotAllowedException():
            sentence = "This address does not take that method."
            told = EncampError(Code.USAGE, sentence, "See /v1/openapi.json.")
            return 405, Problem.of(told), dict(error.headers or {})
        case HTTPException() if error.status_code < 500:
            sentence = "There is nothing at this address."
            if error.status_code != 404:
                sentence = f"The call is not understood: {error.detail}."
            told = EncampError(Code.USAGE, sentence, "See /v1/openapi.json.")
            return error.status_code, Problem.of(told), {}
        case _:
            log.error("A call over HTTP could not be answered.", exc_info=error)
            sentence = "The manager made a mistake."
            told = EncampError(Code.INTERNAL, sentence, "Its log says more. Please report it.")
            return 500, Problem.of(told), {}


def _invalid(error: ValidationException) -> str:
    """The first things that are wrong with a call."""
    said = [
        f"{one.get('key', 'the call')}: {one.get('message', '')}".strip()
        for one in (error.extra if isinstance(error.extra, list) else [])
        if isinstance(one, dict)
    ]
    return f"The call is not understood: {'; '.join(said[:3]) or error.detail}."


def _respond(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    status, body, headers = failure(error)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


HANDLERS: ExceptionHandlersMap = dict.fromkeys(
    (RefusedError, EncampError, HTTPException, Exception), _respond
)


def documented(statuses: Iterable[int]) -> dict[int, Any]:
    """What an operation may answer with beside what it is for."""
    from litestar.openapi import ResponseSpec

    return {
        status: ResponseSpec(Problem, description=REASONS[status], generate_examples=False)
        for status in statuses
    }


REASONS = {
    400: "The call is not understood: it is not as described here.",
    401: "No valid token was shown.",
    403: "The token does not go as far as that, or its owner may not do it.",
    404: "There is no such thing, or it belongs to somebody else.",
    408: "The call took too long to arrive.",
    409: "Not in the state it is in.",
    413: "The body is too large.",
    415: "The body is of another type than JSON.",
    422: "The call is understood, and makes no sense here: no host is called so, for example.",
    429: "Too many calls; Retry-After says when to come back.",
    500: "A mistake of Encamp's own.",
    502: "A host or a machine said something that makes no sense.",
    503: "It cannot be done now: later it may.",
    504: "A host or a machine did not answer in time.",
    507: "The manager's disk is full.",
}
