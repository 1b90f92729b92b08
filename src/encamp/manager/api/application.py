"""The application: all that can be called, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme, Tag

from encamp.manager.api.asking import asking
from encamp.manager.api.failures import HANDLERS
from encamp.manager.api.routes import (
    administration,
    commands,
    events,
    health,
    questions,
    requests,
    site,
    triggers,
)

if TYPE_CHECKING:
    from encamp.manager.api.limits import Limits
    from encamp.manager.api.measuring import Meters
    from encamp.manager.daemon import Manager

VERSION = "1"
"""Of the API: a change that breaks callers gets another one, at another address."""
TAGS = (
    Tag("Site", "Hosts, machines, environments, and why things are as they are."),
    Tag("Requests", "Jobs and machines that are wanted."),
    Tag("Commands", "What hosts are told to do."),
    Tag("Triggers", "What is watched."),
    Tag("Events", "What happens."),
    Tag("Questions", "The command line's own way in."),
    Tag("Administration", "Tokens, and the audit log."),
    Tag("Health", "For those who watch over the manager."),
)
ABOUT = """What the manager of an Encamp site can be asked and told. Every call shows a token,
`Authorization: Bearer TOKEN`, that `encamp token create` has made; its scope and its owner decide
what is allowed. Whatever goes wrong is told as a `Problem`."""


def _handlers() -> list[Router | object]:
    versioned = Router(
        "/v1",
        route_handlers=[
            *site.HANDLERS,
            *requests.HANDLERS,
            *commands.HANDLERS,
            *triggers.HANDLERS,
            *events.HANDLERS,
            *questions.HANDLERS,
            *administration.HANDLERS,
        ],
    )
    return [versioned, *health.HANDLERS]


def application(manager: Manager, limits: Limits, meters: Meters) -> Litestar:
    state = State({"manager": manager, "limits": limits, "meters": meters})
    return _made(state, None)


def described() -> Litestar:
    """The same with a description, and nothing behind it."""
    config = OpenAPIConfig(
        title="Encamp",
        version=VERSION,
        description=" ".join(ABOUT.split()),
        use_handler_docstrings=True,
        tags=list(TAGS),
        security=[{"token": []}],
        components=Components(
            security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}
        ),
    )
    return _made(State(), config)


def _made(state: State, description: OpenAPIConfig | None) -> Litestar:
    from encamp.manager.api.document import document_handler

    return Litestar(
        [*_handlers(), document_handler],  # type: ignore[list-item]
        dependencies={"asking": Provide(asking, sync_to_thread=False)},
        exception_handlers=HANDLERS,
        state=state,
        openapi_config=description,
        logging_config=None,
    )
