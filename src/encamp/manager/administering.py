"""Answers about environments and tokens, and to what only administrators may ask."""

from __future__ import annotations

import difflib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from encamp.describe.environments import is_shipped
from encamp.door import questions
from encamp.door.peer import Peer, check_asker
from encamp.manager import restoration
from encamp.manager.environments import may_use
from encamp.manager.rights import administrators_only, is_administrator
from encamp.model.errors import Code, EncampError
from encamp.model.token import Scope, Token

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

Answer = AsyncIterator[msgspec.Struct]


async def create_token(manager: Manager, peer: Peer, asked: questions.CreateToken) -> Answer:
    owner = asked.owner or peer.user
    if owner != peer.user:
        administrators_only(peer, f"make tokens for {owner[:64]}")
    if not Scope.USE.includes(asked.scope):
        administrators_only(peer, f"make tokens for '{asked.scope.value}'")
    check_asker(owner)
    yield await manager.tokens.create(owner, asked.scope, asked.label, asked.lifetime, peer.user)


async def ask_tokens(manager: Manager, peer: Peer, asked: questions.AskTokens) -> Answer:
    for token in manager.tokens.all():
        if token.owner == peer.user or is_administrator(peer):
            yield token


async def revoke_token(manager: Manager, peer: Peer, asked: questions.RevokeToken) -> Answer:
    token = manager.tokens.find(asked.id)
    if token is None or not (token.owner == peer.user or is_administrator(peer)):
        # Whether others have such a one is not told.
        raise _unknown(manager, peer, asked.id)
    await manager.tokens.revoke(token)
    yield token


def _unknown(manager: Manager, peer: Peer, name: str) -> EncampError:
    def own(token: Token) -> bool:
        return token.owner == peer.user or is_administrator(peer)

    near = difflib.get_close_matches(
        name[:64], [token.id for token in manager.tokens.all() if own(token)], n=1
    )
    hint = f"Did you mean {near[0]}? " if near else ""
    return EncampError(
        Code.USAGE,
        f"There is no token '{name[:64]}' of yours.",
        f"{hint}'encamp token ls' lists them.",
    )


async def ask_audit(manager: Manager, peer: Peer, asked: questions.AskAudit) -> Answer:
    administrators_only(peer, "read the audit log")
    for entry in await manager.auditor.entries(asked.since, asked.last, asked.who):
        yield entry


async def ask_environments(
    manager: Manager, peer: Peer, asked: questions.AskEnvironments
) -> Answer:
    described, wrong = await manager.desk.requests.environments.all()
    everything = is_administrator(peer)
    found = [
        environment
        for environment in described
        if asked.name in ("", environment.name)
        and may_use(environment.users, peer, administrator=everything)
    ]
    if asked.name and not found:
        raise wrong or EncampError(
            Code.UNKNOWN_ENVIRONMENT,
            f"There is no environment '{asked.name[:64]}' that {peer.user} may use.",
            "'encamp env ls' lists them.",
        )
    for environment in found:
        file = environment.origin if everything else ""
        yield questions.site_environment(environment, file, shipped=is_shipped(environment))
    if wrong is not None and not asked.name:
        raise wrong  # Others may be missing.


async def forget_host(manager: Manager, peer: Peer, asked: questions.ForgetHost) -> Answer:
    administrators_only(peer, "have hosts forgotten")
    yield await manager.forget(asked.host)


async def go_on(manager: Manager, peer: Peer, asked: questions.GoOn) -> Answer:
    administrators_only(peer, "say what becomes of a store that was put back")
    yield await restoration.go_on(
        manager, peer.user, cancel_waiting=asked.cancel_waiting, keep_tokens=asked.keep_tokens
    )


async def ask_members(manager: Manager, peer: Peer, asked: questions.AskMembers) -> Answer:
    administrators_only(peer, "see who belongs to the site")
    known = b"" if manager.members is None else manager.members.told()
    yield questions.SiteMembers(members=known)


async def change_members(manager: Manager, peer: Peer, asked: questions.ChangeMembers) -> Answer:
    administrators_only(peer, "say who belongs to the site")
    if manager.members is None:
        yield questions.SiteMembers(members=b"")
        return
    await manager.members.change(asked.members, manager.site.name)
    yield questions.SiteMembers(members=manager.members.told())


async def record(manager: Manager, peer: Peer, asked: questions.AskRecording) -> Answer:
    administrators_only(peer, "record the site")
    yield questions.Recording(
        at=time.time(),
        hosts=tuple(state.whole() for state in manager.core.picture.hosts.values()),
        commands=tuple(await manager.store.under_way()),
        events=tuple(await manager.store.events(last=100)),
    )
