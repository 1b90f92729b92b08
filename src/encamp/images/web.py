"""Asking web servers: proxies, certificates and credentials as usual, redirects with care."""

from __future__ import annotations

import base64
import contextlib
import http.client
import netrc
import os
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from encamp.images.printable import printable
from encamp.model.errors import Code, EncampError

PORTS = {"http": 80, "https": 443}

BEARER = "bearer"
"""As a login in ~/.netrc it says that the password is a token."""


class Limit:
    """Ends the connections that are made while it is in force and last longer than it allows: a
    server that sends a byte now and then is never silent, and never done."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.exceeded = False
        self._connections: list[socket.socket] = []
        self._timer = threading.Timer(seconds or 0, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Limit:
        self._before = LIMIT.set(self)
        if self.seconds is not None:
            self._timer.start()
        return self

    def __exit__(self, *failure: object) -> None:
        LIMIT.reset(self._before)
        self.lift()

    def watch(self, connection: socket.socket) -> None:
        # Encrypting it takes the descriptor over, so we have our own.
        self._connections.append(socket.socket(fileno=os.dup(connection.fileno())))
        if self.exceeded:
            self._end()

    def lift(self) -> None:
        """From now on it may take as long as it takes."""
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        for connection in self._connections:
            connection.close()
        self._connections = []

    def check(self) -> None:
        if self.exceeded:
            raise TimeoutError(f"its answer was not there after {self.seconds:g} seconds")

    def _end(self) -> None:
        self.exceeded = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


LIMIT: ContextVar[Limit | None] = ContextVar("limit", default=None)


class Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        limit = LIMIT.get()
        if limit is not None:
            limit.watch(self.sock)


class SecureConnection(http.client.HTTPSConnection, Connection):
    """Watched as soon as it is there, before anything is agreed on."""


class Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(Connection, req)


class Https(urllib.request.HTTPSHandler):
    def __init__(self) -> None:
        self.trust = ssl.create_default_context()
        super().__init__(context=self.trust)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(SecureConnection, req, context=self.trust)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects on the same server, and to those that the settings name: whoever has the
    repository's server is not to reach, through us, what only this host can reach."""

    max_redirections = 5

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme, new.scheme) == ("https", "http"):
            fp.close()
            raise EncampError(
                Code.UNREACHABLE,
                f"{old.netloc} sends us on to {printable(f'{new.scheme}://{new.netloc}')}, which"
                " is not followed.",
                "A repository's server may only redirect to HTTP(S), and from HTTPS to HTTPS.",
            )
        if not is_same_server(old, new) and not is_named(new):
            fp.close()
            raise EncampError(
                Code.UNREACHABLE,
                f"{old.netloc} sends us on to another server, {printable(new.netloc)}, which is not"
                " followed.",
                "If that is meant, add the server to 'redirects' in settings.yaml.",
            )
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and old[:2] == new[:2]:
            # Credentials are for the server they were meant for.
            following.unredirected_hdrs |= authorization(newurl)
        return following


def is_same_server(old: urllib.parse.SplitResult, new: urllib.parse.SplitResult) -> bool:
    encrypted = (old.scheme, new.scheme) == ("http", "https")
    return old.hostname == new.hostname and (encrypted or port_of(old) == port_of(new))


def is_named(server: urllib.parse.SplitResult) -> bool:
    """Do the settings of this host allow redirects to it?"""
    from encamp.describe.settings import load_settings

    names = {f"{server.hostname}:{port_of(server)}"}
    if port_of(server) == PORTS[server.scheme]:
        names.add(str(server.hostname))
    return not names.isdisjoint(load_settings().redirects)


def port_of(server: urllib.parse.SplitResult) -> int:
    return server.port or PORTS[server.scheme]


def make_opener() -> urllib.request.OpenerDirector:
    """With HTTP and nothing else: no file:, no ftp:, no data:."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        Http(),
        Https(),
        urllib.request.HTTPDefaultErrorHandler(),
        Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def authorization(url: str) -> dict[str, str]:
    """Credentials for a server, from ~/.netrc (or the file that NETRC names)."""
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        found = netrc.netrc(path).authenticators(host)
    except FileNotFoundError:
        return {}
    except (OSError, netrc.NetrcParseError) as error:
        raise EncampError(Code.CONFIGURATION, f"Cannot read {path}: {error}.") from error
    if found is None:
        return {}
    login, _, password = found
    if login == BEARER:
        return {"Authorization": f"Bearer {password}"}
    encoded = base64.b64encode(f"{login}:{password}".encode()).decode()
    return {"Authorization": f"Basic {encoded}"}
