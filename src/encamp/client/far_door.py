"""The door of a manager on another host: questions go to its HTTP API, with a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import msgspec

from encamp.client.place import READ, Place
from encamp.client.trying import asked_pause
from encamp.door.client import Reading, ReadingAsync, UnansweredError, WentAwayError
from encamp.door.frames import ANSWER, LARGEST_QUESTION, LENGTH, QUESTION, SOON, STANDS_BY, frame
from encamp.door.questions import Question
from encamp.model.errors import Code, EncampError
from encamp.model.problem import Problem

PATIENCE = 20.0
"""Seconds within which a manager that is alive has heard the question, and for which one is tried
again that has too much to do."""
SUCCESSION, AWAY = 10.0, 0.5
"""Seconds for which a manager that has answered before is waited for if it does not now, and those
between two tries."""
LARGEST_REFUSAL = 64 << 10
"""Bytes of what is said instead of an answer that are read."""
IN_BETWEEN = frozenset({502, 503, 504})
"""What servers in between say of one that they do not reach."""


class HttpDoor:
    def __init__(self, place: Place) -> None:
        self._place = place

    def __str__(self) -> str:
        return str(self._place)

    @contextmanager
    def opened(self, question: Question) -> Iterator[Reading]:
        call = _Call(self._place, question)
        with self._place.client() as http:
            while True:
                request = call.request(http)
                try:
                    with self._reached():
                        response = http.send(request, stream=True)
                except UnansweredError as error:
                    time.sleep(call.pause_before_next(error))
                    continue
                try:
                    if call.is_answer(response):
                        _wait_longer(request)
                        yield _Arriving(response.iter_raw())
                        return
                    with self._reached():
                        said = next(response.iter_raw(LARGEST_REFUSAL), b"")
                finally:
                    response.close()
                time.sleep(call.pause(response, said))

    @asynccontextmanager
    async def opened_async(self, question: Question) -> AsyncIterator[ReadingAsync]:
        call = _Call(self._place, question)
        async with self._place.async_client() as http:
            while True:
                request = call.request(http)
                try:
                    with self._reached():
                        response = await http.send(request, stream=True)
                except UnansweredError as error:
                    await asyncio.sleep(call.pause_before_next(error))
                    continue
                try:
                    if call.is_answer(response):
                        _wait_longer(request)
                        yield _ArrivingAsync(response.aiter_raw())
                        return
                    with self._reached():
                        said = await anext(response.aiter_raw(LARGEST_REFUSAL), b"")
                finally:
                    await response.aclose()
                await asyncio.sleep(call.pause(response, said))

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            if not self._was_there(error):
                raise self._place.unreachable(error) from error
            raise WentAwayError(
                Code.UNREACHABLE,
                f"The manager at {self} went away before it answered.",
                "Once it is back, ask again.",
                transient=True,
            ) from error

    def _was_there(self, error: httpx.TransportError) -> bool:
        """Was somebody spoken with who speaks as a manager does?"""
        if isinstance(error, httpx.RemoteProtocolError):
            return self._place.answered or all(url.startswith("https:") for url in self._place.urls)
        return isinstance(error, httpx.ReadError | httpx.WriteError)


class _Call:
    """One question, until it is heard."""

    def __init__(self, place: Place, question: Question) -> None:
        self._place = place
        self._body = frame(question)[LENGTH.size :]
        if len(self._body) > LARGEST_QUESTION:
            raise EncampError(
                Code.USAGE,
                f"A question of {len(self._body)} bytes is too long: {LARGEST_QUESTION} are"
                " allowed.",
            )
        self._until = time.monotonic() + PATIENCE
        self._until_back = time.monotonic() + SUCCESSION

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        return http.build_request(
            "POST",
            "v1/questions",
            content=self._body,
            headers={"Content-Type": QUESTION, "Accept": ANSWER, "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(self._place.timeout.connect, read=PATIENCE),
        )

    def pause_before_next(self, error: UnansweredError) -> float:
        """Seconds until it is asked again where nobody has heard it, if somebody has answered there
        before; the error itself, if it is not."""
        near = time.monotonic() + AWAY < self._until_back
        if isinstance(error, WentAwayError) or not self._place.answered or not near:
            raise error
        return AWAY

    def is_answer(self, response: httpx.Response) -> bool:
        return response.status_code == 200 and _kind(response) == ANSWER

    def pause(self, response: httpx.Response, said: bytes) -> float:
        """Seconds after which it is asked again: one who is told to come back was not heard. Of
        several managers, one that stands by may be about to lead; a single one says so."""
        pause = max(0.1, asked_pause(response.headers))
        stands_by = response.headers.get(STANDS_BY)
        several = len(self._place.urls) > 1
        later = response.status_code == 429 or (
            stands_by is not None and (several or stands_by == SOON)
        )
        if later and time.monotonic() + pause < self._until:
            return pause
        raise self._refusal(response, said)

    def _refusal(self, response: httpx.Response, said: bytes) -> EncampError:
        status = response.status_code
        try:
            told = msgspec.json.decode(said, type=Problem).error()
        except msgspec.DecodeError:
            return self._nobody(response)
        if STANDS_BY in response.headers:
            return UnansweredError(told.code, told.sentence, told.hint, transient=True)
        if status == 401:
            return EncampError(
                Code.NOT_PERMITTED,
                f"The manager at {self._place} does not take the token: it is wrong, was revoked,"
                " or has ended.",
                "'encamp token create' on the manager's host makes another; log in with it:"
                " 'encamp login URL'.",
            )
        if status == 404:
            return EncampError(
                Code.PROTOCOL,
                f"The manager at {self._place} takes no questions of the command line over HTTP.",
                "It is of an earlier release: use the command line on its host.",
            )
        return told

    def _nobody(self, response: httpx.Response) -> EncampError:
        status = response.status_code
        if status in IN_BETWEEN:
            return UnansweredError(
                Code.UNREACHABLE,
                f"The manager at {self._place} does not answer: a server in between says {status}.",
                "Is it the address of a manager, and does that run?",
                transient=True,
            )
        return EncampError(
            Code.PROTOCOL,
            f"What answers at {self._place} is not the manager of a site: it says {status}"
            f" ({_kind(response) or 'nothing more'}).",
            "The manager's address is what 'listen' of 'api' in its site.yaml says.",
        )


def _kind(response: httpx.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _wait_longer(request: httpx.Request) -> None:
    """It has begun to answer, and says from time to time that it still does."""
    request.extensions["timeout"]["read"] = READ


@contextmanager
def _as_of_a_socket() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise TimeoutError from error
    except httpx.TransportError as error:
        raise ConnectionError(str(error)) from error


class _Arriving:
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._waiting = bytearray()

    def exactly(self, size: int) -> bytes:
        while len(self._waiting) < size:
            with _as_of_a_socket():
                piece = next(self._pieces, b"")
            if not piece:
                raise EOFError
            self._waiting += piece
        return _taken(self._waiting, size)

    def was_heard(self) -> None:
        """Here silence means that something is wrong, whenever it is."""


class _ArrivingAsync:
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._waiting = bytearray()

    async def exactly(self, size: int) -> bytes:
        while len(self._waiting) < size:
            with _as_of_a_socket():
                piece = await anext(self._pieces, b"")
            if not piece:
                raise EOFError
            self._waiting += piece
        return _taken(self._waiting, size)

    def was_heard(self) -> None:
        """As above."""


def _taken(waiting: bytearray, size: int) -> bytes:
    data = bytes(waiting[:size])
    del waiting[:size]
    return data
