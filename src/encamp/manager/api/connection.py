"""One connection, as uvicorn serves it, and nobody who holds it up: a call has to arrive soon, and
an answer has to be read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from encamp.door.peer import network

PATIENCE = 10.0
"""Seconds in which the head of a call has to arrive."""
UNREAD = 30.0
"""Seconds in which some of an answer has to be read."""
MOST_OF_ONE = 256
"""Connections from one address."""

MOST_ARRIVING = 1024
"""Connections on which TLS is not agreed upon yet,"""
ARRIVING = 60.0
"""and the seconds after which asyncio has given up on one."""

Address = tuple[Any, ...]

KEEPING_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Listener(socket.socket):
    """Keeps no more of one address than there are places for, before anything is said: each that
    does not get on with TLS costs memory until it is given up. The oldest make room for the newest:
    behind a proxy, and on the host itself, everybody has the same address."""

    def __init__(self, family: socket.AddressFamily) -> None:
        # Only of a connection that is said to be TCP's does asyncio not have small pieces wait.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._arriving: dict[Address, tuple[float, str, socket.socket]] = {}
        """Since when, and from where; the oldest first."""

    def accept(self) -> tuple[socket.socket, Address]:
        connection, address = super().accept()
        now = time.monotonic()
        while self._arriving:
            first, (since, _, _) = next(iter(self._arriving.items()))
            if now - since < ARRIVING:
                break
            del self._arriving[first]
        place = network(address[0])
        of_one = [key for key, (_, other, _) in self._arriving.items() if other == place]
        if len(of_one) >= MOST_OF_ONE:
            self._give_up(of_one[0])
        elif len(self._arriving) >= MOST_ARRIVING:
            self._give_up(next(iter(self._arriving)))
        self._arriving[address] = now, place, connection
        return connection, address

    def _give_up(self, address: Address) -> None:
        _, _, connection = self._arriving.pop(address)
        # asyncio has it, and closes it when it finds that nothing more comes.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def arrived(self, address: Address) -> None:
        """It counts as a connection from now on."""
        self._arriving.pop(address, None)


class PatientProtocol(H11Protocol):
    listener: Listener | None = None
    """Where it has come in."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.place = ""
        """Where it comes from."""
        self.since = self.loop.time()
        """When it began, or its last call was answered."""
        self._arriving: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.listener is not None:
            self.listener.arrived(transport.get_extra_info("peername"))
        self.place = network(self.client[0]) if self.client else ""
        if not self._has_place():
            transport.abort()
            return
        keep_alive(transport.get_extra_info("socket"))
        self._expect()

    def _has_place(self) -> bool:
        """Is there a place for one more of this address? The oldest without a call under way makes
        room: whoever sends half a call is not to keep others of the same address out."""
        others = [
            other
            for other in self.connections
            if isinstance(other, PatientProtocol)
            and other.place == self.place
            and other is not self
            and not other.transport.is_closing()
        ]
        if len(others) < MOST_OF_ONE:
            return True
        without = [other for other in others if other.has_no_call]
        if without:
            min(without, key=lambda other: other.since).transport.abort()
        return bool(without)

    @property
    def has_no_call(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        answered = cycle is None or cycle.response_complete
        return answered and self.transport.get_write_buffer_size() == 0

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._arriving)
        _stop(self._reading)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # There is none before the first call.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            _stop(self._arriving)
            self._arriving = None
        elif self._arriving is None and not self.transport.is_closing():
            self._expect()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        # Between two calls uvicorn's own patience counts.
        _stop(self._arriving)
        self._arriving = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._reading)
        self._reading = None

    def _expect(self) -> None:
        self._arriving = self.loop.call_later(PATIENCE, self.transport.abort)

    def _watch_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(UNREAD, self._look_at_reading, unread)

    def _look_at_reading(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._watch_reading()
        else:
            self.transport.abort()


def protocol_for(listener: Listener) -> type[PatientProtocol]:
    return type("Protocol", (PatientProtocol,), {"listener": listener})


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel find out whether the other is still there while nothing is said."""
    for level, option, value in KEEPING_ALIVE:
        connection.setsockopt(level, option, value)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
