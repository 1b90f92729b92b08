"""Where clients meet what runs on a host: standard input, output and error, files and signals go
straight between the two of them."""

from __future__ import annotations

import msgspec


class Meeting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an agent takes connections of clients that show a ticket."""

    address: str
    """A name or number under which clients reach the host."""
    port: int
    fingerprint: str
    """SHA-256 of its certificate, in hexadecimal: whoever shows another is somebody else."""
    socket: str = ""
    """A Unix socket that does the same for clients on the host itself."""
    boot: str = ""
    """Names the host from when it was booted: who has another one is elsewhere."""
    user: int = 0
    """The number of the user whom the agent runs as: who else listens at that socket is not it."""
