"""Answering questions about the site and its hosts: how they are, and what they read."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from encamp import __version__
from encamp.core.picture import HostState
from encamp.door import questions
from encamp.door.peer import Peer
from encamp.manager.rights import asker, chosen_hosts
from encamp.manager.visibility import Visibility
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host, Presence

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

LONGEST_QUERY = 600.0
"""Seconds that answers to a query may be waited for."""

LOOK = "look"
"""A key in the store under which there is nothing: asking for it shows whether it answers."""
PATIENCE_WITH_STORE = 1.0
"""Seconds after which a store that does not answer is in trouble."""

Answer = AsyncIterator[msgspec.Struct]


def hosts_named(manager: Manager, patterns: tuple[str, ...]) -> list[Host]:
    """All, if there are no patterns."""
    found = [state.record for state in manager.core.picture.hosts.values()]
    return chosen_hosts(patterns, found)


async def status(manager: Manager, peer: Peer, asked: questions.AskStatus) -> Answer:
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
        triggers=len(manager.core.engine.triggers),
        triggers_refused=manager.loading.refused,
        store=store,
        requests=manager.desk.requests.standing.counts(),
        messages=manager.listener.messages,
        leadership=manager.store.tenure.leadership(),
        asker=asker(peer, manager.tokens.find(peer.token)),
        restored=manager.restoration.sentence,
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


async def ask_hosts(manager: Manager, peer: Peer, asked: questions.AskHosts) -> Answer:
    hosts = [host for host in hosts_named(manager, asked.hosts) if host.name > asked.after]
    visibility = Visibility(manager, peer)
    for host in hosts if asked.most is None else hosts[: max(0, asked.most)]:
        state = manager.core.picture.hosts.get(host.name)
        if state is not None:
            whole = _as_seen(state, visibility)
            yield whole if asked.brief is None else _brief(whole, asked.brief)


def _as_seen(state: HostState, visibility: Visibility) -> Host:
    machines = tuple(visibility.machines(state).values())
    return msgspec.structs.replace(state.record, readings=dict(state.readings), machines=machines)


def _brief(host: Host, names: tuple[str, ...]) -> Host:
    readings = {name: host.readings[name] for name in names if name in host.readings}
    return msgspec.structs.replace(host, properties=(), commands=(), readings=readings)


async def ask_properties(manager: Manager, peer: Peer, asked: questions.AskProperties) -> Answer:
    hosts = hosts_named(manager, asked.hosts)
    if not 0 < asked.timeout <= LONGEST_QUERY:
        raise EncampError(
            Code.USAGE,
            f"Answers cannot be waited for for {asked.timeout} seconds.",
            f"Give more than 0 and at most {LONGEST_QUERY:.0f}.",
        )
    _check_properties(hosts, asked.properties)
    await manager.querier.answers([host.name for host in hosts], asked.properties, asked.timeout)
    async for host in ask_hosts(manager, peer, questions.AskHosts(hosts=asked.hosts)):
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
