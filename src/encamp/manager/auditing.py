"""The audit log: who changed what, through which door, and what came of it.

Whatever is asked of a manager comes by here. What changes something is written down before it is
done, and not done if it cannot be written down.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec

from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager.store import audit as table
from encamp.manager.store.store import Store
from encamp.model.audit import AuditEntry, AuditOutcome
from encamp.model.errors import Code, EncampError

LONGEST = 300
"""Characters of what an entry is about."""
MOST_MADE = 20
"""Ids of what came of it."""

log = logging.getLogger(__name__)

Answer = AsyncIterator[msgspec.Struct]


def _hosts(asked: Any) -> str:
    return f"{asked.name} on {' '.join(asked.hosts)}"


def _submitted(asked: questions.Submit) -> str:
    request = asked.request
    label = f" ({request.label})" if request.label else ""
    return f"{request.count} x {request.environment}{label}"


def _met(asked: questions.AskTicket) -> str:
    return asked.machine or f"{asked.request}.{asked.number}"


def _token(asked: questions.CreateToken) -> str:
    return f"{asked.scope.value} for {asked.owner or 'oneself'}"


CHANGES: dict[type, tuple[str, Callable[[Any], str]]] = {
    questions.Submit: ("request.submit", _submitted),
    questions.EndRequest: ("request.end", lambda asked: asked.id),
    questions.AskTicket: ("machine.meet", _met),
    questions.MoveMachine: ("machine.move", lambda asked: f"{asked.move.value} {asked.machine}"),
    questions.IssueCommand: ("command.issue", _hosts),
    questions.CancelCommand: ("command.cancel", lambda asked: asked.id),
    questions.ReloadTriggers: ("triggers.load", lambda asked: ""),
    questions.ChangeMembers: ("site.members", lambda asked: ""),
    questions.GoOn: (
        "site.restored",
        lambda asked: "cancel what waits" if asked.cancel_waiting else "keep what waits",
    ),
    questions.ForgetHost: ("host.forget", lambda asked: asked.host),
    questions.AskRecording: ("site.record", lambda asked: ""),
    questions.CreateToken: ("token.create", _token),
    questions.RevokeToken: ("token.revoke", lambda asked: asked.id),
}
"""Questions that are written down: what is done, and to what, in words."""


class Auditor:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._number = 0
        self._ended: list[AuditEntry] = []
        self._writing: asyncio.Task[None] | None = None

    async def load(self) -> None:
        self._number = await self._store.read(table.newest)

    async def entries(self, since: int, last: int | None, who: str) -> list[AuditEntry]:
        await self.close()
        return await self._store.read(partial(table.read, since=since, last=last, who=who))

    async def audited(
        self, peer: Peer, question: questions.Question, answer: Callable[[], Answer]
    ) -> AsyncGenerator[msgspec.Struct, None]:
        """The answer, with a note of it before and after."""
        entry = await self._begin(peer, question)
        outcome, sentence = AuditOutcome.LEFT, ""
        made: list[str] = []
        items: Answer | None = None
        try:
            items = answer()
            async for item in items:
                made += _ids(item)
                yield item
            outcome = AuditOutcome.DONE
        except EncampError as error:
            refused = error.code is Code.NOT_PERMITTED
            outcome = AuditOutcome.REFUSED if refused else AuditOutcome.FAILED
            sentence = error.sentence[:LONGEST]
            raise
        except Exception as error:
            outcome, sentence = AuditOutcome.FAILED, type(error).__name__
            raise
        finally:
            self._end(
                msgspec.structs.replace(
                    entry, outcome=outcome, sentence=sentence, made=tuple(made[:MOST_MADE])
                )
            )
            if isinstance(items, AsyncGenerator):
                await items.aclose()

    async def _begin(self, peer: Peer, question: questions.Question) -> AuditEntry:
        action, about = CHANGES[type(question)]
        self._number += 1
        entry = AuditEntry(
            number=self._number,
            at=time.time(),
            who=peer.user,
            through="http" if peer.scope is not None else "door",
            address=peer.address,
            token=peer.token,
            action=action,
            about=about(question)[:LONGEST],
        )
        await self._store.write(partial(table.write, entries=[entry]))
        return entry

    def _end(self, entry: AuditEntry) -> None:
        """Nobody waits for it; many are written at once."""
        self._ended.append(entry)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._ended:
            entries, self._ended = self._ended, []
            try:
                await self._store.write(partial(table.write, entries=entries))
            except EncampError as error:
                log.warning("What became of %d entries of the audit log: %s", len(entries), error)

    async def close(self) -> None:
        """All that is known is written down."""
        if self._writing is not None:
            await asyncio.wait({self._writing})


def _ids(item: msgspec.Struct) -> list[str]:
    match item:
        case questions.Ticket() | questions.LeftOut():
            return []
        case _:
            named = getattr(item, "token", None) or getattr(item, "request", None) or item
            found = getattr(named, "id", "")
            return [found] if isinstance(found, str) and found else []
