"""What a manager that stands by answers over HTTP: that it is alive, and not the one to ask."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from litestar.types import HTTPScope, Receive, Send

from encamp.door.frames import SOON, STANDS_BY
from encamp.manager.api.entry import respond
from encamp.manager.api.failures import RefusedError
from encamp.manager.api.routes.health import Health
from encamp.manager.api.server import Listening
from encamp.model.errors import Code, EncampError
from encamp.model.site import Api

ALIVE = msgspec.json.encode(Health())


class StandingBy(Listening):
    """`why`: a sentence that says who leads. `soon`: is this one about to?"""

    def __init__(
        self, api: Api, why: Callable[[], str], soon: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(api, self._send_away)
        self._why = why
        self._soon = soon

    async def _send_away(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/health/live":
            length = str(len(ALIVE)).encode()
            head = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": ALIVE, "more_body": False})
            return
        soon = self._soon()
        hint = "Ask again in a moment." if soon else "Ask the manager that leads."
        error = EncampError(Code.UNREACHABLE, self._why(), hint, transient=True)
        await respond(
            send, RefusedError(503, error, {"Retry-After": "1", STANDS_BY: SOON if soon else "yes"})
        )
