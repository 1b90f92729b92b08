"""Telling people what a trigger has seen: into the log, to a web hook, by mail."""

from __future__ import annotations

import asyncio
import email.message
import email.policy
import logging
import re
from collections.abc import Sequence

import msgspec

from encamp import programs
from encamp.core.actions import Notify, Way
from encamp.manager.recording import Recorder
from encamp.model.errors import Code, EncampError
from encamp.model.event import EventKind

log = logging.getLogger(__name__)

_ADDRESS = re.compile(r"(https?:)//(?:[^/\s'\"@]*@)?([^/\s'\"?#]+)[/?#][^\s'\"]*", re.IGNORECASE)

PATIENCE = 10.0
"""Seconds that a web server or mail program has."""
MOST_AT_ONCE = 4
MOST_WAITING = 1000


class Notifier:
    def __init__(self, recorder: Recorder, mail_program: Sequence[str]) -> None:
        self._recorder = recorder
        self._mail_program = tuple(mail_program)
        self._turn = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, notify: Notify) -> None:
        """Tell it, and do not wait for that. What cannot be told is recorded as such."""
        self._recorder.event(
            EventKind.NOTIFICATION, notify.text, subject=notify.trigger, owner=notify.owner
        )
        if notify.way is Way.LOG:
            return
        if len(self._tasks) >= MOST_WAITING:
            self._failed(notify, "too many others are waiting to be told")
            return
        task = asyncio.create_task(self._tell(notify))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, notify: Notify) -> None:
        tell = {Way.WEBHOOK: post, Way.MAIL: self._mail}[notify.way]
        async with self._turn:
            try:
                await asyncio.to_thread(tell, notify)
            except EncampError as error:
                self._failed(notify, error.sentence)

    def _failed(self, notify: Notify, why: str) -> None:
        self._recorder.event(
            EventKind.NOTIFICATION,
            f"Trigger {notify.trigger} could not tell {without_secrets(notify.to)}: {why}",
            subject=notify.trigger,
        )

    def _mail(self, notify: Notify) -> None:
        message = email.message.EmailMessage(policy=email.policy.SMTP)
        subject = " ".join(str(notify.facts.get("subject", "")).split())
        message["To"] = notify.to
        message["Subject"] = subject[:200] or f"Encamp: {notify.trigger}"
        message["X-Encamp-Trigger"] = notify.trigger
        message.set_content(notify.text)
        send_mail(self._mail_program, bytes(message))

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)
        for task in self._tasks:
            task.cancel()


def without_secrets(text: str) -> str:
    """Whoever knows the whole address of a web hook can write there: of each, the server only."""
    return _ADDRESS.sub(r"\1//\2/...", text)


def post(notify: Notify) -> None:
    """Hand a notification to a web hook, as JSON."""
    import httpx

    body = msgspec.json.encode(
        {"trigger": notify.trigger, "text": notify.text, "facts": notify.facts}
    )
    kind = {"Content-Type": "application/json"}
    try:
        # Whoever is sent elsewhere would ask there for a page, and tell nothing.
        answer = httpx.post(
            notify.to, content=body, headers=kind, timeout=PATIENCE, follow_redirects=False
        )
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        why = str(error) or type(error).__name__
        raise EncampError(Code.UNREACHABLE, f"{why}.", transient=True) from error
    if not answer.is_success:
        said = f"{answer.status_code} {answer.reason_phrase}".strip()
        raise EncampError(Code.UNREACHABLE, f"it answered {said}.", transient=True)


def send_mail(program: Sequence[str], message: bytes) -> None:
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(message)
        file.seek(0)
        programs.run(
            program, purpose="sending a mail", code=Code.UNREACHABLE, reads=file, silence=PATIENCE
        )
