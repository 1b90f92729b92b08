"""A manager with played agents that is called over real HTTP, with tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from encamp.manager.api.document import document
from encamp.manager.api.server import ApiServer
from encamp.model.command import CommandRecord
from encamp.model.site import Api, Right, Site
from encamp.model.token import Scope
from tests.manager.playing import Bench, managed

SITE = Site(
    api=Api(listen="127.0.0.1:0", rate=100_000, failures=100_000),
    rights=(Right(who=("alice", "bob"), commands=("test.*",)),),
)

NEEDED = {
    "status": Scope.READ,
    "hosts": Scope.READ,
    "host": Scope.READ,
    "properties": Scope.READ,
    "forget_host": Scope.ADMINISTER,
    "machines": Scope.READ,
    "machine": Scope.READ,
    "environments": Scope.READ,
    "environment": Scope.READ,
    "why": Scope.READ,
    "requests": Scope.READ,
    "submit": Scope.USE,
    "request": Scope.READ,
    "end_request": Scope.USE,
    "why_request": Scope.READ,
    "follow_request": Scope.READ,
    "request_output": Scope.READ,
    "commands": Scope.READ,
    "issue_command": Scope.USE,
    "move_machine": Scope.USE,
    "command": Scope.READ,
    "cancel_command": Scope.USE,
    "command_output": Scope.READ,
    "triggers": Scope.READ,
    "trigger": Scope.READ,
    "trigger_log": Scope.READ,
    "follow_trigger_log": Scope.READ,
    "reload_triggers": Scope.ADMINISTER,
    "events": Scope.READ,
    "follow_events": Scope.READ,
    "tokens": Scope.ADMINISTER,
    "create_token": Scope.ADMINISTER,
    "revoke_token": Scope.ADMINISTER,
    "audit": Scope.ADMINISTER,
    "metrics": Scope.READ,
}
"""How far a token has to go, by operation."""
ASKING = ("ask",)
"""Where that is said by what is asked; what is wrong with it stands in the answer."""
OPEN = ("live", "ready")
"""Those that need none."""

BODIES: dict[str, Any] = {
    "submit": {"environment": "mini", "command": ["true"]},
    "issue_command": {"hosts": ["node1"], "name": "test.do"},
    "move_machine": {"move": "stop"},
    "create_token": {"owner": "carol", "scope": "read", "lifetime": 60},
}


def operations() -> dict[str, tuple[str, str]]:
    """Method and address of each operation, by its name."""
    described = msgspec.json.decode(document())
    return {
        operation["operationId"]: (method.upper(), path)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


class Calling:
    def __init__(self, bench: Bench, held: AsyncExitStack) -> None:
        self.bench = bench
        self._held = held

    @property
    def manager(self) -> Any:
        return self.bench.manager

    @property
    def server(self) -> ApiServer:
        assert self.bench.manager.api is not None
        return self.bench.manager.api

    async def secret(self, owner: str = "alice", scope: Scope = Scope.USE) -> str:
        made = await self.bench.manager.tokens.create(owner, scope, "", 3600, "test")
        return made.secret

    async def caller(self, owner: str = "alice", scope: Scope = Scope.USE) -> httpx.AsyncClient:
        """Somebody with a token."""
        return await self.with_header(f"Bearer {await self.secret(owner, scope)}")

    async def with_header(self, header: str | None) -> httpx.AsyncClient:
        headers = {} if header is None else {"Authorization": header}
        made = httpx.AsyncClient(base_url=self.server.address, headers=headers, timeout=20)
        return await self._held.enter_async_context(made)

    async def issued(self, owner: str = "alice") -> CommandRecord:
        """A command of somebody's, under way on node1."""
        caller = await self.caller(owner)
        answer = await caller.post("/v1/commands", json=BODIES["issue_command"])
        assert answer.status_code == 201, answer.text
        (record,) = answer.json()["commands"]
        return msgspec.convert(record, CommandRecord)

    async def until_no_stream_is_open(self) -> None:
        async with asyncio.timeout(20):
            while self.server.limits.streams:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def calling(path: Path, site: Site = SITE) -> AsyncIterator[Calling]:
    async with managed(path, site) as bench, AsyncExitStack() as held:
        yield Calling(bench, held)
