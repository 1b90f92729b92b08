"""The way in: who is calling, how much of it is let in, and how long it may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute
from litestar.types import (
    HTTPReceiveMessage,
    HTTPScope,
    Message,
    Receive,
    Send,
)

from encamp.door.peer import NOBODY, Peer, groups_named
from encamp.manager.api.failures import RefusedError, failure
from encamp.manager.api.limits import Limits, retry_after
from encamp.manager.api.measuring import Meters
from encamp.manager.restoration import HINT
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager
    from encamp.model.token import Token

LARGEST_BODY = 1 << 20
"""As at the other door."""
PATIENCE = 10.0
"""Seconds that a body may take to arrive."""
KNOWN_FOR = 60.0
"""Seconds after which the groups of a user are looked up again."""
OPEN = ("/health/", "/v1/openapi.json")
"""What needs no token: whether there is a manager, and what every manager can be asked."""
CALLER = "caller"
"""Where in a call's state it is said who is calling."""

encode = msgspec.json.Encoder().encode


class Entry:
    """Stands before the application."""

    def __init__(self, manager: Manager, limits: Limits, meters: Meters, inside: Litestar) -> None:
        self._manager = manager
        self._limits = limits
        self._meters = meters
        self._inside = inside
        # The framework forgets about methods of the same address that were added later.
        self._allowed = {
            route.path_format: ", ".join(sorted(route.methods)).encode()
            for route in inside.routes
            if isinstance(route, HTTPRoute)
        }
        self._groups: dict[str, tuple[float, tuple[str, ...]]] = {}

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = 0

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if scope["method"] == "OPTIONS" and status == 204:
                    message["headers"] = [(b"allow", self._allowed[scope["path_template"]])]
            await send(message)

        try:
            await self._enter(scope, receive, told)
        finally:
            seconds = time.perf_counter() - began
            route = str(scope.get("path_template", "") or "none")
            self._meters.call(scope["method"], route, status, seconds)

    async def _enter(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        try:
            _check_length(scope)
            if not scope["path"].startswith(OPEN):
                await self._check_tokens_hold()
                scope["state"][CALLER] = await self._caller(scope)
            bounded = Bounded(scope, receive)
        except RefusedError as refused:
            self._meters.refused(refused.status)
            await respond(send, refused)
            return
        await self._inside(scope, bounded, send)

    async def _check_tokens_hold(self) -> None:
        """Tokens in a store that was put back may have been revoked since. Hosts tell that it was
        as soon as they are heard of."""
        await self._manager.listener.gathered.wait()
        restored = self._manager.restoration.sentence
        if restored:
            error = EncampError(Code.UNREACHABLE, restored, HINT, transient=True)
            raise RefusedError(503, error, {"Retry-After": "10"})

    async def _caller(self, scope: HTTPScope) -> Peer:
        address = scope["client"][0] if scope["client"] else ""
        now = time.monotonic()
        token = self._token(scope)
        if token is None:
            wait = self._limits.failed(address, now)
            if wait:
                raise _too_many("Too many calls without a valid token come from there.", wait)
            raise RefusedError(
                401,
                EncampError(
                    Code.NOT_PERMITTED,
                    "No valid token was shown.",
                    "'encamp token create' makes one; show it as 'Authorization: Bearer TOKEN'.",
                ),
                {"WWW-Authenticate": 'Bearer realm="encamp"'},
            )
        wait = self._limits.call(token.id, now)
        if wait:
            raise _too_many("Too many calls come with this token.", wait)
        return Peer(
            uid=NOBODY,
            gid=NOBODY,
            pid=0,
            user=token.owner,
            groups=await self._groups_of(token.owner, now),
            scope=token.scope,
            token=token.id,
            address=address,
        )

    def _token(self, scope: HTTPScope) -> Token | None:
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(shown) != 1:
            return None
        kind, _, secret = shown[0].decode("latin-1").partition(" ")
        return self._manager.tokens.recognise(secret.strip()) if kind.lower() == "bearer" else None

    async def _groups_of(self, user: str, now: float) -> tuple[str, ...]:
        known = self._groups.get(user)
        if known is None or now - known[0] > KNOWN_FOR:
            known = self._groups[user] = (now, await asyncio.to_thread(groups_named, user))
        return known[1]


class Bounded:
    """Takes a body in, if it is neither too long nor too slow."""

    def __init__(self, scope: HTTPScope, receive: Receive) -> None:
        self._receive: Callable[[], Awaitable[HTTPReceiveMessage]] = receive  # type: ignore[assignment]
        self._left = LARGEST_BODY
        self._deadline = time.monotonic() + PATIENCE
        self._whole = False
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > LARGEST_BODY:
                raise _too_large()

    async def __call__(self) -> HTTPReceiveMessage:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            sentence = f"The body did not arrive within {PATIENCE:.0f} seconds."
            told = EncampError(Code.TIMEOUT, sentence, transient=True)
            raise RefusedError(408, told, {"Connection": "close"}) from error
        if message["type"] == "http.disconnect":
            # The framework would log that as a mistake of ours.
            sentence = "The call broke off in its body."
            raise RefusedError(400, EncampError(Code.USAGE, sentence, transient=True))
        if message["type"] == "http.request":
            self._left -= len(message["body"])
            self._whole = not message["more_body"]
            if self._left < 0:
                raise _too_large()
        return message


async def respond(send: Send, refused: RefusedError) -> None:
    status, body, headers = failure(refused)
    data = encode(body)
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(data)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in headers.items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": data, "more_body": False})


def _too_many(sentence: str, wait: float) -> RefusedError:
    error = EncampError(Code.NO_ROOM, sentence, "Come back later.", transient=True)
    return RefusedError(429, error, {"Retry-After": retry_after(wait)})


def _check_length(scope: HTTPScope) -> None:
    """A proxy in between may take the one for true, and we the other: what is part of a body to it
    would be a call to us, in somebody else's name."""
    names = {name for name, _ in scope["headers"]}
    if {b"content-length", b"transfer-encoding"} <= names:
        sentence = "Content-Length and Transfer-Encoding do not go together."
        told = EncampError(Code.USAGE, sentence, "Leave one of them out.")
        raise RefusedError(400, told, {"Connection": "close"})


def _too_large() -> RefusedError:
    sentence = f"A body of more than {LARGEST_BODY} bytes is not taken."
    return RefusedError(413, EncampError(Code.USAGE, sentence))
