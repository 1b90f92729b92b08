"""What a NATS server has to be told to serve a site: its `nats-server.conf`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

ROUTES = 2000
"""A server listens to the other servers on its port and so many more."""

PENDING = 512 << 20
"""Bytes that may wait for one participant: thousands of agents may answer the manager at once."""


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def for_servers(self) -> Address:
        """Where the server listens to the other servers of its cluster."""
        port = self.port + ROUTES
        return Address(self.host, port if port < 65536 else self.port - ROUTES)


class Encryption(msgspec.Struct, frozen=True):
    """Files of the server's."""

    certificate: str
    key: str
    authority: str = ""
    """Who signed it; servers of a cluster check each other's."""

    def lines(self, indent: str, *, check: bool = False) -> list[str]:
        lines = [f"  cert_file: {_quoted(self.certificate)}", f"  key_file: {_quoted(self.key)}"]
        if check and self.authority:
            lines.append(f"  ca_file: {_quoted(self.authority)}")
        return [indent + line for line in ("tls: {", *lines, "}")]


def server_file(
    site: str,
    address: Address,
    *,
    operator: str,
    system: str,
    accounts: Mapping[str, str],
    encryption: Encryption | None = None,
    cluster: Sequence[Address] = (),
    cluster_secret: str = "",
) -> str:
    """`accounts` says what is claimed about each account, by its public key; the operator vouches
    for it, so nothing in here is secret but the word that servers of a cluster know each other by.
    """
    lines = [
        "# Written by 'encamp site'. Changes are lost with the next 'encamp site remove'.",
        f"server_name: {_quoted(f'{site}-{address}')}",
        f"listen: {_quoted(str(address))}",
        'ping_interval: "20s"',
        "ping_max: 2",
        f"max_pending: {PENDING}",
        f"operator: {_quoted(operator)}",
        f"system_account: {_quoted(system)}",
        "resolver: MEMORY",
        "resolver_preload: {",
        *(f"  {account}: {_quoted(claims)}" for account, claims in accounts.items()),
        "}",
    ]
    if encryption is not None:
        lines += encryption.lines("")
    if len(cluster) > 1:
        mine = address.for_servers
        user = f"user: servers, password: {_quoted(cluster_secret)}"
        routes = [
            f"nats-route://servers:{cluster_secret}@{other.for_servers}"
            for other in cluster
            if other != address
        ]
        lines += [
            "cluster: {",
            f"  name: {_quoted(site)}",
            f"  listen: {_quoted(str(mine))}",
            f"  authorization: {{ {user}, timeout: 2 }}",
            f"  routes: [{', '.join(_quoted(route) for route in routes)}]",
        ]
        if encryption is not None:
            lines += encryption.lines("  ", check=True)
        lines.append("}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text)
