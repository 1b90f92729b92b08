"""Requests: jobs to run, and machines to keep."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.openapi import ResponseSpec
from litestar.params import HeaderParameter, JSONBody, QueryParameter
from litestar.types import ASGIApp

from encamp.door import questions
from encamp.manager.api.asking import Asked
from encamp.manager.api.failures import documented
from encamp.manager.api.job_output import Printed, job_output
from encamp.manager.api.paging import Page, page_of
from encamp.manager.api.routes.commands import Last
from encamp.manager.api.routes.site import ALWAYS, NAMED, USUAL, Name
from encamp.manager.api.streaming import Bytes, chosen_format
from encamp.model.new_request import NewRequest
from encamp.model.request import Explanation, RequestRecord

REQUESTS = ["Requests"]


class RequestList(msgspec.Struct, frozen=True):
    items: list[RequestRecord]


@get(
    "/requests",
    tags=REQUESTS,
    responses={**page_of(RequestList), **USUAL},
    operation_id="requests",
)
async def requests(
    asking: Asked,
    under_way: Annotated[bool, QueryParameter(description="Only those that are not over.")] = False,
    last: Last = 100,
) -> ASGIApp:
    """Requests of the token's owner, the latest first; an administrator's token shows all."""
    question = questions.AskRequests(last=last, under_way=under_way)
    return Page(await asking.all(question, RequestRecord))


@post(
    "/requests",
    tags=REQUESTS,
    responses=documented((*ALWAYS, 404, 409, 415)),
    operation_id="submit",
)
async def submit(
    asking: Asked,
    data: JSONBody[NewRequest],
    idempotency_key: Annotated[
        str,
        HeaderParameter(
            name="Idempotency-Key",
            max_length=200,
            description="Chosen by the caller: told again with the same one, nothing is queued"
            " twice, and the same is answered.",
        ),
    ] = "",
) -> RequestRecord:
    """Queue a job, or machines. It is written down when this returns."""
    request = data.request(asking.caller.user)
    question = questions.Submit(request=request, key=idempotency_key)
    (record,) = await asking.all(question, RequestRecord)
    return record


@get("/requests/{name:str}", tags=REQUESTS, responses=NAMED, operation_id="request")
async def request(asking: Asked, name: Name) -> RequestRecord:
    """One request, by its id, the beginning of it, or its label."""
    return await asking.one(questions.AskRequests(id=name), RequestRecord)


@delete(
    "/requests/{name:str}",
    tags=REQUESTS,
    responses=documented((*ALWAYS, 404, 409)),
    operation_id="end_request",
    status_code=200,
)
async def end_request(asking: Asked, name: Name) -> RequestRecord:
    """Cancel a request, however far it is."""
    return await asking.one(questions.EndRequest(id=name), RequestRecord)


@get("/requests/{name:str}/why", tags=REQUESTS, responses=NAMED, operation_id="why_request")
async def why_request(
    asking: Asked,
    name: Name,
    hosts: Annotated[
        int, QueryParameter(ge=0, le=10_000, description="So many hosts' reasons.")
    ] = 100,
) -> Explanation:
    """What a request waits for, and each host's reason for not being chosen."""
    record = await asking.one(questions.AskRequests(id=name), RequestRecord)
    return await asking.one(questions.AskWhy(id=record.request.id, hosts=hosts), Explanation)


@get(
    "/requests/{name:str}/stream",
    tags=REQUESTS,
    responses={
        200: ResponseSpec(
            RequestRecord,
            media_type="application/x-ndjson",
            description="It as it is now, and whenever it has changed, until it is over: one in a"
            " line; empty lines mean nothing. With `Accept: text/event-stream`, as server-sent"
            " events.",
            generate_examples=False,
        ),
        **NAMED,
    },
    operation_id="follow_request",
)
async def follow_request(asking: Asked, name: Name) -> ASGIApp:
    """How a request gets on."""
    question = questions.FollowRequest(id=name)
    return await asking.stream(asking.items(question), chosen_format(asking.accept))


@get(
    "/requests/{name:str}/output",
    tags=REQUESTS,
    responses={
        200: ResponseSpec(
            bytes,
            media_type="application/octet-stream",
            description="What it prints.",
            generate_examples=False,
        ),
        **documented((*ALWAYS, 404, 409, 502, 504)),
    },
    operation_id="request_output",
)
async def request_output(
    asking: Asked,
    name: Name,
    number: Annotated[
        int, QueryParameter(ge=0, le=10_000, description="Of which of its machines, from 0.")
    ] = 0,
    which: Annotated[Printed, QueryParameter(name="stream")] = Printed.STDOUT,
    follow: Annotated[
        bool, QueryParameter(description="From its beginning to its end; else what there is now.")
    ] = True,
) -> ASGIApp:
    """What a job prints, as it comes, until it is over."""
    record = await asking.one(questions.AskRequests(id=name), RequestRecord)
    return await asking.stream(job_output(asking, record, number, which, follow=follow), Bytes())


HANDLERS = (
    requests,
    submit,
    request,
    end_request,
    why_request,
    follow_request,
    request_output,
)
