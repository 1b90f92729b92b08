"""Several addresses of one site: the one of the manager that leads is found by trying them.

Another is tried if nobody was reached, or if whoever was reached says that it stands by: in both
cases nobody has heard what was said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx

from encamp.door.frames import STANDS_BY

UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout)


class Turns:
    """The one that answered last comes first."""

    def __init__(self, urls: Sequence[str], answered: Callable[[], None]) -> None:
        self._urls = [httpx.URL(url) for url in urls]
        self._first = 0
        self._answered = answered
        """Called whenever somebody was reached."""

    def order(self) -> list[int]:
        count = len(self._urls)
        return [(self._first + step) % count for step in range(count)]

    def request(self, request: httpx.Request, number: int) -> httpx.Request:
        """What was meant for the first address, for another."""
        if number == 0:
            return request
        first, other = self._urls[0], self._urls[number]
        rest = request.url.raw_path.removeprefix(first.raw_path.rstrip(b"/"))
        url = other.copy_with(raw_path=other.raw_path.rstrip(b"/") + rest)
        headers = httpx.Headers(request.headers)
        headers["Host"] = url.netloc.decode("ascii")
        return httpx.Request(
            request.method,
            url,
            headers=headers,
            stream=request.stream,
            extensions=request.extensions,
        )

    def is_answer(self, response: httpx.Response, number: int) -> bool:
        self._answered()
        if STANDS_BY in response.headers:
            return False
        self._first = number
        return True


class InTurn(httpx.BaseTransport):
    def __init__(self, turns: Turns, inside: httpx.BaseTransport) -> None:
        self._turns = turns
        self._inside = inside

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        failures: list[httpx.TransportError] = []
        standing_by: list[httpx.Response] = []
        for number in self._turns.order():
            try:
                response = self._inside.handle_request(self._turns.request(request, number))
            except UNREACHED as error:
                failures.append(error)
                continue
            if self._turns.is_answer(response, number):
                for other in standing_by:
                    other.close()
                return response
            standing_by.append(response)
        for other in standing_by[1:]:
            other.close()
        if standing_by:
            return standing_by[0]
        raise failures[0]

    def close(self) -> None:
        self._inside.close()


class InTurnAsync(httpx.AsyncBaseTransport):
    def __init__(self, turns: Turns, inside: httpx.AsyncBaseTransport) -> None:
        self._turns = turns
        self._inside = inside

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        failures: list[httpx.TransportError] = []
        standing_by: list[httpx.Response] = []
        for number in self._turns.order():
            try:
                sent = self._turns.request(request, number)
                response = await self._inside.handle_async_request(sent)
            except UNREACHED as error:
                failures.append(error)
                continue
            if self._turns.is_answer(response, number):
                for other in standing_by:
                    await other.aclose()
                return response
            standing_by.append(response)
        for other in standing_by[1:]:
            await other.aclose()
        if standing_by:
            return standing_by[0]
        raise failures[0]

    async def aclose(self) -> None:
        await self._inside.aclose()
