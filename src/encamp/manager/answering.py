"""Answering questions, whichever door they came through: who may ask, and who knows the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager import (
    administering,
    answering_batch,
    answering_commands,
    answering_events,
    answering_hosts,
    answering_requests,
    answering_triggers,
    listing,
)
from encamp.manager.auditing import CHANGES
from encamp.manager.scopes import check_scope
from encamp.manager.store.tenure import SupersededError

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

Answer = AsyncIterator[msgspec.Struct]


def answer(manager: Manager, peer: Peer, question: questions.Question) -> Answer:
    """Whichever door the question came through."""

    def begin() -> Answer:
        check_scope(peer, question)
        return _ANSWERS[type(question)](manager, peer, question)

    def begin_audited() -> Answer:
        audited = type(question) in CHANGES
        return manager.auditor.audited(peer, question, begin) if audited else begin()

    gathered = manager.listener.gathered
    if gathered.is_set() or isinstance(question, questions.AskStatus):
        return begin_audited()
    return _once(gathered, begin_audited)


async def _once(gathered: asyncio.Event, begin: Callable[[], Answer]) -> Answer:
    """A manager that has just begun lets those wait who ask about the site."""
    await gathered.wait()
    items = begin()
    try:
        async for item in items:
            yield item
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def answer_once_more(
    manager: Manager, peer: Peer, question: questions.Question
) -> AsyncGenerator[msgspec.Struct, None]:
    """For those who see the connection end when a manager dies, and ask the next one then. They
    do the same when this one finds that it does not lead any more, if that does no harm."""
    items = answer(manager, peer, question)
    try:
        async for item in items:
            yield item
    except SupersededError as error:
        is_submitted_once = isinstance(question, questions.Submit) and bool(question.key)
        if type(question) in CHANGES and not is_submitted_once:
            raise  # It may have been done.
        raise ConnectionError(error.sentence) from error
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def whole_answer(
    manager: Manager, peer: Peer, question: questions.Question
) -> Sequence[msgspec.Struct]:
    """All of it at once, which costs less where there is very much."""
    if isinstance(question, questions.AskMachines):
        check_scope(peer, question)
        await manager.listener.gathered.wait()
        return await listing.machines(manager, peer, question)
    items = answer(manager, peer, question)
    try:
        return [item async for item in items]
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def _ask_machines(manager: Manager, peer: Peer, asked: questions.AskMachines) -> Answer:
    for found in await listing.machines(manager, peer, asked):
        yield found


_ANSWERS: dict[type, Callable[[Manager, Peer, Any], Answer]] = {
    questions.AskStatus: answering_hosts.status,
    questions.AskHosts: answering_hosts.ask_hosts,
    questions.AskProperties: answering_hosts.ask_properties,
    questions.AskMachines: _ask_machines,
    questions.AskEvents: answering_events.ask_events,
    questions.IssueCommand: answering_commands.issue,
    questions.AskCommands: answering_commands.ask_commands,
    questions.FollowCommands: answering_commands.follow,
    questions.CancelCommand: answering_commands.cancel,
    questions.AskTriggers: answering_triggers.ask_triggers,
    questions.AskTriggerLog: answering_triggers.ask_log,
    questions.ReloadTriggers: answering_triggers.reload,
    questions.ForgetHost: administering.forget_host,
    questions.GoOn: administering.go_on,
    questions.AskMembers: administering.ask_members,
    questions.ChangeMembers: administering.change_members,
    questions.AskRecording: administering.record,
    questions.Submit: answering_requests.submit,
    questions.AskRequests: answering_requests.ask_requests,
    questions.FollowRequest: answering_requests.follow,
    questions.EndRequest: answering_requests.end,
    questions.AskTicket: answering_requests.ask_ticket,
    questions.MoveMachine: answering_requests.move,
    questions.AskWhy: answering_requests.ask_why,
    questions.AskEnvironments: administering.ask_environments,
    questions.AskBatchJobs: answering_batch.ask_batch_jobs,
    questions.CreateToken: administering.create_token,
    questions.AskTokens: administering.ask_tokens,
    questions.RevokeToken: administering.revoke_token,
    questions.AskAudit: administering.ask_audit,
}
