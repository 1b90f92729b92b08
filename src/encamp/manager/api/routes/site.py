"""The site: how it is, its hosts, machines and environments, and why things are as they are."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, cast

import msgspec
from litestar import delete, get
from litestar.params import FromQuery, PathParameter, QueryParameter
from litestar.types import ASGIApp

from encamp.describe.environments import UnreadError
from encamp.door import questions
from encamp.door.questions import SiteEnvironment, SiteMachine, Status
from encamp.manager.api.asking import Asked
from encamp.manager.api.failures import documented
from encamp.manager.api.paging import Page, page_of, page_token, place_of
from encamp.model.host import Host
from encamp.model.machine import State
from encamp.model.property import Reading
from encamp.model.request import Explanation

Limit = Annotated[int, QueryParameter(ge=1, le=10_000, description="At most so many in one page.")]
PageToken = Annotated[
    str, QueryParameter(max_length=2000, description="`next` of the page before; none: the first.")
]
Hosts = Annotated[
    list[str] | None,
    QueryParameter(max_items=1000, description="Names, patterns as `node*`, `@group`; none: all."),
]
Reasons = Annotated[
    int, QueryParameter(ge=0, le=10_000, description="At most so many hosts' reasons.")
]
Name = Annotated[str, PathParameter(min_length=1, max_length=300)]

SITE = ["Site"]
ALWAYS = (400, 401, 403, 408, 413, 422, 429, 500, 503, 507)
"""What every call may be answered with."""
USUAL = documented(ALWAYS)
NAMED = documented((*ALWAYS, 404))


class HostPage(msgspec.Struct, frozen=True):
    items: list[Host]
    next: str = ""
    """To be given as `page` for those after these; empty: that is all."""


class MachinePage(msgspec.Struct, frozen=True):
    items: list[SiteMachine]
    next: str = ""
    """To be given as `page` for those after these; empty: that is all."""


class EnvironmentList(msgspec.Struct, frozen=True):
    items: list[SiteEnvironment]


class Readings(msgspec.Struct, frozen=True):
    items: dict[str, Reading]


@get("/status", tags=SITE, responses=USUAL, operation_id="status")
async def status(asking: Asked) -> Status:
    """How the site is as a whole."""
    return await asking.one(questions.AskStatus(), Status)


@get("/hosts", tags=SITE, responses={**page_of(HostPage), **USUAL}, operation_id="hosts")
async def hosts(
    asking: Asked,
    host: Hosts = None,
    reading: Annotated[
        list[str] | None,
        QueryParameter(
            max_items=100,
            description="Only readings of these properties, and no definitions; none: everything.",
        ),
    ] = None,
    limit: Limit = 1000,
    page: PageToken = "",
) -> ASGIApp:
    """Hosts, sorted by name."""
    (after,) = place_of(page, 1)
    question = questions.AskHosts(
        hosts=tuple(host or ()),
        brief=None if reading is None else tuple(reading),
        after=after,
        most=limit + 1,
    )
    found = await asking.all(question, Host)
    more = page_token(found[limit - 1].name) if len(found) > limit else ""
    return Page(found[:limit], more)


@get("/hosts/{name:str}", tags=SITE, responses=NAMED, operation_id="host")
async def host(asking: Asked, name: Name) -> Host:
    """One host, with all that is known of it."""
    return await asking.one(questions.AskHosts(hosts=(name,)), Host)


@get("/hosts/{name:str}/properties", tags=SITE, responses=NAMED, operation_id="properties")
async def properties(
    asking: Asked,
    name: Name,
    reading: Annotated[
        list[str] | None, QueryParameter(max_items=100, description="Only these; none: all.")
    ] = None,
    fresh: Annotated[
        bool, QueryParameter(description="Have the host read them anew; needs the scope `use`.")
    ] = False,
    timeout: Annotated[
        float,
        QueryParameter(gt=0, le=600, description="Seconds to wait for a fresh reading."),
    ] = 10.0,
) -> Readings:
    """What was last read on a host."""
    question: questions.AskProperties | questions.AskHosts
    if fresh:
        question = questions.AskProperties(
            hosts=(name,), properties=tuple(reading or ()), timeout=timeout
        )
    else:
        question = questions.AskHosts(hosts=(name,))
    found = await asking.one(question, Host)
    readings = found.readings
    if reading is not None:
        readings = {key: value for key, value in readings.items() if key in reading}
    return Readings(readings)


@delete(
    "/hosts/{name:str}",
    tags=SITE,
    responses=documented((*ALWAYS, 404, 409)),
    operation_id="forget_host",
    status_code=200,
)
async def forget_host(asking: Asked, name: Name) -> Host:
    """Forget a host that will not come back. Needs the scope `administer`."""
    return await asking.one(questions.ForgetHost(host=name), Host)


@get("/machines", tags=SITE, responses={**page_of(MachinePage), **USUAL}, operation_id="machines")
async def machines(
    asking: Asked,
    host: Hosts = None,
    environment: FromQuery[str] = "",
    states: Annotated[
        list[State] | None, QueryParameter(name="state", description="Only in one of these.")
    ] = None,
    owner: Annotated[str, QueryParameter(description="A user's name.")] = "",
    limit: Limit = 1000,
    page: PageToken = "",
) -> ASGIApp:
    """Machines, sorted by host and id."""
    after_host, after_id = place_of(page, 2)
    question = questions.AskMachines(
        hosts=tuple(host or ()),
        environment=environment,
        states=tuple(states or ()),
        owner=owner,
        after=(after_host, after_id),
        most=limit + 1,
    )
    found = await asking.all(question, SiteMachine)
    more = ""
    if len(found) > limit:
        del found[limit:]
        more = page_token(found[-1].host, found[-1].machine.id)
    return Page(found, more)


@get("/machines/{name:str}", tags=SITE, responses=NAMED, operation_id="machine")
async def machine(asking: Asked, name: Name) -> SiteMachine:
    """One machine, by its name, its id, or the beginning of it."""
    return await asking.one(questions.AskMachines(id=name), SiteMachine)


@get("/environments", tags=SITE, responses=USUAL, operation_id="environments")
async def environments(asking: Asked) -> EnvironmentList:
    """Environments that the token's owner may use."""
    found = []
    # Those that are known are told; why one is missing, to whoever asks for that one.
    with suppress(UnreadError):
        async for item in asking.items(questions.AskEnvironments()):
            found.append(cast(SiteEnvironment, item))  # noqa: PERF401
    return EnvironmentList(found)


@get("/environments/{name:str}", tags=SITE, responses=NAMED, operation_id="environment")
async def environment(asking: Asked, name: Name) -> SiteEnvironment:
    """One environment."""
    return await asking.one(questions.AskEnvironments(name=name), SiteEnvironment)


@get("/why/{name:str}", tags=SITE, responses=NAMED, operation_id="why")
async def why(
    asking: Asked,
    name: Name,
    hosts: Annotated[
        int, QueryParameter(ge=0, le=10_000, description="So many hosts' reasons.")
    ] = 100,
) -> Explanation:
    """Why a request, machine, host, trigger or command is as it is, and what happens next."""
    return await asking.one(questions.AskWhy(id=name, hosts=hosts), Explanation)


HANDLERS = (
    status,
    hosts,
    host,
    properties,
    forget_host,
    machines,
    machine,
    environments,
    environment,
    why,
)
