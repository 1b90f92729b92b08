"""Where the manager is, and what is shown to it."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from encamp import __version__
from encamp.client.login import Login, saved_login
from encamp.client.turns import InTurn, InTurnAsync, Turns
from encamp.client.unreached import unreached
from encamp.door.client import UnansweredError
from encamp.model.errors import Code, EncampError

PORT = 7478
URL = f"http://127.0.0.1:{PORT}"
"""Where a manager answers if nobody says otherwise."""
CONNECT, CONNECT_IN_TURN, READ = 10.0, 3.0, 90.0
"""Seconds. A manager that works on an answer says so more often than that."""

KEEPING_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class Place:
    """What is not said is taken from ENCAMP_URL, ENCAMP_TOKEN or the file that ENCAMP_TOKEN_FILE
    names, and ENCAMP_AUTHORITY; then from the login that was saved. Its token is shown to the
    manager that it is for, and to no other."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        authority: str | None = None,
        *,
        login: Login | None = None,
    ) -> None:
        """`login`: all of it at once."""
        said, saved = (login, None) if login else _said(url, token, authority)
        self.urls = addresses(said.url, insecure=said.insecure)
        self.url = self.urls[0]
        self.answered = saved is not None
        """Has somebody ever been reached there? Somebody has who took a login that was saved."""
        self._token = _checked_token(said.token)
        self._authority = said.authority
        self._turns = Turns(self.urls, self._has_answered)
        connect = CONNECT if len(self.urls) == 1 else CONNECT_IN_TURN
        self.timeout = httpx.Timeout(connect, read=READ)

    def __str__(self) -> str:
        return ", ".join(self.urls)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", "User-Agent": f"encamp/{__version__}"}

    def client(self) -> httpx.Client:
        inside = httpx.HTTPTransport(verify=self._verify, socket_options=KEEPING_ALIVE)
        return httpx.Client(
            base_url=self.url,
            headers=self.headers,
            timeout=self.timeout,
            transport=InTurn(self._turns, inside),
        )

    def async_client(self) -> httpx.AsyncClient:
        inside = httpx.AsyncHTTPTransport(verify=self._verify, socket_options=KEEPING_ALIVE)
        return httpx.AsyncClient(
            base_url=self.url,
            headers=self.headers,
            timeout=self.timeout,
            transport=InTurnAsync(self._turns, inside),
        )

    @property
    def _verify(self) -> ssl.SSLContext:
        """What the managers' certificates are checked with. Reading all that the system trusts is
        slow; where there is none to check, nobody is trusted."""
        if any(url.startswith("https:") for url in self.urls):
            return _trusting(self._authority)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def _has_answered(self) -> None:
        self.answered = True

    def unreachable(self, error: Exception) -> EncampError:
        why = unreached(error, str(self))
        if isinstance(why, EncampError):
            return why
        return UnansweredError(
            Code.UNREACHABLE,
            f"The manager at {self} does not answer: {why}.",
            "It has answered there before: it does not run now, or cannot be reached from here."
            if self.answered
            else "Is that its address ('api' in site.yaml)? Does it run?",
            transient=True,
        )


def addresses(text: str, *, insecure: bool = False) -> tuple[str, ...]:
    """The addresses that are named, each as it is called."""
    found = tuple(_address(word.strip(), insecure) for word in text.split(",") if word.strip())
    if not found:
        raise _senseless(text)
    return found


def _address(text: str, insecure: bool) -> str:
    """A bare name is that of a host where the manager answers as it usually does."""
    if re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", text):
        text = f"https://{text}:{PORT}"
    elif "://" not in text:
        text = f"https://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        httpx.URL(text)
    except (ValueError, httpx.InvalidURL):
        raise _senseless(text) from None
    wrong = parts.query or parts.fragment or "@" in parts.netloc or port == 0
    if parts.scheme not in ("http", "https") or not host or wrong:
        raise _senseless(text)
    if parts.scheme == "http" and not insecure and not _is_loopback(host):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"The token would go to {text} in clear, for everybody in between to read.",
            "Use https://, or a tunnel to the manager's host ('ssh -L'). If the way there is safe,"
            " 'encamp login --insecure' or ENCAMP_INSECURE=1 allow it.",
        )
    return text.rstrip("/")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _senseless(text: str) -> EncampError:
    return EncampError(
        Code.USAGE,
        f"'{text}' is not the address of a manager.",
        f"It looks like https://manager.example.org:{PORT}; of several managers, all of theirs,"
        " with commas.",
    )


def _said(url: str | None, token: str | None, authority: str | None) -> tuple[Login, Login | None]:
    """All of it, and the login that was saved for this address, if there is one."""
    variables = os.environ
    url = url or variables.get("ENCAMP_URL")
    token = token or variables.get("ENCAMP_TOKEN") or _from_file()
    file = authority or variables.get("ENCAMP_AUTHORITY")
    insecure = variables.get("ENCAMP_INSECURE", "") not in ("", "0")
    saved = None if url and token else saved_login()
    if saved is not None and url and _differ(url, saved.url):
        saved = None
    if not token and saved is None:
        raise EncampError(
            Code.USAGE,
            "There is no token to show to the manager.",
            "Give one, or set ENCAMP_TOKEN, or log in ('encamp login'); 'encamp token create' makes"
            " it.",
        )
    said = Login(
        url=url or (saved.url if saved else URL),
        token=token or (saved.token if saved else ""),
        authority=authority_text(file) if file else (saved.authority if saved else ""),
        insecure=insecure or (saved is not None and saved.insecure),
    )
    return said, saved


def _differ(one: str, other: str) -> bool:
    return addresses(one, insecure=True) != addresses(other, insecure=True)


def _from_file() -> str:
    path = os.environ.get("ENCAMP_TOKEN_FILE")
    return token_in(Path(path)) if path else ""


def token_in(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise EncampError(
            Code.INPUT_MISSING, f"The token in {path} cannot be read: {why}."
        ) from error


def _checked_token(token: str) -> str:
    if not re.fullmatch(r"[!-~]+", token):
        raise EncampError(
            Code.USAGE,
            "What was given as the token is none: it is one word of letters and digits.",
            "'encamp token create' makes one.",
        )
    return token


def authority_text(file: str) -> str:
    """The certificates in a file."""
    try:
        text = Path(file).read_text()
        _trusting(text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise EncampError(
            Code.INPUT_MISSING, f"The certificate in {file} cannot be read: {why}."
        ) from error
    except EncampError as error:
        raise EncampError(error.code, f"{file}: {error.sentence}", error.hint) from error
    return text


@cache
def _trusting(authority: str) -> ssl.SSLContext:
    """Whoever these certificates vouch for, and nobody else; without any, as the system says."""
    if authority and "-----BEGIN CERTIFICATE-----" not in authority:
        raise _no_certificate("there is no 'BEGIN CERTIFICATE' in it")
    try:
        return ssl.create_default_context(cadata=authority or None)
    except (ssl.SSLError, ValueError) as error:
        raise _no_certificate(str(error)) from error


def _no_certificate(why: str) -> EncampError:
    return EncampError(
        Code.CONFIGURATION,
        f"This is not a certificate: {why}.",
        "It is a file in PEM, with the certificate that vouches for the manager's, or that itself.",
    )
