"""Real NATS servers for tests: one or a cluster, with credentials or without.

with nats_server(tmp_path) as server: ...        # anybody may connect to server.url
with nats_site(tmp_path) as site: ...             # site.member("n1", ("agents",)) is a Site
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from encamp.bus import subjects
from encamp.bus.credentials import Key, credential_file, user_claims
from encamp.bus.server_file import Address, Encryption
from encamp.manager.enrolment import Enrolment, Keys
from encamp.model.site import MANAGER, Presences, Site

DEBIAN = "/usr/sbin/nats-server"
WHEEL = str(Path(sys.executable).with_name("nats-server"))

STARTING = 10.0

QUICK = Presences(interval=0.2, silence=3.0)
"""Nobody wants to wait in a test."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """One server, which can be killed and started again under the same address."""

    def __init__(self, words: Sequence[str], address: tuple[str, int], log: Path) -> None:
        self.words = list(words)
        self.address = address
        self.url = f"nats://{address[0]}:{address[1]}"
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.words, stdout=log, stderr=log)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until it answers."""
        assert self.process is not None
        until = time.monotonic() + STARTING
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log.read_text()
            try:
                with socket.create_connection(self.address, 1.0) as connection:
                    if connection.recv(4) == b"INFO":
                        return
            except OSError:
                time.sleep(0.01)
        raise AssertionError(f"no server at {self.address}: {self.log.read_text()}")

    def reload(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def nats_server(
    directory: Path,
    *,
    program: str = DEBIAN,
    config: Path | None = None,
    options: str = "",
    host: str = "127.0.0.1",
    port: int = 0,
    prefix: Sequence[str] = (),
    wait: bool = True,
) -> Iterator[Server]:
    """A server; `options` are lines of its configuration, `prefix` what it is started by."""
    port = port or free_port()
    if config is None:
        config = directory / f"server-{port}.conf"
        config.write_text(f'listen: "{host}:{port}"\n{options}\n')
    server = Server(
        [*prefix, program, "-c", str(config)], (host, port), directory / f"server-{port}.log"
    )
    try:
        server.start(wait=wait)
        yield server
    finally:
        server.stop()


class NatsSite:
    """A site with its servers running, and credentials for whoever a test needs."""

    def __init__(self, directory: Path, servers: list[Server], presence: Presences) -> None:
        self.directory = directory
        self.servers = servers
        self.presence = presence
        self.enrolment = Enrolment(directory)
        self._keys = msgspec.json.decode((directory / "keys.json").read_bytes(), type=Keys)

    @property
    def server(self) -> Server:
        return self.servers[0]

    def manager(self) -> Site:
        return self._site(str(self.directory / "credentials" / f"{MANAGER}.creds"))

    def member(
        self,
        name: str,
        groups: Sequence[str] = (),
        *,
        speaks_to: Sequence[str] = ("*",),
        watches: bool = True,
        expires: float | None = None,
    ) -> Site:
        """The site as a participant sees it that has more rights than an agent's."""
        user = Key.user()
        permissions = subjects.permissions(name, groups, speaks_to=speaks_to, watches=watches)
        account = Key.from_seed(self._keys.account)
        claims = user_claims(account, user.public, name, permissions, time.time(), expires=expires)
        path = self.directory / "credentials" / f"{name}-{user.public[:8]}.creds"
        path.write_text(credential_file(claims, user))
        return self._site(str(path))

    def _site(self, credential: str) -> Site:
        members = self.enrolment.members()
        return Site(
            bus=members.urls,
            credential=credential,
            authority=members.authority or None,
            presence=self.presence,
        )


@contextmanager
def nats_site(
    directory: Path,
    *,
    program: str = DEBIAN,
    count: int = 1,
    presence: Presences = QUICK,
    encryption: Encryption | None = None,
    authority: str = "",
) -> Iterator[NatsSite]:
    """A site as `encamp site init` makes it; its servers run until the end."""
    addresses = [_address() for _ in range(count)]
    site = directory / "site"
    Enrolment(site).init("test", addresses, (), encryption=encryption, authority=authority)
    with ExitStack() as stack:
        servers = []
        for number, address in enumerate(addresses, 1):
            name = f"nats-server-{number}.conf" if count > 1 else "nats-server.conf"
            server = nats_server(
                directory,
                program=program,
                config=site / name,
                host=address.host,
                port=address.port,
                wait=False,
            )
            servers.append(stack.enter_context(server))
        for each in servers:
            each.wait()
        yield NatsSite(site, servers, presence)


def _address() -> Address:
    """With room for the port that the servers of a cluster use among themselves."""
    while True:
        address = Address("127.0.0.1", free_port())
        try:
            with socket.socket() as other:
                other.bind(("127.0.0.1", address.for_servers.port))
        except OSError:
            continue
        return address
