"""On which address a meeting point listens, and under which one clients reach it."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import msgspec

from encamp.model.site import Site

NOWHERE = "none"


class Network(msgspec.Struct, frozen=True):
    """Where a meeting point is on a network; no port: nowhere."""

    address: str = ""
    port: int = 0
    fingerprint: str = ""


def listening_address(site: Site) -> tuple[str, int] | None:
    """As site.yaml says. Without that: where the bus is on another host, the address from which
    this one reaches it, on a port that is free; else nowhere, for all of the site is here."""
    if site.meeting.listen == NOWHERE:
        return None
    if site.meeting.listen:
        address, _, port = site.meeting.listen.rpartition(":")
        return address.strip("[]"), int(port)
    towards = address_towards(site)
    return None if towards is None or is_loopback(towards) else (towards, 0)


def address_towards(site: Site) -> str | None:
    """This host's address on the way to the bus."""
    for url in site.bus:
        server = urlsplit(url)
        if server.hostname is None:
            continue
        try:
            found = socket.getaddrinfo(server.hostname, server.port, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, where = found[0]
            with socket.socket(family, kind, protocol) as probe:
                # Nothing is sent by this.
                probe.connect(where)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def is_loopback(address: str) -> bool:
    return address in {"localhost", "::1"} or address.startswith("127.")
