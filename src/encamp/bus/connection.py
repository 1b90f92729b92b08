"""A connection to one of a site's NATS servers that comes back whenever it breaks.

nats-py speaks the protocol. Which server is tried when, what happens to a connection that hangs,
and what a refusal means is decided here: nats-py gives up for good on errors that pass, and waits
without end for a connection to close that a cut cable keeps open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence

import nats.errors

from encamp.bus.link import Access, Link, Take, connect
from encamp.model.errors import Code, EncampError
from encamp.model.site import Presences

PING = 2.0
"""Seconds between two pings of the server, at least."""
PONG = 5.0
"""Seconds it has to answer one, at least, before the connection counts as broken."""
SPREAD = 0.5
"""Intervals of presence over which all who have lost a server come back."""
LONGEST_PAUSE = 3.0
"""Seconds before the next try when no server is there, which costs nobody anything: less than the
silence after which an agent is lost."""
BUSY_PAUSE = 2.0
LONGEST_BUSY_PAUSE = 30.0
"""The same when a server is there and does not keep up: if all came back at once it never would."""
PATIENCE, BUSY_PATIENCE = 4.0, 12.0
"""Seconds a server has to answer; one that does not keep up."""
REFUSALS = 3
"""So many refusals in a row mean that the credential is worth nothing any more."""
REFUSED_PAUSE = 0.5
"""Seconds, and twice that, before a refusal is believed: the server may just be reloading."""
LATELY = 10.0
"""Seconds after a reconnection in which others are still expected to come back."""
WAITING = 4 * 1024 * 1024
"""Bytes that wait to be written, above which whoever publishes much has to wait."""

log = logging.getLogger(__name__)


class Connection:
    def __init__(
        self,
        servers: Sequence[str],
        access: Access,
        *,
        on_up: Callable[[], None],
        on_refused: Callable[[EncampError], None],
        presence: Presences,
    ) -> None:
        self.is_up = False
        self._ping = max(PING, presence.interval)
        self._pong = max(PONG, presence.silence - presence.interval)
        self._first_pause = min(LONGEST_PAUSE, SPREAD * presence.interval)
        self._is_busy = False
        """Is a server there that does not keep up?"""
        self._access = access
        self._servers = list(servers)
        random.shuffle(self._servers)
        self._on_up = on_up
        self._on_refused = on_refused
        """Told why there will be no connection any more, once that is so."""
        self._subscriptions: list[tuple[str, Take]] = []
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._broken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._out: deque[tuple[str, bytes, str]] = deque()
        self._out_size = 0
        self._out_ready = asyncio.Event()
        self._out_room = asyncio.Event()
        self._out_room.set()
        self._said = ""
        self._lately = 0.0
        self._is_closing = False

    async def subscribe(self, subject: str, take: Take) -> None:
        """From now on, and again after every reconnection."""
        self._subscriptions.append((subject, take))
        link = self._link
        if link is not None and self.is_up:
            # If it breaks just now, the next one is subscribed to from the start.
            with contextlib.suppress(nats.errors.Error, OSError):
                await link.take_from(subject, take)
                await link.flush()

    def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """At once, if there is a connection; without one it is lost."""
        if not self.is_up:
            return
        self._out.append((subject, payload, reply))
        self._out_size += len(payload)
        self._out_ready.set()
        if self._out_size > WAITING:
            self._out_room.clear()

    async def room(self) -> None:
        """Wait until not much waits to be written."""
        await self._out_room.wait()

    def came_back_lately(self) -> bool:
        """Was the connection broken a moment ago? Then others' may still be."""
        return asyncio.get_running_loop().time() < self._lately

    async def wait_up(self) -> None:
        if not self.is_up:
            await self._up.wait()

    async def open(self, patience: float | None) -> None:
        """Returns with the first connection. A refusal is final here."""
        try:
            async with asyncio.timeout(patience):
                pause = 0.0
                while True:
                    refused = await self._try_servers()
                    if refused is not None:
                        raise refused
                    if self._link is not None:
                        break
                    pause = await self._pause(pause)
        except TimeoutError:
            raise EncampError(
                Code.UNREACHABLE,
                f"No server of the bus answers: {', '.join(self._servers)}.",
                f"The last thing said was: {self._said}." if self._said else "",
                transient=True,
            ) from None
        self._keeper = asyncio.create_task(self._keep(), name="connection to the bus")

    async def close(self, *, flush: bool = True) -> None:
        """What was published before is still sent, if `flush`."""
        self._is_closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if flush and self._link is not None and self.is_up:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(PONG):
                    while self._out:
                        await self._link.publish(*self._out.popleft())
                    await self._link.flush()
        await self._drop()

    # ── keeping it ───────────────────────────────────────────────────────────────────────────────

    async def _keep(self) -> None:
        refusals = 0
        pause = 0.0
        while not self._is_closing:
            refused: EncampError | None = None
            try:
                if self._link is not None:
                    pause = 0.0
                    await self._watch(self._link)
                    await self._drop()
                pause = await self._pause(pause)
                refused = await self._try_servers()
            except (Exception, asyncio.CancelledError) as error:
                if self._is_told_to_end(error):
                    raise
                # Without this task the daemon would live on without a connection, and nobody would
                # know: what nobody thought of counts as one more lost connection.
                log.exception("the connection to the bus is lost by a mistake; it is made anew")
                await self._drop()
            refusals = refusals + 1 if refused is not None else 0
            if refused is not None:
                pause = max(pause, REFUSED_PAUSE)
                if refusals >= REFUSALS:
                    self._on_refused(refused)
                    return

    def _is_told_to_end(self, error: BaseException) -> bool:
        """Or was something cancelled that this task waited for?"""
        task = asyncio.current_task()
        is_cancelled = self._is_closing or (task is not None and task.cancelling() > 0)
        return isinstance(error, asyncio.CancelledError) and is_cancelled

    async def _watch(self, link: Link) -> None:
        """Returns when the connection is broken."""
        writer = asyncio.create_task(self._write(link))
        broken = asyncio.create_task(self._broken.wait())
        try:
            while not link.is_closed and not self._is_closing:
                done, _ = await asyncio.wait(
                    {writer, broken}, timeout=self._ping, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return
                try:
                    await link.flush(self._pong)
                except Exception as error:
                    self._is_busy = isinstance(error, nats.errors.FlushTimeoutError)
                    self._note(str(error))
                    return
        finally:
            broken.cancel()
            while not writer.done():
                # Once is not enough: nats-py swallows it while it waits to flush.
                writer.cancel()
                await asyncio.wait({writer, broken}, timeout=0.05)

    async def _write(self, link: Link) -> None:
        out = self._out
        while not self._is_closing:
            await self._out_ready.wait()
            self._out_ready.clear()
            while out and not link.is_closed:
                subject, payload, reply = out.popleft()
                self._out_size -= len(payload)
                await link.publish(subject, payload, reply)
            if not self._out_room.is_set() and self._out_size <= WAITING:
                self._out_room.set()

    async def _drop(self) -> None:
        self.is_up = False
        self._up.clear()
        self._out.clear()
        self._out_size = 0
        self._out_room.set()
        link, self._link = self._link, None
        if link is not None:
            await link.drop()

    async def _pause(self, pause: float) -> float:
        """Wait before the next try, and say how long that may take. Not all at once: thousands may
        have lost the same server."""
        first, longest = self._first_pause, LONGEST_PAUSE
        if self._is_busy:
            first, longest = BUSY_PAUSE, LONGEST_BUSY_PAUSE
        pause = min(max(first, 2 * pause), longest)
        await asyncio.sleep(random.uniform(0.0, pause))
        return pause

    # ── getting one ──────────────────────────────────────────────────────────────────────────────

    async def _try_servers(self) -> EncampError | None:
        """Connect to the first server that answers; a refusal, if that is all there is."""
        refused: EncampError | None = None
        patience = BUSY_PATIENCE if self._is_busy else PATIENCE
        self._is_busy = False
        for server in list(self._servers):
            # Whoever failed is tried last the next time.
            self._servers.remove(server)
            self._servers.append(server)
            try:
                link = await connect(
                    server, self._access, self._subscriptions, self._note_broken, patience
                )
            except EncampError as error:
                refused = error
                continue
            except (OSError, TimeoutError, nats.errors.Error, ssl.SSLError) as error:
                self._is_busy |= not isinstance(error, OSError) or isinstance(error, TimeoutError)
                self._note(f"{server}: {str(error) or type(error).__name__}")
                continue
            self._link = link
            self._broken.clear()
            self._servers += [other for other in link.others if other not in self._servers]
            self.is_up = True
            self._up.set()
            self._note_back(server)
            self._on_up()
            return None
        return refused

    def _note_broken(self, link: Link) -> None:
        if self._link is link:
            self._broken.set()

    def _note_back(self, server: str) -> None:
        """As loudly as it was said that there is no connection."""
        is_first = self._keeper is None
        if not is_first:
            self._lately = asyncio.get_running_loop().time() + LATELY
        level = logging.WARNING if self._said else logging.INFO
        log.log(level, "connected to the bus%s, at %s", "" if is_first else " again", server)
        self._said = ""

    def _note(self, said: str) -> None:
        if said != self._said:
            self._said = said
            log.warning("no connection to the bus: %s", said)
