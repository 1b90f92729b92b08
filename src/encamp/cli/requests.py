"""Requests at the manager: handing them in, following and ending them, getting tickets to them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

import msgspec

from encamp.cli.cleaning import remark
from encamp.door.client import AnyDoor, UnansweredError, WentAwayError, ask_async
from encamp.door.questions import AskTicket, EndRequest, FollowRequest, Question, Submit, Ticket
from encamp.model.errors import Code, EncampError
from encamp.model.request import NOT_YET, REQUEST_OVER, Cause, Request, RequestRecord, RequestState
from encamp.progress import Progress

A = TypeVar("A", bound=msgspec.Struct)

SHORT = 8
"""Letters of an id that people are shown."""
AGAIN = 0.5
"""Seconds after which a manager that went away is tried again."""


def short(id: str) -> str:
    return id[:SHORT]


async def submit(door: AnyDoor, request: Request) -> RequestRecord:
    """Hand it in, once, also if the manager goes away over it."""
    from encamp.describe.environments import own_files

    question = Submit(
        request=request, key=uuid.uuid4().hex, descriptions=own_files(request.environment)
    )
    try:
        return await _sooner_or_later(door, question)
    except EncampError as error:
        if error.code is Code.UNREACHABLE or error.code is Code.NOT_PERMITTED:
            raise _with_hint(error, "--local does without the site, on this host alone.") from error
        if error.code is Code.UNKNOWN_ENVIRONMENT:
            raise _unknown(error, request.environment) from error
        raise


async def _sooner_or_later(door: AnyDoor, question: Submit) -> RequestRecord:
    """From the manager that is there, or from the next one, if it leaves."""
    left = False
    while True:
        try:
            return await one(door, question, RequestRecord)
        except UnansweredError as error:
            if not left and not isinstance(error, WentAwayError):
                raise
            if not left:
                remark(f"{error.sentence} Waiting for it.")
            left = True
            await asyncio.sleep(AGAIN)


async def follow(door: AnyDoor, id: str) -> AsyncGenerator[RequestRecord, None]:
    """The record, now and whenever it has changed. A manager that goes away is waited for."""
    told = False
    while True:
        try:
            async with aclosing(ask_async(door, FollowRequest(id=id), RequestRecord)) as answer:
                async for record in answer:
                    told = False
                    yield record
            return
        except UnansweredError as error:
            if not told:
                remark(f"{error.sentence} Waiting for it.")
                told = True
            await asyncio.sleep(AGAIN)


async def ticket(door: AnyDoor, record: RequestRecord, number: int) -> Ticket:
    return await one(door, AskTicket(request=record.request.id, number=number), Ticket)


async def end(door: AnyDoor, id: str) -> RequestRecord:
    return await one(door, EndRequest(id=id), RequestRecord)


async def one(door: AnyDoor, question: Question, expected: type[A]) -> A:
    async with aclosing(ask_async(door, question, expected)) as answer:
        async for item in answer:
            return item
    raise EncampError(Code.PROTOCOL, "The manager gave no answer.")


QUIET = frozenset({Cause.CLAIM, Cause.START})
"""What comes before every job: worth a word only to somebody who was told that it waits."""


def tell(record: RequestRecord, progress: Progress, *, waited: bool) -> bool:
    """What somebody who waits for it should know: why it waits, and what happens next. `waited`:
    was anything told before? Returns whether by now."""
    id, reason = short(record.request.id), record.reason
    if record.state in REQUEST_OVER or not reason.sentence:
        return waited
    if record.state is RequestState.WAITING:
        if reason.sentence == NOT_YET:
            return waited
        after = f" {reason.next}" if reason.next else ""
        progress.update(f"{id} waits: {reason.sentence.rstrip('.')}.{after}")
    elif waited or reason.cause not in QUIET:
        progress.update(f"{id}: {reason.sentence}")
    else:
        return waited
    return True


def verdict(record: RequestRecord) -> EncampError:
    """Why a request is over that has not run to its end."""
    id, reason = short(record.request.id), record.reason
    match record.state:
        case RequestState.CANCELLED if reason.cause is Cause.NOT_BEGUN:
            return EncampError(
                Code.NOT_BEGUN, f"Job {id} was withdrawn: {reason.sentence}.", reason.next
            )
        case RequestState.CANCELLED:
            why = f": {reason.sentence}" if reason.sentence else ""
            return EncampError(Code.WRONG_STATE, f"Job {id} was cancelled{why}.", reason.next)
        case RequestState.DONE:
            return EncampError(
                Code.UNREACHABLE,
                f"Job {id} has ended with exit code {record.exit_code or 0}, and its host could not"
                " be asked for the rest of what it left.",
            )
        case RequestState.LOST:
            code = Code.UNREACHABLE
        case _:
            code = record.code or Code.COMMAND_FAILED
    failures = [part.failure for part in record.parts if part.failure]
    sentence = reason.sentence or (failures[0] if failures else "it is not known why")
    return EncampError(code, f"Job {id} {record.state.value}: {sentence}", reason.next)


def _unknown(error: EncampError, environment: str) -> EncampError:
    """Neither the site nor the caller describes it, unless there is a mistake in his files."""
    from encamp.describe.environments import find_environment, wrong_beside_site

    hint = "One of your own goes into environments.yaml in the current directory."
    try:
        find_environment(environment)
    except EncampError as local:
        if local.code is not Code.UNKNOWN_ENVIRONMENT:
            return local
        error = EncampError(error.code, error.sentence, error.hint, detail=wrong_beside_site())
    return _with_hint(error, hint)


def _with_hint(error: EncampError, hint: str) -> EncampError:
    return EncampError(
        error.code,
        error.sentence,
        f"{error.hint} {hint}".lstrip(),
        transient=error.transient,
        detail=error.detail,
    )
