"""`encamp login`: which site commands go to, with whose token, and what is said of both."""

from __future__ import annotations

import asyncio
import getpass
import io
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from encamp.cli.main import run_command
from encamp.model.errors import Code
from encamp.model.token import Scope
from tests.manager.api.calling import Calling, calling

VARIABLES = ("DOOR", "URL", "TOKEN", "TOKEN_FILE", "AUTHORITY", "INSECURE")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(f"ENCAMP_{name}", raising=False)
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path / "user"))
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path / "mine"))
    return tmp_path / "user"


@pytest.fixture
async def calls(tmp_path: Path) -> AsyncIterator[Calling]:
    async with calling(tmp_path / "home") as made:
        yield made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Line:
    """The command line, in a thread beside the manager."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, said: pytest.CaptureFixture[str]) -> None:
        self.terminal = False
        self._monkeypatch = monkeypatch
        self._said = said

    async def __call__(self, *words: str, input: str = "", code: int = 0) -> str:
        stdin = io.StringIO(input)
        if self.terminal:
            stdin = Terminal()
        self._monkeypatch.setattr(sys, "stdin", stdin)
        ended = await asyncio.to_thread(run_command, list(words))
        out, error = self._said.readouterr()
        assert ended == code, out + error
        return out + error


@pytest.fixture
def encamp(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(monkeypatch, capsys)


async def test_commands_go_where_one_is_logged_in(
    calls: Calling, encamp: Line, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = calls.server.address
    nowhere = Code.WRONG_STATE.value
    assert "not logged in" in await encamp("login", code=nowhere)
    said = await encamp("login", url, input=await calls.secret("alice") + "\n")
    assert f"Logged in at {url}: site 'site'" in said
    assert "The site takes you for alice, with a token for 'use' until" in said
    assert "on the site your jobs and machines are alice's" in said
    login = config / "login.json"
    assert stat.S_IMODE(login.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.stat().st_mode) == 0o700
    assert [path.name for path in config.iterdir()] == ["login.json"]

    status = await encamp("status")
    assert f"answers at {url}" in status
    assert "alice, with a token for 'use'" in status
    async with calls.bench.agent().joined():
        assert "node1" in await encamp("hosts")
        assert "node1" in await encamp("top", "--once")
    assert f"Logged in at {url}." in await encamp("login")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("ENCAMP_DOOR", "/none")
        assert "where ENCAMP_DOOR says" in await encamp("login")
        assert "/none" in await encamp("hosts", code=Code.UNREACHABLE.value)

    await encamp("logout")
    assert list(config.iterdir()) == []
    await encamp("logout", code=nowhere)
    assert "'encamp login' elsewhere" in await encamp("hosts", code=Code.UNREACHABLE.value)


async def test_what_does_not_work_is_not_kept(
    calls: Calling, encamp: Line, config: Path, tmp_path: Path
) -> None:
    url, file = calls.server.address, tmp_path / "token"
    file.write_text(await calls.secret("alice", Scope.READ) + "\n")
    await encamp("login", url, "--token-file", str(file))
    kept = (config / "login.json").read_bytes()
    wrong = f"encamp_{'0' * 12}_{'A' * 43}"
    refused = Code.NOT_PERMITTED.value
    assert "does not take the token" in await encamp("login", url, input=wrong, code=refused)
    await encamp("login", url, input="", code=Code.USAGE.value)
    await encamp("login", url, "--token-file", "/none", code=Code.INPUT_MISSING.value)
    await encamp("login", "http://192.0.2.1", code=refused)
    await encamp("login", "ftp://manager", code=Code.USAGE.value)
    await encamp("login", "--insecure", code=Code.USAGE.value)
    await encamp("login", "http://127.0.0.1:9", input=wrong, code=Code.UNREACHABLE.value)
    assert (config / "login.json").read_bytes() == kept
    said = await encamp("cancel", "x", code=refused)
    assert "This token is for 'read', and this needs 'use'." in said


async def test_token_is_asked_for_at_a_terminal_and_not_shown(
    calls: Calling, encamp: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await calls.secret("alice")
    asked = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return secret

    encamp.terminal = True
    monkeypatch.setattr(getpass, "getpass", ask)
    said = await encamp("login", calls.server.address)
    assert asked == ["Token: "]
    assert secret not in said
