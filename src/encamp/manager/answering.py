"""Answering at the door: what people and programs on the manager's host may ask."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from encamp import __version__
from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager import administering, answering_requests, listing
from encamp.manager.auditing import CHANGES
from encamp.manager.notifying import without_secrets
from encamp.manager.rights import (
    administrators_only,
    check_right,
    chosen_hosts,
    is_administrator,
    present_hosts,
)
from encamp.manager.scopes import check_scope
from encamp.model.command import IN_WORDS, OVER, CommandRecord
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event, EventKind
from encamp.model.host import Host, Presence

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

PIECE = 256 << 10
"""Bytes of output in one item."""

LONGEST_QUERY = 600.0
"""Seconds that answers to a query may be waited for."""

LOOK = "look"
"""A key in the store under which there is nothing: asking for it shows whether it answers."""
PATIENCE_WITH_STORE = 1.0
"""Seconds after which a store that does not answer is in trouble."""

OF_REQUESTS = frozenset(kind for kind in EventKind if kind.name.startswith("REQUEST_"))

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


def _hosts(manager: Manager, patterns: tuple[str, ...]) -> list[Host]:
    found = [state.record for state in manager.core.picture.hosts.values()]
    return chosen_hosts(patterns, found)


async def _status(manager: Manager, peer: Peer, asked: questions.AskStatus) -> Answer:
    store = await _store_trouble(manager)
    hosts = manager.core.picture.hosts.values()
    yield questions.Status(
        site=manager.site.name,
        version=__version__,
        instance=manager.instance,
        started=manager.started,
        hosts={
            presence.value: sum(host.record.presence is presence for host in hosts)
            for presence in Presence
        },
        machines=sum(len(host.machines) for host in hosts),
        commands_under_way=len(manager.dispatcher.commands.records),
        triggers=len(manager.core.engine.views()),
        store=store,
        requests=manager.desk.requests.standing.counts(),
        messages=manager.listener.messages,
        leadership=manager.store.tenure.leadership(),
    )


async def _store_trouble(manager: Manager) -> str:
    """How the store is now: a look at it finds out what nobody has noticed yet."""
    unnoticed = ""
    if not manager.store.trouble:
        try:
            async with asyncio.timeout(PATIENCE_WITH_STORE):
                await manager.store.kept(LOOK)
        except TimeoutError:
            unnoticed = "It has not answered for a second."
        except EncampError as error:
            unnoticed = error.sentence
    return manager.store.trouble or unnoticed


async def _ask_hosts(manager: Manager, peer: Peer, asked: questions.AskHosts) -> Answer:
    hosts = [host for host in _hosts(manager, asked.hosts) if host.name > asked.after]
    for host in hosts if asked.most is None else hosts[: max(0, asked.most)]:
        state = manager.core.picture.hosts.get(host.name)
        if state is not None:
            yield state.whole() if asked.brief is None else _brief(state.whole(), asked.brief)


def _brief(host: Host, names: tuple[str, ...]) -> Host:
    readings = {name: host.readings[name] for name in names if name in host.readings}
    return msgspec.structs.replace(host, properties=(), commands=(), readings=readings)


async def _ask_properties(manager: Manager, peer: Peer, asked: questions.AskProperties) -> Answer:
    hosts = _hosts(manager, asked.hosts)
    if not 0 < asked.timeout <= LONGEST_QUERY:
        raise EncampError(
            Code.USAGE,
            f"Answers cannot be waited for for {asked.timeout} seconds.",
            f"Give more than 0 and at most {LONGEST_QUERY:.0f}.",
        )
    _check_properties(hosts, asked.properties)
    await manager.querier.answers([host.name for host in hosts], asked.properties, asked.timeout)
    async for host in _ask_hosts(manager, peer, questions.AskHosts(hosts=asked.hosts)):
        yield host


def _check_properties(hosts: list[Host], names: tuple[str, ...]) -> None:
    known = {definition.name for host in hosts for definition in host.properties}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name[:64], known, n=1)
            raise EncampError(
                Code.USAGE,
                f"None of these hosts has a property '{name[:64]}'.",
                f"Did you mean '{near[0]}'?" if near else "'encamp properties HOST' lists them.",
            )


async def _ask_machines(manager: Manager, peer: Peer, asked: questions.AskMachines) -> Answer:
    for found in await listing.machines(manager, peer, asked):
        yield found


async def _ask_events(manager: Manager, peer: Peer, asked: questions.AskEvents) -> Answer:
    names = [host.name for host in _hosts(manager, asked.hosts)] if asked.hosts else []
    number = asked.since
    if asked.last is not None:
        # What is older than those asked for is not news.
        latest = await manager.store.events(last=1)
        number = max([number, *(event.number for event in latest)])
    heard = manager.recorder.news.count
    events = await manager.store.events(asked.since, asked.last, names)
    while True:
        for event in events:
            number = max(number, event.number)
            if _may_hear(peer, event):
                yield event
        if not asked.follow:
            return
        await manager.recorder.news.wait(heard)
        heard = manager.recorder.news.count
        events = await manager.store.events(number, None, names)


def _may_hear(peer: Peer, event: Event) -> bool:
    """How requests get on is told to their owners, and to administrators."""
    if event.kind not in OF_REQUESTS:
        return True
    return event.facts.get("owner") == peer.user or is_administrator(peer)


def _refuse_commands_for_hosts(manager: Manager, asked: questions.IssueCommand) -> None:
    for name in asked.hosts:
        if name in manager.core.commands() and name not in manager.core.picture.hosts:
            raise EncampError(
                Code.USAGE,
                f"'{name}' is a command, and no host.",
                f"Hosts come first, then the command: encamp command send HOST... {name}",
            )


def _refuse_internal(manager: Manager, name: str) -> None:
    definition = manager.core.commands().get(name)
    if definition is not None and definition.internal:
        raise EncampError(
            Code.USAGE,
            f"'{name}' is for the manager to issue.",
            "'encamp run', 'encamp start' and 'encamp exec' have it issued for you.",
        )


async def _issue(manager: Manager, peer: Peer, asked: questions.IssueCommand) -> Answer:
    if not asked.hosts:
        raise EncampError(Code.USAGE, "No host was named.", "Name some, or '*' for all.")
    _refuse_commands_for_hosts(manager, asked)
    _refuse_internal(manager, asked.name)
    hosts = _hosts(manager, asked.hosts)
    if not is_administrator(peer):
        for host in hosts:
            check_right(manager.site.rights, peer.user, peer.groups, asked.name, host)
    hosts, left_out = present_hosts(asked.hosts, hosts)
    records = await manager.dispatcher.issue(
        [host.name for host in hosts],
        asked.name,
        asked.arguments,
        peer.user,
        timeout=asked.timeout,
        texts=asked.texts,
    )
    for host in left_out:
        yield questions.LeftOut(host.name, f"is {host.presence.value}: {host.reason}")
    for record in records:
        yield record


def _check_command(manager: Manager, peer: Peer, record: CommandRecord) -> None:
    """What a command was told, and what came of it, is its issuer's business."""
    if record.issuer != peer.user:
        administrators_only(peer, f"see or cancel what {record.issuer} issued")


