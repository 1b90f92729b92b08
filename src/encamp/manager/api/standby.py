"""What a manager that stands by answers over HTTP: that it is alive, and not the one to ask."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from litestar.types import HTTPScope, Receive, Send

from encamp.door.frames import STANDS_BY
from encamp.manager.api.entry import respond
from encamp.manager.api.failures import RefusedError
from encamp.manager.api.routes.health import Health
from encamp.manager.api.server import Listening
from encamp.model.errors import Code, EncampError
from encamp.model.site import Api

ALIVE = msgspec.json.encode(Health())


class StandingBy(Listening):
    """`why`: a sentence that says who leads."""

    def __init__(self, api: Api, why: Callable[[], str]) -> None:
        super().__init__(api, self._answer)
        self._why = why

    async def _answer(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/health/live":
            length = str(len(ALIVE)).encode()
            head = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": ALIVE, "more_body": False})
            return
        hint = "Ask the manager that leads."
        error = EncampError(Code.UNREACHABLE, self._why(), hint, transient=True)
        await respond(send, RefusedError(503, error, {"Retry-After": "1", STANDS_BY: "yes"}))
