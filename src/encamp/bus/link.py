"""One connection to one NATS server, until it breaks. nats-py speaks the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

from encamp.bus.credentials import name_in
from encamp.model.errors import Code, EncampError

FLUSH = 10.0
"""Seconds that a server has to say that it has heard everything."""
CLOSING = 0.5
"""Seconds an aborted connection has to come to its end."""
NEVER = 3600
"""Seconds between two pings of nats-py: whoever keeps the connection pings by itself."""

REFUSED = ("authorization violation", "authentication revoked", "authentication expired")
"""What a server says when it does not accept a credential."""

Take = Callable[[bytes, bytes, bytes | None], None]
"""Takes subject, payload and headers of a message, at once."""

log = logging.getLogger(__name__)


class Access(msgspec.Struct, frozen=True):
    """How a participant shows who it is, and checks whom it speaks to."""

    name: str
    credential: str | None = None
    authority: str | None = None

    def options(self, server: str) -> dict[str, Any]:
        """Read anew for every connection: files may have been replaced."""
        options: dict[str, Any] = {"name": self.name}
        if self.credential:
            self._check_credential(self.credential)
            options["user_credentials"] = self.credential
        if server.startswith("tls:"):
            options["tls"] = ssl.create_default_context(cafile=self.authority)
        return options

    def _check_credential(self, path: str) -> None:
        """nats-py would look for ever for the beginning of what is not in the file."""
        try:
            text = Path(path).read_text(errors="replace")
        except OSError as error:
            raise EncampError(
                Code.INPUT_MISSING,
                f"The credential {path} cannot be read: {error.strerror}.",
                "'encamp site join' writes it, and only its owner may read it; 'host' in site.yaml"
                " says what this host is called.",
            ) from error
        whose = name_in(text)
        if whose is None or "BEGIN USER NKEY SEED" not in text:
            raise EncampError(
                Code.CORRUPT,
                f"{path} is not a credential, or is damaged.",
                "'encamp site remove' and 'add' make a new one.",
            )
        if whose != self.name:
            # The server would take it, and then forbid everything under the other name.
            raise EncampError(
                Code.NOT_PERMITTED,
                f"The credential {path} is that of '{whose}', and this is '{self.name}'.",
                f"Either 'host: {whose}' belongs into site.yaml, or another credential does.",
            )

    def refused_by(self, server: str) -> EncampError:
        if self.credential is None:
            return EncampError(
                Code.NOT_PERMITTED,
                f"The server {server} wants a credential, and there is none.",
                "'credential' in site.yaml names it; 'encamp site join' writes both.",
            )
        return EncampError(
            Code.NOT_PERMITTED,
            f"The server {server} refuses the credential {self.credential}.",
            "It was revoked, has expired, or is another site's; 'encamp site add' makes a new one.",
        )


@contextlib.contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Whoever is told to end while it speaks with nats-py does: a cancellation that comes together
    with what is waited for is swallowed there, by `asyncio.wait_for` of Python 3.11 among others,
    and would never come again."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class Link(Client):
    """nats-py without its queue and task for each subscription, which cost more than the rest."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server = server
        self._routes: dict[int, Take] = {}

    async def take_from(self, subject: str, take: Take) -> None:
        with heeding_cancellation():
            subscription = await self.subscribe(subject)
        self._routes[subscription._id] = take

    async def flush(self, timeout: float = FLUSH) -> None:
        with heeding_cancellation():
            await super().flush(timeout)  # type: ignore[arg-type]

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        take = self._routes.get(sid)
        if take is not None:
            try:
                take(subject, data, headers)
            except Exception:
                # Whatever was in the message, the next one is read.
                said = subject.decode(errors="replace")
                log.exception("a message under '%s' could not be taken", said)

    async def drop(self) -> None:
        """End the connection without waiting for what has not been written. Never fails: whatever
        state it is in, it is of no more use."""
        with contextlib.suppress(Exception):
            # Of an encrypted connection that the server has closed there is nothing left to abort,
            # which asyncio takes for a mistake.
            if self._writer is not None:
                self._writer.transport.abort()
        with contextlib.suppress(Exception):
            # After a certificate was refused, the end of the connection is never told.
            async with asyncio.timeout(CLOSING):
                await self.close()

    def expect_end_of_tls(self) -> None:
        """nats-py wraps an encrypted stream as if it were a plain one, whose other half can go on
        when the server has closed its own. asyncio warns of that whenever a server goes away."""
        if self._writer is None:
            return
        # One that the server has refused already has none any more.
        protocol = self._writer.transport.get_protocol()
        if protocol is not None:
            protocol._over_ssl = True  # type: ignore[attr-defined]

    @property
    def _writer(self) -> asyncio.StreamWriter | None:
        return getattr(self._transport, "_io_writer", None)

    @property
    def was_reached(self) -> bool:
        """Has the server's machine taken the connection, whatever came of it?"""
        return self._writer is not None

    @property
    def is_encrypted(self) -> bool:
        return self._writer is not None and self._writer.get_extra_info("ssl_object") is not None

    @property
    def others(self) -> list[str]:
        """The other servers of a cluster, of which this one has told."""
        scheme = self.server.partition("://")[0]
        return [f"{scheme}://{found.netloc}" for found in self.discovered_servers]


async def connect(
    server: str,
    access: Access,
    subscriptions: Sequence[tuple[str, Take]],
    broken: Callable[[Link], None],
    patience: float,
) -> Link:
    """Raises `EncampError` if the server refuses; an `OSError` if it cannot be reached;
    `TimeoutError` or an error of nats-py if it can, and does not keep up."""
    options = access.options(server)
    link = Link(server)
    said: list[Exception] = []

    async def note(error: Exception) -> None:
        said.append(error)
        if "permissions violation" in str(error):
            log.error(
                "The server of the bus forbids what this credential is not for: %s. If it is about"
                " a group ('all.GROUP') of this host, have 'encamp site add HOST --group GROUP'"
                " make a secret that names it, and join with that.",
                error,
            )

    async def closed() -> None:
        broken(link)

    try:
        async with asyncio.timeout(patience):
            with heeding_cancellation():
                await link.connect(
                    [server],
                    error_cb=note,
                    closed_cb=closed,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(patience),
                    ping_interval=NEVER,
                    **options,
                )
            if link.is_encrypted:
                link.expect_end_of_tls()
            elif server.startswith("tls:"):
                raise EncampError(
                    Code.UNTRUSTED,
                    f"The server {server} does not encrypt.",
                    "Give it a certificate, or name it by nats:// if that is intended.",
                )
            for subject, take in subscriptions:
                await link.take_from(subject, take)
            await link.flush()
    except BaseException as error:
        was_reached = link.was_reached
        await link.drop()
        words = " ".join(str(each) for each in [*said, error, link.last_error]).lower()
        if any(sign in words for sign in REFUSED):
            raise access.refused_by(server) from None
        cause = said[-1] if isinstance(error, nats.errors.NoServersError) and said else error
        if isinstance(cause, TimeoutError) and not was_reached:
            raise ConnectionError(f"no connection within {patience:g} s") from None
        raise cause from None
    return link
