"""What a trigger says reaches the log, a web hook, a mail program; or that it did not is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from encamp.core.actions import Notify, Way
from encamp.home import Home
from encamp.manager.notifying import Notifier, without_secrets
from encamp.manager.recording import Recorder
from encamp.manager.store.store import Store
from encamp.model.event import Event


class Hook(HTTPServer):
    got: list[bytes]
    answer = 200


@pytest.fixture
def hook() -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert isinstance(self.server, Hook)
            self.server.got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(self.server.answer)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with Hook(("127.0.0.1", 0), Handler) as server:
        server.got = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def notified(tmp_path: Path, notify: Notify, program: tuple[str, ...] = ()) -> list[Event]:
    async with await Store.open("sqlite", Home(tmp_path / "home").prepare()) as store:
        recorder = Recorder(store)
        notifier = Notifier(recorder, program)
        notifier.notify(notify)
        await notifier.close()
        await recorder._write()
        return await store.events()


async def test_the_log_is_the_sites_events(tmp_path: Path) -> None:
    events = await notified(tmp_path, Notify(Way.LOG, "node1 is hot", "heat"))
    assert [(event.sentence, event.subject) for event in events] == [("node1 is hot", "heat")]


async def test_a_web_hook_gets_text_and_facts(tmp_path: Path, hook: Hook) -> None:
    url = f"http://127.0.0.1:{hook.server_port}/hook"
    notify = Notify(Way.WEBHOOK, 'a "quoted"\ntext', "heat", url, {"load": 3.5})
    assert len(await notified(tmp_path, notify)) == 1
    [body] = hook.got
    assert json.loads(body) == {
        "trigger": "heat",
        "text": 'a "quoted"\ntext',
        "facts": {"load": 3.5},
    }


async def test_a_web_hook_that_fails_is_told(tmp_path: Path, hook: Hook) -> None:
    hook.answer = 500
    url = f"http://127.0.0.1:{hook.server_port}/hook"
    events = await notified(tmp_path, Notify(Way.WEBHOOK, "text", "heat", url))
    assert "could not tell" in events[-1].sentence
    assert "500" in events[-1].sentence


async def test_a_web_hook_that_has_moved_is_told(tmp_path: Path, hook: Hook) -> None:
    hook.answer = 302
    url = f"http://127.0.0.1:{hook.server_port}/hook"
    events = await notified(tmp_path, Notify(Way.WEBHOOK, "text", "heat", url))
    assert "could not tell" in events[-1].sentence
    assert "302" in events[-1].sentence
    assert len(hook.got) == 1


async def test_nobody_at_the_web_hook_is_told(tmp_path: Path) -> None:
    notify = Notify(Way.WEBHOOK, "text", "heat", "http://127.0.0.1:9/")
    assert "could not tell" in (await notified(tmp_path, notify))[-1].sentence


async def test_a_mail_is_handed_to_the_mail_program(tmp_path: Path) -> None:
    program = tmp_path / "mailer"
    program.write_text(f'#!/bin/sh\ncat > "{tmp_path}/mail"\n')
    program.chmod(0o755)
    hostile = "Hot\nBcc: everybody@example.org"
    notify = Notify(Way.MAIL, "It is ünusually hot.", "heat", "a@example.org", {"subject": hostile})
    assert len(await notified(tmp_path, notify, (str(program), "-t"))) == 1
    mail = message_from_bytes((tmp_path / "mail").read_bytes(), policy=policy.default)
    assert mail["To"] == "a@example.org"
    assert mail["Bcc"] is None
    assert "Hot Bcc" in mail["Subject"]
    assert "ünusually" in mail.get_content()


async def test_a_mail_program_that_is_not_there_or_fails_is_told(tmp_path: Path) -> None:
    notify = Notify(Way.MAIL, "text", "heat", "a@example.org")
    for program in (("/nowhere/sendmail",), ("false",)):
        events = await notified(tmp_path, notify, program)
        assert "could not tell a@example.org" in events[-1].sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://chat.example.org/hooks/SECRET", "https://chat.example.org/..."),
        ("http://me:SECRET@example.org:80/?token=SECRET", "http://example.org:80/..."),
        (
            "notify('x', to='https://example.org/SECRET', subject='y')",
            "notify('x', to='https://example.org/...', subject='y')",
        ),
        ("admin@example.org", "admin@example.org"),
    ],
)
def test_of_web_hooks_only_the_server_is_told(text: str, said: str) -> None:
    assert without_secrets(text) == said
