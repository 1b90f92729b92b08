"""The client for programs with an event loop: the same as the other, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from encamp.client import calls
from encamp.client.attempting import Attempts, Resumed
from encamp.client.calls import Call, Issued, Listed, RequestOptions, name_of
from encamp.client.place import Place
from encamp.client.trying import PATIENCE
from encamp.core.actions import Judged
from encamp.door.questions import Move, SiteEnvironment, SiteMachine, Status
from encamp.model.audit import AuditEntry
from encamp.model.command import CommandRecord
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event
from encamp.model.host import Host
from encamp.model.machine import State
from encamp.model.property import Reading, Value
from encamp.model.request import REQUEST_OVER, Explanation, RequestRecord
from encamp.model.token import NewToken, Scope, Token
from encamp.model.trigger import TriggerView

T = TypeVar("T")


class AsyncClient:
    """A site's manager. Use it with `async with`. Whatever goes wrong is raised as `EncampError`;
    where trying again may help, that is done for `patience` seconds, and nothing is done twice."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        authority: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """`authority`: the file with the certificate that the manager's is checked against. What is
        not given is taken from ENCAMP_URL, ENCAMP_TOKEN (or ENCAMP_TOKEN_FILE), ENCAMP_AUTHORITY,
        or from what 'encamp login' has saved."""
        self._place = Place(url, token, authority)
        self._patience = patience
        self._http = self._place.async_client()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # ── jobs and machines ────────────────────────────────────────────────────────────────────────

    async def submit(
        self,
        environment: str,
        command: Sequence[str] = (),
        *,
        key: str = "",
        **options: Unpack[RequestOptions],
    ) -> RequestRecord:
        """Queue a job; without a command, machines that stand until they are cancelled. `key`: told
        again with the same one, even by another process, it is the same request."""
        return await self._do(calls.submit(environment, command, options, key))

    async def wait(self, request: RequestRecord | str) -> RequestRecord:
        """Until it is over."""
        async with aclosing(self.follow(request)) as records:
            async for record in records:
                if record.state in REQUEST_OVER:
                    return record
        raise EncampError(Code.PROTOCOL, "The manager does not say how the request ended.")

    async def follow(self, request: RequestRecord | str) -> AsyncGenerator[RequestRecord, None]:
        """It as it is now, and whenever it has changed, until it is over."""
        name = name_of(request)
        told: RequestRecord | None = None
        async with aclosing(self._lines(lambda: calls.follow(name))) as records:
            async for record in records:
                if record != told:
                    told = record
                    yield record
                if record.state in REQUEST_OVER:
                    return

    async def output(
        self, request: RequestRecord | str, number: int = 0, stream: str = "stdout"
    ) -> bytes:
        """All that a job prints (`stdout` or `stderr`), when it is over."""
        return b"".join([piece async for piece in self.stream_output(request, number, stream)])

    def stream_output(
        self,
        request: RequestRecord | str,
        number: int = 0,
        stream: str = "stdout",
        *,
        wait: bool = True,
    ) -> AsyncGenerator[bytes, None]:
        """What it prints, as it comes, until it is over; without `wait`, what there is now."""
        return self._pieces(calls.output(name_of(request), number, stream, wait))

    async def requests(self, *, under_way: bool = False, last: int = 100) -> list[RequestRecord]:
        """The latest first."""
        return (await self._do(calls.requests(under_way, last))).items

    async def request(self, name: str) -> RequestRecord:
        return await self._do(calls.request(name))

    async def cancel(self, request: RequestRecord | str) -> RequestRecord:
        return await self._do(calls.cancel(name_of(request)))

    async def why(self, thing: RequestRecord | CommandRecord | str, most: int = 100) -> Explanation:
        """Of a request, machine, host, trigger or command; at most so many hosts' reasons."""
        return await self._do(calls.why(name_of(thing), most))

    # ── the site ─────────────────────────────────────────────────────────────────────────────────

    async def status(self) -> Status:
        return await self._do(calls.status())

    def hosts(
        self, *patterns: str, readings: Sequence[str] | None = None
    ) -> AsyncGenerator[Host, None]:
        """Sorted by name. `readings`: only of these properties, and no definitions."""
        return self._pages(lambda page: calls.hosts(patterns, readings, page))

    async def host(self, name: str) -> Host:
        return await self._do(calls.host(name))

    async def properties(
        self,
        host: str,
        readings: Sequence[str] | None = None,
        *,
        fresh: bool = False,
        timeout: float = 10.0,
    ) -> dict[str, Reading]:
        return (await self._do(calls.properties(host, readings, fresh, timeout))).items

    async def forget_host(self, name: str) -> Host:
        return await self._do(calls.forget_host(name))

    def machines(
        self,
        *patterns: str,
        environment: str = "",
        states: Sequence[State] = (),
        owner: str = "",
    ) -> AsyncGenerator[SiteMachine, None]:
        """On hosts of these names, patterns or `@group`s; sorted by host and id."""
        return self._pages(lambda page: calls.machines(patterns, environment, states, owner, page))

    async def machine(self, name: str) -> SiteMachine:
        return await self._do(calls.machine(name))

    async def environments(self) -> list[SiteEnvironment]:
        return (await self._do(calls.environments())).items

    async def environment(self, name: str) -> SiteEnvironment:
        return await self._do(calls.environment(name))

    # ── commands, triggers, events ───────────────────────────────────────────────────────────────

    async def issue(
        self,
        hosts: str | Sequence[str],
        name: str,
        arguments: Mapping[str, Value] | None = None,
        *,
        timeout: float | None = None,
    ) -> Issued:
        """Tell hosts (names, patterns, `@group`s) to do something."""
        named = [hosts] if isinstance(hosts, str) else hosts
        return await self._do(calls.issue(named, name, arguments or {}, timeout))

    async def move_machine(
        self, name: str, move: Move | str, *, force: bool = False, image: str = ""
    ) -> CommandRecord:
        """Stop, kill, pause, resume, suspend, restore, remove or save a machine of one's own, or
        print its console, by its name or id. `image`: what it is saved as. The answer is the
        command by which that is done."""
        return await self._do(calls.move_machine(name, Move(move), force, image))

    async def commands(
        self, *patterns: str, under_way: bool = False, last: int = 100
    ) -> list[CommandRecord]:
        return (await self._do(calls.commands(patterns, under_way, last))).items

    async def command(self, name: str) -> CommandRecord:
        return await self._do(calls.command(name))

    async def wait_command(self, command: CommandRecord | str) -> CommandRecord:
        """Until it is over."""
        async for _ in self.stream_command_output(command):
            pass
        return await self.command(name_of(command))

    async def cancel_command(self, command: CommandRecord | str) -> CommandRecord:
        return await self._do(calls.cancel_command(name_of(command)))

    async def command_output(self, command: CommandRecord | str) -> bytes:
        """All that it prints, when it is over."""
        return b"".join([piece async for piece in self.stream_command_output(command)])

    def stream_command_output(self, command: CommandRecord | str) -> AsyncGenerator[bytes, None]:
        return self._pieces(calls.command_output(name_of(command)))

    async def triggers(self) -> list[TriggerView]:
        return (await self._do(calls.triggers())).items

    async def trigger(self, name: str) -> TriggerView:
        return await self._do(calls.trigger(name))

    async def trigger_log(self, name: str, last: int = 100) -> list[Judged]:
        return (await self._do(calls.trigger_log(name, last))).items

    async def reload_triggers(self) -> list[TriggerView]:
        return (await self._do(calls.reload_triggers())).items

    async def events(self, *patterns: str, since: int = 0, last: int = 100) -> list[Event]:
        """Those after number `since`, the oldest first; at most so many, the latest."""
        return (await self._do(calls.events(since, last, patterns))).items

    async def follow_events(self, *patterns: str, since: int = -1) -> AsyncGenerator[Event, None]:
        """Without end, and without a gap when the manager is restarted. `since`: go on after this
        number; -1: from now on."""
        number = since

        def call() -> Call[Event]:
            return calls.follow_events(number, patterns)

        async with aclosing(self._lines(call, endless=True)) as events:
            async for event in events:
                number = event.number or number
                yield event

    # ── administration ───────────────────────────────────────────────────────────────────────────

    async def tokens(self) -> list[Token]:
        return (await self._do(calls.tokens())).items

    async def create_token(
        self, owner: str, scope: Scope = Scope.READ, *, lifetime: float, label: str = ""
    ) -> NewToken:
        return await self._do(calls.create_token(owner, scope, lifetime, label))

    async def revoke_token(self, name: str) -> Token:
        return await self._do(calls.revoke_token(name))

    async def audit(self, *, since: int = 0, last: int = 100, who: str = "") -> list[AuditEntry]:
        return (await self._do(calls.audit(since, last, who))).items

    # ── how calls are made ───────────────────────────────────────────────────────────────────────

    async def _do(self, call: Call[T]) -> T:
        attempts = self._attempts(call)
        while True:
            with attempts:
                response = await self._http.request(**call.request())
                attempts.heard(response)
                return call.answer(response.status_code, response.content)
            await asyncio.sleep(attempts.pause)

    async def _pages(self, call: Callable[[str], Call[Listed[T]]]) -> AsyncGenerator[T, None]:
        page = ""
        while True:
            found = await self._do(call(page))
            for item in found.items:
                yield item
            page = found.next
            if not page:
                return

    async def _lines(
        self, call: Callable[[], Call[T]], *, endless: bool = False
    ) -> AsyncGenerator[T, None]:
        """A stream's items; when it breaks, it is asked for again as it is by then."""
        attempts = self._attempts(call())
        while True:
            now = call()
            with attempts:
                async with self._http.stream(**now.request()) as response:
                    attempts.heard(response)
                    if response.status_code >= 400:
                        raise calls.problem(response.status_code, await response.aread())
                    async for line in response.aiter_lines():
                        attempts.went_on()
                        if line:
                            yield calls.line(line, now.expected)
                if not endless:
                    return
                attempts.ended()
            await asyncio.sleep(attempts.pause)

    async def _pieces(self, call: Call[bytes]) -> AsyncGenerator[bytes, None]:
        """A stream of bytes; when it breaks, what has been told already is left out."""
        attempts, resumed = self._attempts(call), Resumed()
        timeout = httpx.Timeout(self._place.timeout.connect, read=None)
        while True:
            resumed.begin()
            with attempts:
                async with self._http.stream(**call.request(), timeout=timeout) as response:
                    attempts.heard(response)
                    if response.status_code >= 400:
                        raise calls.problem(response.status_code, await response.aread())
                    async for piece in response.aiter_bytes():
                        attempts.went_on()
                        if new := resumed.new(piece):
                            yield new
                return
            await asyncio.sleep(attempts.pause)

    def _attempts(self, call: Call[Any]) -> Attempts:
        return Attempts(call, self._place, self._patience)
