"""Making a call again and again, as long as there is sense in it: the same with and without an
event loop."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import httpx

from encamp.client.calls import Call
from encamp.client.place import Place
from encamp.client.trying import Tries, asked_pause
from encamp.model.errors import EncampError


class Attempts:
    """At one call."""

    def __init__(self, call: Call[Any], place: Place, patience: float) -> None:
        self.pause = 0.0
        """Seconds until the next one, after one that has failed."""
        self._place = place
        self._patience = patience
        self._tries = Tries(call, patience, time.monotonic())
        self._told = False
        self._asked = 0.0

    def __enter__(self) -> None:
        """One attempt."""
        self._told, self._asked = False, 0.0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """What has failed in it is raised, if another attempt would make no sense."""
        match error:
            case httpx.TransportError():
                # Where nobody is, nobody has heard it.
                self._told = self._told or isinstance(error, httpx.ConnectError)
                failure = self._place.unreachable(error)
            case EncampError():
                failure = error
            case _:
                return False
        self.pause = self._tries.pause(
            failure,
            time.monotonic(),
            told=self._told,
            asked=self._asked,
            found=self._place.answered,
        )
        return True

    def heard(self, response: httpx.Response) -> None:
        """The manager, or something before it, has answered."""
        self._told, self._asked = True, asked_pause(response.headers)

    def went_on(self) -> None:
        """A stream has told something: it has all its patience again."""
        self._tries.succeeded(self._patience, time.monotonic())

    def ended(self) -> None:
        """A stream without an end has ended."""
        raise self._place.unreachable(ConnectionError("it ended the stream"))


class Resumed:
    """A stream of bytes that begins anew whenever it breaks: what was had already is left out."""

    def __init__(self) -> None:
        self._had = 0
        self._position = 0

    def begin(self) -> None:
        self._position = 0

    def new(self, piece: bytes) -> bytes:
        found = piece[max(0, self._had - self._position) :]
        self._position += len(piece)
        self._had = max(self._had, self._position)
        return found
