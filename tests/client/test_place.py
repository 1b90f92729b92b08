"""Where the manager is said to be, with which token, and what is said when that is wrong."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from encamp.client import calls
from encamp.client.far_door import HttpDoor
from encamp.client.login import Login, saved_login
from encamp.client.place import Place, addresses
from encamp.client.trying import NOBODY, Tries
from encamp.client.unreached import unreached
from encamp.door.client import UnansweredError, ask
from encamp.door.questions import AskStatus, Status
from encamp.model.errors import Code, EncampError
from tests.manager.api.test_server import certificate


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("URL", "TOKEN", "TOKEN_FILE", "AUTHORITY", "INSECURE"):
        monkeypatch.delenv(f"ENCAMP_{name}", raising=False)
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


def save(config: Path, login: Login, mode: int = 0o600) -> Path:
    path = config / "login.json"
    path.write_bytes(msgspec.json.encode(login))
    path.chmod(mode)
    return path


def shown(place: Place) -> str:
    return place.headers["Authorization"].removeprefix("Bearer ")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("manager", ("https://manager:7478",)),
        ("manager:9000", ("https://manager:9000",)),
        ("[2001:db8::1]", ("https://[2001:db8::1]:7478",)),
        ("https://manager/encamp/", ("https://manager/encamp",)),
        ("http://127.0.0.1:7478", ("http://127.0.0.1:7478",)),
        ("http://localhost:7478", ("http://localhost:7478",)),
        ("m1, https://m2:1", ("https://m1:7478", "https://m2:1")),
    ],
)
def test_address_is_understood(said: str, meant: tuple[str, ...]) -> None:
    assert addresses(said) == meant


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        ",",
        "ftp://m",
        "https://",
        "https://m:99999",
        "https://a@m",
        "https://m?x",
        "https://m:x",
    ],
)
def test_address_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(EncampError, match="is not the address of a manager") as refused:
        addresses(wrong)
    assert refused.value.code is Code.USAGE


def test_token_is_not_sent_in_clear_unless_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://192.0.2.1:7478", "http://manager:7478", "https://m1,http://m2"):
        with pytest.raises(EncampError, match="in clear") as refused:
            Place(url, "x")
        assert refused.value.code is Code.NOT_PERMITTED
    monkeypatch.setenv("ENCAMP_INSECURE", "1")
    assert Place("http://manager:7478", "x").url == "http://manager:7478"


def test_saved_login_is_used_for_its_own_site_only(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EncampError, match="no token"):
        Place()
    save(config, Login(url="https://manager:7478", token="saved"))
    assert (Place().url, shown(Place())) == ("https://manager:7478", "saved")
    assert shown(Place("manager")) == "saved"
    with pytest.raises(EncampError, match="no token"):
        Place("https://elsewhere")
    monkeypatch.setenv("ENCAMP_TOKEN", "other")
    assert (Place().url, shown(Place())) == ("https://manager:7478", "other")
    monkeypatch.setenv("ENCAMP_URL", "https://elsewhere")
    assert (Place().url, shown(Place())) == ("https://elsewhere", "other")


def test_login_that_others_could_read_or_have_made_is_not_used(config: Path) -> None:
    login = Login(url="https://manager:7478", token="saved")
    for mode in (0o640, 0o604, 0o660):
        save(config, login, mode)
        with pytest.raises(EncampError, match="by others") as refused:
            saved_login()
        assert refused.value.code is Code.NOT_PERMITTED
    path = save(config, login)
    assert saved_login() == login
    path.rename(config / "real")
    path.mkdir()
    with pytest.raises(EncampError, match="is not a file"):
        saved_login()
    path.rmdir()
    path.symlink_to("real")
    with pytest.raises(EncampError, match="is a link"):
        saved_login()
    path.unlink()
    path.write_text("{}")
    path.chmod(0o600)
    with pytest.raises(EncampError, match="is not what 'encamp login' has written"):
        saved_login()
    if os.geteuid() == 0:
        save(config, login)
        os.chown(path, 65534, 65534)
        with pytest.raises(EncampError, match="belongs to"):
            saved_login()


def test_what_is_no_token_is_not_sent() -> None:
    for wrong in ("two words", "line\nX-Header: 1", "täuschung"):
        with pytest.raises(EncampError, match="is none"):
            Place("https://manager", wrong)


def test_authority_has_to_be_a_certificate(tmp_path: Path) -> None:
    for name, text, code in (
        ("missing", None, Code.INPUT_MISSING),
        ("key", "-----BEGIN PRIVATE KEY-----", Code.CONFIGURATION),
        ("broken", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----", Code.CONFIGURATION),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(EncampError) as refused:
            Place("https://manager", "x", str(tmp_path / name))
        assert refused.value.code is code
        assert name in refused.value.sentence


class Another(BaseHTTPRequestHandler):
    """A server that is no manager."""

    status = 200

    def do_POST(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"<html>Hello</html>" * 10_000)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def another(context: ssl.SSLContext | None = None) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Another) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def refusal(url: str, authority: str | None = None) -> EncampError:
    with pytest.raises(EncampError) as refused:
        list(ask(HttpDoor(Place(url, "token", authority)), AskStatus(), Status))
    return refused.value


def test_server_that_is_no_manager_is_told_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with another() as address:
        for status in (200, 301, 404, 500):
            monkeypatch.setattr(Another, "status", status)
            refused = refusal(f"http://{address}")
            assert refused.code is Code.PROTOCOL
            assert f"is not the manager of a site: it says {status}" in refused.sentence
        monkeypatch.setattr(Another, "status", 502)
        refused = refusal(f"http://{address}")
        assert isinstance(refused, UnansweredError)
        assert "a server in between says 502" in refused.sentence
        refused = refusal(f"https://{address}")
        assert "does not speak TLS" in refused.sentence


def test_certificate_has_to_be_trusted_and_of_the_right_name(tmp_path: Path) -> None:
    api = certificate(tmp_path / "tls", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert api.certificate is not None
    context.load_cert_chain(api.certificate, api.key)
    with another(context) as address:
        untrusted = refusal(f"https://{address}")
        assert untrusted.code is Code.UNTRUSTED
        assert "--authority" in untrusted.hint
        named = address.replace("127.0.0.1", "localhost")
        assert refusal(f"https://{named}", api.certificate).code is Code.UNTRUSTED
        # It is spoken with then.
        assert refusal(f"https://{address}", api.certificate).code is Code.PROTOCOL


def test_address_where_nobody_ever_answered_is_given_up_soon() -> None:
    gone = EncampError(Code.UNREACHABLE, "Gone.", transient=True)
    tries = Tries(calls.status(), patience=30.0, now=0.0)
    assert tries.pause(gone, NOBODY - 1, told=True, found=False) > 0
    with pytest.raises(EncampError):
        tries.pause(gone, NOBODY, told=True, found=False)
    assert tries.pause(gone, NOBODY, told=True, found=True) > 0


def test_unreachable_is_told_with_its_cause() -> None:
    refused = refusal("http://127.0.0.1:9")
    assert isinstance(refused, UnansweredError)
    assert "does not answer: connection refused" in refused.sentence
    unknown = ConnectionError("All attempts failed.")
    unknown.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert unreached(unknown, "https://m") == "there is no host of this name"