async def _ask_commands(manager: Manager, peer: Peer, asked: questions.AskCommands) -> Answer:
    if asked.id:
        record = await manager.store.command(asked.id)
        _check_command(manager, peer, record)
        yield record
        return
    names = [host.name for host in _hosts(manager, asked.hosts)] if asked.hosts else []
    issuer = "" if is_administrator(peer) else peer.user
    if asked.under_way:
        latest_first = reversed(await manager.store.under_way())
        fitting = (one for one in latest_first if not names or one.host in names)
        found = [one for one in fitting if issuer in ("", one.issuer)][: max(0, asked.last)]
    else:
        found = await manager.store.commands(names, asked.last, issuer)
    for record in found:
        yield record


async def _follow(manager: Manager, peer: Peer, asked: questions.FollowCommands) -> Answer:
    offsets: dict[str, int] = {}
    for command_id, offset in asked.offsets.items():
        record = await manager.store.command(command_id)
        _check_command(manager, peer, record)
        offsets[record.id] = max(0, offset)
    with manager.dispatcher.commands.followers.follow(offsets) as follower:
        while offsets:
            for command_id in await follower.next():
                if command_id not in offsets:
                    continue
                # The state first: what comes before a command's end is written down before it.
                record = await manager.store.command(command_id)
                while piece := await manager.store.output(command_id, offsets[command_id], PIECE):
                    yield questions.Output(command_id, offsets[command_id], piece)
                    offsets[command_id] += len(piece)
                if record.state in OVER:
                    yield record
                    del offsets[command_id]


