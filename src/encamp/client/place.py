"""Where the manager is, and what is shown to it."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

import httpx

from encamp import __version__
from encamp.model.errors import Code, EncampError

URL = "http://127.0.0.1:7478"
"""Where a manager answers if nobody says otherwise."""
CONNECT, READ = 10.0, 90.0
"""Seconds. A manager that works on an answer says so more often than that."""

KEEPING_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class Place:
    """What is not said is taken from ENCAMP_URL, ENCAMP_TOKEN or the file that ENCAMP_TOKEN_FILE
    names, and ENCAMP_AUTHORITY."""

    def __init__(self, url: str | None, token: str | None, authority: str | None) -> None:
        self.url = (url or os.environ.get("ENCAMP_URL") or URL).rstrip("/")
        secret = token or os.environ.get("ENCAMP_TOKEN") or _from_file()
        if not secret:
            raise EncampError(
                Code.USAGE,
                "There is no token to show to the manager.",
                "Give one, or set ENCAMP_TOKEN; 'encamp token create' makes it.",
            )
        self.headers = {
            "Authorization": f"Bearer {secret}",
            "User-Agent": f"encamp/{__version__}",
        }
        self.timeout = httpx.Timeout(CONNECT, read=READ)
        self._authority = authority or os.environ.get("ENCAMP_AUTHORITY")

    @property
    def verify(self) -> ssl.SSLContext | bool:
        """What the manager's certificate is checked with, if it has one."""
        if not self.url.startswith("https:"):
            return True
        return ssl.create_default_context(cafile=self._authority)

    def unreachable(self, error: Exception) -> EncampError:
        return EncampError(
            Code.UNREACHABLE,
            f"The manager at {self.url} does not answer: {str(error) or type(error).__name__}.",
            "Is that its address ('api' in site.yaml)? Does it run?",
            transient=True,
        )


def _from_file() -> str:
    path = os.environ.get("ENCAMP_TOKEN_FILE")
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise EncampError(
            Code.INPUT_MISSING, f"The token in {path} cannot be read: {error}."
        ) from error
