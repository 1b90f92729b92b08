"""A repository on an HTTP server: read from any, written where it takes PUT (WebDAV).

The standard library's client is used: it writes to disk as fast as `curl` does, takes proxies and
certificates from the usual variables, and is not one more thing to install.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import secrets
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from encamp import __version__, programs
from encamp.images.content import CHUNK
from encamp.images.printable import printable
from encamp.images.repository_files import Incoming, read_all
from encamp.images.transfer_meter import Meter
from encamp.images.web import Limit, authorization, make_opener
from encamp.model.errors import Code, EncampError
from encamp.progress import Progress

TIMEOUT = 30.0
"""Seconds without a byte after which a server is taken to be gone."""
SLOWEST, SLOW_FOR = 1024, 60.0
"""Bytes in a second, and seconds; whoever sends less for longer is taken to be gone, too."""
LIMIT = 3
"""How many times as long an answer may take in all, if it is not a big file's."""
BREAK_LOCK_AFTER = 30.0
"""Seconds after which the lock of somebody who changes the lists is taken for a left-over; the
change itself takes moments."""


class Answer:
    """A file of a server, being read."""

    def __init__(self, response: http.client.HTTPResponse, offset: int) -> None:
        self.response = response
        self.validator = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        self.start, self.size = 0, number(response.headers.get("Content-Length"))
        if response.status == http.client.PARTIAL_CONTENT:
            span, _, whole = response.headers.get("Content-Range", "").partition("/")
            self.start, self.size = offset, number(whole)
            if not span.startswith(f"bytes {offset}-"):
                raise http.client.HTTPException(f"it sent {span or 'some part'}, not what we asked")

        self.since, self.received = time.monotonic(), 0

    def read(self, most: int) -> bytes:
        piece = self.response.read1(min(most, CHUNK))
        self.received += len(piece)
        passed = time.monotonic() - self.since
        if passed > SLOW_FOR:
            if piece and self.received < SLOWEST * passed:
                raise TimeoutError(f"it sent {self.received} bytes in {passed:.0f} seconds")
            self.since, self.received = time.monotonic(), 0
        return piece


def number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and len(text) < 20 else None


def no_address(url: str) -> EncampError:
    return EncampError(
        Code.USAGE,
        f"{url!r} is not the address of a repository.",
        "Write for example https://images.example.org/encamp",
    )