async def _cancel(manager: Manager, peer: Peer, asked: questions.CancelCommand) -> Answer:
    record = await manager.store.command(asked.id)
    _check_command(manager, peer, record)
    if record.state in OVER:
        raise EncampError(
            Code.WRONG_STATE,
            f"There is nothing to cancel: {record.name} on {record.host}"
            f" {IN_WORDS[record.state]} already.",
            f"'encamp command show {record.id[:8]}' tells more.",
        )
    yield await manager.dispatcher.cancel(record)


async def _ask_triggers(manager: Manager, peer: Peer, asked: questions.AskTriggers) -> Answer:
    found = False
    for view in manager.core.engine.views():
        if asked.name in ("", view.name):
            found = True
            if not is_administrator(peer):
                commands = tuple(without_secrets(command) for command in view.commands)
                view = msgspec.structs.replace(view, commands=commands)
            yield view
    if asked.name and not found:
        raise _unknown_trigger(manager, asked.name)


def _unknown_trigger(manager: Manager, name: str) -> EncampError:
    known = [view.name for view in manager.core.engine.views()]
    near = difflib.get_close_matches(name[:64], known, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return EncampError(
        Code.USAGE, f"There is no trigger '{name[:64]}'.", f"{hint}'encamp trigger ls' lists them."
    )


async def _ask_log(manager: Manager, peer: Peer, asked: questions.AskTriggerLog) -> Answer:
    logged = manager.recorder.logged
    entries = await manager.store.judged(asked.name, asked.last)
    known = {view.name for view in manager.core.engine.views()}
    if asked.name and asked.name not in known and not entries:
        raise _unknown_trigger(manager, asked.name)
    while True:
        for entry in entries:
            yield entry
        if not asked.follow:
            return
        while manager.recorder.logged == logged:
            await manager.recorder.news.wait()
        new, logged = manager.recorder.judged_since(logged), manager.recorder.logged
        entries = [entry for entry in new if asked.name in ("", entry.trigger)]


async def _reload(manager: Manager, peer: Peer, asked: questions.ReloadTriggers) -> Answer:
    administrators_only(peer, "load triggers")
    manager.load_triggers()
    manager.core.engine.release()
    async for view in _ask_triggers(manager, peer, questions.AskTriggers()):
        yield view


async def _forget(manager: Manager, peer: Peer, asked: questions.ForgetHost) -> Answer:
    administrators_only(peer, "have hosts forgotten")
    yield await manager.forget(asked.host)


async def _record(manager: Manager, peer: Peer, asked: questions.AskRecording) -> Answer:
    administrators_only(peer, "record the site")
    import time

    yield questions.Recording(
        at=time.time(),
        hosts=tuple(state.whole() for state in manager.core.picture.hosts.values()),
        commands=tuple(await manager.store.under_way()),
        events=tuple(await manager.store.events(last=100)),
    )


_ANSWERS: dict[type, Callable[[Manager, Peer, Any], Answer]] = {
    questions.AskStatus: _status,
    questions.AskHosts: _ask_hosts,
    questions.AskProperties: _ask_properties,
    questions.AskMachines: _ask_machines,
    questions.AskEvents: _ask_events,
    questions.IssueCommand: _issue,
    questions.AskCommands: _ask_commands,
    questions.FollowCommands: _follow,
    questions.CancelCommand: _cancel,
    questions.AskTriggers: _ask_triggers,
    questions.AskTriggerLog: _ask_log,
    questions.ReloadTriggers: _reload,
    questions.ForgetHost: _forget,
    questions.AskRecording: _record,
    questions.Submit: answering_requests.submit,
    questions.AskRequests: answering_requests.ask_requests,
    questions.FollowRequest: answering_requests.follow,
    questions.EndRequest: answering_requests.end,
    questions.AskTicket: answering_requests.ask_ticket,
    questions.MoveMachine: answering_requests.move,
    questions.AskWhy: answering_requests.ask_why,
    questions.AskEnvironments: administering.ask_environments,
    questions.CreateToken: administering.create_token,
    questions.AskTokens: administering.ask_tokens,
    questions.RevokeToken: administering.revoke_token,
    questions.AskAudit: administering.ask_audit,
}
