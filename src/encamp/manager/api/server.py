"""The server: uvicorn in the manager's own event loop, at the address that site.yaml says."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psutil
import uvicorn

from encamp.describe.places import daemon_directory
from encamp.describe.site_file import SITE
from encamp.manager.api.application import application
from encamp.manager.api.connection import Listener, protocol_for
from encamp.manager.api.entry import Entry
from encamp.manager.api.limits import Limits
from encamp.manager.api.measuring import Meters, SiteCollector
from encamp.model.errors import Code, EncampError
from encamp.model.site import Api

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

MOST_CONNECTIONS = 1024
"""Beyond them, calls are told to come back later."""
KEEP_ALIVE = 30
"""Seconds that a connection may be idle between two calls."""
GOODBYE = 1
"""Seconds that calls under way have to end when the manager does."""
BACKLOG = 1024

log = logging.getLogger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""As ASGI has it."""


class Quiet(uvicorn.Server):
    """Leaves signals to the manager, and does not wake up ten times a second to see whether it is
    to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.ready.set()
        await self.ending.wait()


class Listening:
    """Answers at an address while `async with` does. Others can be had answer there for a time: the
    port stays open meanwhile, and nobody is refused because one gives way to the other."""

    def __init__(self, api: Api, inside: Application) -> None:
        self._api = api
        self._inside = inside
        self._guest: Application | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        """Those that the guest answers."""
        self._server: Quiet
        self._serving: asyncio.Task[None]
        self.address = ""
        """Where: a URL."""

    async def __aenter__(self) -> Self:
        listener = _listener(self._api.listen)
        try:
            config = uvicorn.Config(
                self._answer,
                http=protocol_for(listener),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=GOODBYE,
                h11_max_incomplete_event_size=64 << 10,
                backlog=BACKLOG,
            )
            config.load()
            # What is wrong with a call is the caller's business, and what else is, is logged here.
            logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
            config.ssl = _context(self._api)
        except BaseException:
            listener.close()
            raise
        host, port = listener.getsockname()[:2]
        scheme = "https" if config.ssl else "http"
        self.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._context = config.ssl
        self._server = Quiet(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._serving.result()
        log.info("Answering over HTTP at %s.", self.address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.ending.set()
        await self._serving
        # Those that had to be broken off let go of what they hold.
        await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        call = asyncio.current_task()
        if self._guest is None or call is None:
            await self._inside(scope, receive, send)
            return
        self._calls.add(call)
        try:
            await self._guest(scope, receive, send)
        finally:
            self._calls.discard(call)

    @contextlib.asynccontextmanager
    async def giving_way(self, guest: Application) -> AsyncIterator[None]:
        """`guest` answers what is called meanwhile; its calls are broken off in the end."""
        self._guest = guest
        try:
            yield
        finally:
            self._guest = None
            calls = set(self._calls)
            if calls:
                await asyncio.wait(calls, timeout=GOODBYE)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def reload(self) -> None:
        """Read the certificate again: the next connection is shown the new one."""
        if self._context is not None:
            _load(self._context, self._api)


class ApiServer:
    """What a manager that leads answers, as long as `async with` does."""

    def __init__(self, manager: Manager, api: Api, port: Listening | None = None) -> None:
        """`port`: where somebody answers already who gives way; None: it has one of its own."""
        self.limits = limits = Limits(api.rate, api.failures)
        meters = Meters()
        meters.registry.register(SiteCollector(manager, limits))
        inside = application(manager, limits, meters)
        self._entry = Entry(manager, limits, meters, inside)
        self._port = port or Listening(api, self._entry)
        self._is_own = port is None
        self._held = contextlib.AsyncExitStack()

    @property
    def address(self) -> str:
        """Where: a URL."""
        return self._port.address

    def reload(self) -> None:
        self._port.reload()

    async def __aenter__(self) -> Self:
        way = self._port if self._is_own else self._port.giving_way(self._entry)
        await self._held.enter_async_context(way)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._held.aclose()


def _taker(port: int) -> str:
    """Who listens at a port, as far as that may be known: root sees the processes of everybody."""
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            taken = one.laddr and one.laddr.port == port
            if taken and one.status == psutil.CONN_LISTEN and one.pid:
                return f"process {one.pid} ({psutil.Process(one.pid).name()})"
    return "another process"


def _listener(listen: str) -> Listener:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = Listener(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        where = f"{daemon_directory()}/{SITE}"
        hint = f"Choose another address: 'listen' in 'api' in {where}."
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise EncampError(
                Code.WRONG_STATE,
                f"The manager cannot answer over HTTP at {listen}: {_taker(int(port))} listens"
                " there already.",
                f"End it, or choose another port: 'listen' in 'api' in {where}.",
            ) from error
        why = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise EncampError(
            Code.CONFIGURATION,
            f"The manager cannot answer over HTTP at {listen}: {why}.",
            hint,
        ) from error
    return listener


def _context(api: Api) -> ssl.SSLContext | None:
    if api.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, api)
    return context


def _load(context: ssl.SSLContext, api: Api) -> None:
    assert api.certificate is not None
    try:
        context.load_cert_chain(api.certificate, api.key)
    except (OSError, ssl.SSLError) as error:
        raise EncampError(
            Code.CONFIGURATION,
            f"The certificate {api.certificate} cannot be used: {error}.",
            "See 'certificate' and 'key' of 'api' in site.yaml.",
        ) from error
