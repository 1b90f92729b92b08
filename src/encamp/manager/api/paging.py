"""Pages of many items, written piece by piece: what is written takes little memory, stays in the
processor's cache, and begins to travel while the rest is being written."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from litestar.openapi import ResponseSpec
from litestar.types import Receive, Scope, Send

from encamp.model.errors import Code, EncampError

PIECE = 500
"""Items in one piece."""

BEGINNING = b'{"items":['

encoder = msgspec.json.Encoder()
encode = encoder.encode


class Page:
    """An application of ASGI that answers with `{"items": [...], "next": ...}`."""

    def __init__(self, items: Sequence[msgspec.Struct], following: str | None = None) -> None:
        """`following`: the page after this one; None: there are no pages of these."""
        self._items = items
        self._following = following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # One buffer for all pieces: whoever sends one has copied it when that returns.
        buffer = bytearray(BEGINNING)
        place = len(BEGINNING) - 1
        for start in range(0, len(self._items), PIECE):
            # A list in brackets: what stands before it takes the place of the first one.
            before = buffer[place]
            encoder.encode_into(self._items[start : start + PIECE], buffer, place)
            buffer[place] = before
            with memoryview(buffer) as whole, whole[:-1] as piece:
                await _write(send, cast(bytes, piece), more=True)
            buffer[:1], place = b",", 0
        rest = b"]}" if self._following is None else b'],"next":%b}' % encode(self._following)
        await _write(send, rest if self._items else BEGINNING + rest, more=False)


async def _write(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def page_of(kind: type[msgspec.Struct]) -> dict[int, Any]:
    """How it is described."""
    return {200: ResponseSpec(kind, description="Some of them.", generate_examples=False)}


def page_token(*place: str) -> str:
    """Where a page has ended: to be given back, and to be read by nobody."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def place_of(token: str, parts: int) -> tuple[str, ...]:
    """Where the page before has ended; empty words, if there was none."""
    if not token:
        return ("",) * parts
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        place: tuple[str, ...] = msgspec.msgpack.decode(data, type=tuple[str, ...])
        if len(place) == parts:
            return place
    except (binascii.Error, ValueError, msgspec.DecodeError):
        pass
    raise EncampError(
        Code.USAGE, "This is not the 'next' of a page.", "Leave 'page' out for the first one."
    )