class HttpMedium:
    def __init__(self, url: str, patience: float | None = None) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            sensible = bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise no_address(url) from None
        if parts.username or parts.password:
            raise EncampError(
                Code.USAGE,
                "A repository's address must not contain a password.",
                f"Put it into ~/.netrc: machine {parts.hostname} login NAME password PASSWORD",
            )
        if not sensible or parts.query or parts.fragment or not url.isprintable():
            raise no_address(url)
        self.where = url.rstrip("/")
        self.timeout = TIMEOUT if patience is None else patience
        self.limit = LIMIT * self.timeout
        self._opener = make_opener()

    def _url(self, path: str) -> str:
        return f"{self.where}/{urllib.parse.quote(path, safe='/:+')}"

    @contextmanager
    def _ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        data: bytes | Iterator[bytes] | None = None,
        *,
        big: bool = False,
    ) -> Iterator[http.client.HTTPResponse]:
        """One request. Whatever goes wrong on the way, also while the answer is being read,
        becomes an error that says whether trying again can help. Of a `big` answer only the
        beginning has to be there in time."""
        programs.refuse_when_stopping()
        url = self._url(path)
        request = urllib.request.Request(url, data=data, method=method)
        request.headers.update(
            {"User-agent": f"encamp/{__version__}", "Accept-encoding": "identity"}
        )
        request.headers.update({key.capitalize(): value for key, value in (headers or {}).items()})
        request.unredirected_hdrs |= authorization(url)
        limit = Limit(self.limit if data is None or isinstance(data, bytes) else None)
        try:
            with limit, contextlib.closing(self._open(request)) as response:
                if big:
                    limit.lift()
                yield response
                limit.check()
        except urllib.error.HTTPError as error:
            error.close()
            raise Refused(self.where, path, method, error.code) from error
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            try:
                limit.check()
            except TimeoutError as late:
                raise self._broken(late) from error
            raise self._broken(error) from error

    def _open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        try:
            return cast(http.client.HTTPResponse, self._opener.open(request, timeout=self.timeout))
        except OSError:
            raise
        except ValueError as error:
            # An address that cannot be one; it may be where the server sends us.
            raise http.client.InvalidURL(str(error)) from error

    def _broken(self, error: Exception) -> EncampError:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        if isinstance(reason, http.client.InvalidURL):
            said = f"there is no such address ({said})"
        certificate = isinstance(reason, ssl.SSLCertVerificationError)
        return EncampError(
            Code.UNREACHABLE,
            f"Repository {self.where} cannot be reached: {printable(said)}.",
            "If it is yours, name its certificate authority's file in SSL_CERT_FILE."
            if certificate
            else "Check the address and the network, or try again later.",
            transient=not certificate and not isinstance(reason, http.client.InvalidURL),
        )

    @contextmanager
    def open(
        self, path: str, offset: int = 0, validator: str = "", *, big: bool = True
    ) -> Iterator[Incoming | None]:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        # A weak validator says nothing about single bytes.
        if offset and validator and not validator.startswith("W/"):
            headers["If-Range"] = validator
        with contextlib.ExitStack() as held:
            try:
                response = held.enter_context(self._ask("GET", path, headers, big=big))
            except Refused as refused:
                if refused.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
                    response = held.enter_context(self._ask("GET", path, big=big))
                elif refused.status in (http.client.NOT_FOUND, http.client.GONE):
                    yield None
                    return
                else:
                    raise
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise EncampError(
                    Code.UNREACHABLE,
                    f"{self.where} sends {path} compressed, which nobody asked for.",
                    "Switch compression off in the server for the repository's files.",
                )
            yield Answer(response, offset)

    def read(self, path: str, limit: int) -> bytes | None:
        with self.open(path, big=False) as incoming:
            return None if incoming is None else read_all(incoming, limit)

    def size(self, path: str) -> int | None:
        try:
            with self._ask("HEAD", path) as response:
                return number(response.headers.get("Content-Length"))
        except Refused as refused:
            if refused.status in (http.client.NOT_FOUND, http.client.GONE):
                return None
            raise

    def write(self, path: str, data: bytes) -> None:
        with self._ask("PUT", path, {"Content-Type": "application/octet-stream"}, data):
            pass

    def send(self, path: str, source: Path, meter: Meter) -> None:
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(source.stat().st_size),
        }
        with source.open("rb") as file:

            def pieces() -> Iterator[bytes]:
                while piece := file.read(CHUNK):
                    programs.refuse_when_stopping()
                    yield piece
                    meter.add(len(piece))

            try:
                with self._ask("PUT", path, headers, pieces()):
                    pass
            except Refused:
                raise
            except EncampError as error:
                # A server that does not want a file may just hang up before all of it is sent.
                error.hint = (
                    "It may not take files of that size (client_max_body_size in nginx), or the"
                    " network broke."
                )
                raise

    def remove(self, path: str) -> None:
        try:
            with self._ask("DELETE", path):
                pass
        except Refused as refused:
            if refused.status not in (http.client.NOT_FOUND, http.client.GONE):
                raise

    def room(self) -> int | None:
        return None

    @contextmanager
    def sending(self, progress: Progress) -> Iterator[bool]:
        # Asked once with little, a server that wants credentials says so.
        with self.changing(progress):
            pass
        yield False

    @contextmanager
    def changing(self, progress: Progress) -> Iterator[None]:
        """Making a collection fails if it is there, which makes it a lock. A server that cannot
        make any does without."""
        lock = "changing/"
        patience = time.monotonic() + BREAK_LOCK_AFTER
        held = False
        while not held:
            try:
                with self._ask("MKCOL", lock):
                    held = True
            except Refused as refused:
                if refused.code is Code.NOT_PERMITTED:
                    raise
                if refused.status != http.client.METHOD_NOT_ALLOWED:
                    break
                # One that is not there may just have been let go.
                if not self._exists(lock) and not self._makes_collections():
                    break
                if time.monotonic() > patience:
                    self.remove(lock)
                    patience = time.monotonic() + BREAK_LOCK_AFTER
                progress.update(f"waiting: somebody else is pushing to {self.where}")
                if programs.STOPPING.wait(random.uniform(0.05, 0.2)):
                    programs.refuse_when_stopping()
        try:
            yield
        finally:
            if held:
                with contextlib.suppress(EncampError):
                    self.remove(lock)

    def _makes_collections(self) -> bool:
        place = f"changing-{secrets.token_hex(8)}/"
        try:
            with self._ask("MKCOL", place):
                pass
        except Refused:
            return False
        self.remove(place)
        return True

    def _exists(self, path: str) -> bool:
        try:
            return self.size(path) is not None
        except Refused:
            return True


REFUSALS: dict[int, str] = {
    http.client.UNAUTHORIZED: "it wants credentials, or others than those in ~/.netrc",
    http.client.FORBIDDEN: "it does not permit that",
    http.client.METHOD_NOT_ALLOWED: "it can only be read; a push needs a server that takes PUT",
    http.client.NOT_IMPLEMENTED: "it can only be read; a push needs a server that takes PUT",
    http.client.CONFLICT: "the directory is missing there; let it make directories by itself",
    http.client.REQUEST_ENTITY_TOO_LARGE: "it does not take files of that size",
    http.client.INSUFFICIENT_STORAGE: "its disk is full",
}


TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be others in a moment."""


class Refused(EncampError):  # noqa: N818 - it is an error of the one type, with a status
    """The server answered, but not with what was asked for."""

    def __init__(self, where: str, path: str, method: str, status: int) -> None:
        why = REFUSALS.get(status)
        code = Code.UNREACHABLE
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            code = Code.NOT_PERMITTED
        elif status == http.client.INSUFFICIENT_STORAGE:
            code = Code.DISK_FULL
        super().__init__(
            code,
            f"Repository {where} refused {method} of {path} (status {status})"
            f"{': ' + why if why else ''}.",
            transient=status in TRANSIENT,
        )
        self.status = status
