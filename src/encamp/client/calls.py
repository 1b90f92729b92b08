"""What can be called: each as data, so that it is the same with and without an event loop."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from encamp.core.actions import Judged
from encamp.door.questions import LeftOut, Move, SiteEnvironment, SiteMachine, Status
from encamp.model.audit import AuditEntry
from encamp.model.command import CommandRecord
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event
from encamp.model.host import Host
from encamp.model.job import Command
from encamp.model.machine import State
from encamp.model.new_request import NewRequest
from encamp.model.problem import Problem
from encamp.model.property import Reading, Value
from encamp.model.request import Explanation, RequestRecord, Together
from encamp.model.runnable import check_command, check_timeout
from encamp.model.size import parse_bytes
from encamp.model.token import NewToken, Scope, Token
from encamp.model.trigger import TriggerView

T = TypeVar("T")
PAGE = 1000


class Listed(msgspec.Struct, Generic[T], frozen=True):
    items: list[T]
    next: str = ""


class Readings(msgspec.Struct, frozen=True):
    items: dict[str, Reading]


class Issued(msgspec.Struct, frozen=True):
    """What came of telling hosts something."""

    commands: list[CommandRecord]
    left_out: list[LeftOut] = []


class RequestOptions(TypedDict, total=False):
    """What else can be asked for; see `encamp.model.new_request.NewRequest`."""

    variables: dict[str, str]
    workdir: str
    timeout: float
    count: int
    cpus: int
    memory: int | str
    """Bytes, or as people write it: `2G`."""
    disk: int | str
    network: str
    image: str
    label: str
    near: list[str]
    away: list[str]
    together: Together | str
    requirements: str
    rank: str
    priority: int
    retries: int
    wait_at_most: float
    """Seconds."""
    reuse: bool


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    path: str
    expected: Any
    """The type of the answer; of each item, if it is a stream."""
    method: str = "GET"
    query: Mapping[str, Any] = {}
    body: Any = None
    key: str = ""
    """Told twice with the same one, it is done once."""

    @property
    def repeatable(self) -> bool:
        """Does it do no harm to call it again, if nobody knows whether it was heard?"""
        return self.method == "GET" or bool(self.key)

    def request(self) -> dict[str, Any]:
        """As httpx wants it."""
        given: dict[str, Any] = {
            "method": self.method,
            "url": self.path,
            "params": {name: value for name, value in self.query.items() if value is not None},
        }
        if self.body is not None:
            given["content"] = msgspec.json.encode(self.body)
            given["headers"] = {"Content-Type": "application/json"}
        if self.key:
            given["headers"] = {**given.get("headers", {}), "Idempotency-Key": self.key}
        return given

    def answer(self, status: int, content: bytes) -> T:
        if status >= 400:
            raise problem(status, content)
        answer: T = understood(content, self.expected)
        return answer


def understood(content: bytes, expected: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=expected)
    except msgspec.DecodeError as error:
        raise EncampError(
            Code.PROTOCOL,
            f"The manager's answer makes no sense: {error}.",
            "Is it of the same version?",
        ) from error


def problem(status: int, content: bytes) -> EncampError:
    """What is wrong; something in between may have said so in words of its own."""
    try:
        return msgspec.json.decode(content, type=Problem).error()
    except msgspec.DecodeError:
        transient = status in (429, 502, 503, 504)
        code = Code.UNREACHABLE if transient else Code.PROTOCOL
        return EncampError(code, f"The answer was HTTP {status}.", transient=transient)


class _Broken(msgspec.Struct, frozen=True):
    problem: Problem


def line(text: str, expected: type[T]) -> T:
    """One line of a stream; an error may be the last one."""
    if text.startswith('{"problem":'):
        raise understood(text.encode(), _Broken).problem.error()
    return understood(text.encode(), expected)


def name_of(thing: RequestRecord | CommandRecord | str) -> str:
    match thing:
        case RequestRecord():
            return thing.request.id
        case CommandRecord():
            return thing.id
        case _:
            return thing


def _at(*words: str) -> str:
    return "/v1/" + "/".join(quote(word, safe="") for word in words)


# ── the site ─────────────────────────────────────────────────────────────────────────────────────


def status() -> Call[Status]:
    return Call(path=_at("status"), expected=Status)


def hosts(patterns: Sequence[str], readings: Sequence[str] | None, page: str) -> Call[Listed[Host]]:
    query = {"host": list(patterns), "reading": readings, "limit": PAGE, "page": page or None}
    return Call(path=_at("hosts"), expected=Listed[Host], query=query)


def host(name: str) -> Call[Host]:
    return Call(path=_at("hosts", name), expected=Host)


def properties(
    name: str, readings: Sequence[str] | None, fresh: bool, timeout: float
) -> Call[Readings]:
    query = {"reading": readings, "fresh": fresh, "timeout": timeout}
    return Call(path=_at("hosts", name, "properties"), expected=Readings, query=query)


def forget_host(name: str) -> Call[Host]:
    return Call(method="DELETE", path=_at("hosts", name), expected=Host)


def machines(
    patterns: Sequence[str], environment: str, states: Iterable[State], owner: str, page: str
) -> Call[Listed[SiteMachine]]:
    query = {
        "host": list(patterns),
        "environment": environment or None,
        "state": [state.value for state in states],
        "owner": owner or None,
        "limit": PAGE,
        "page": page or None,
    }
    return Call(path=_at("machines"), expected=Listed[SiteMachine], query=query)


def machine(name: str) -> Call[SiteMachine]:
    return Call(path=_at("machines", name), expected=SiteMachine)


def environments() -> Call[Listed[SiteEnvironment]]:
    return Call(path=_at("environments"), expected=Listed[SiteEnvironment])


def environment(name: str) -> Call[SiteEnvironment]:
    return Call(path=_at("environments", name), expected=SiteEnvironment)


def why(name: str, most: int) -> Call[Explanation]:
    return Call(path=_at("why", name), expected=Explanation, query={"hosts": most})


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


def submit(
    environment: str, command: Sequence[str], options: RequestOptions, key: str
) -> Call[RequestRecord]:
    if isinstance(command, str):
        hint = 'Give its words one by one, such as ["sleep", "60"], or ["sh", "-c", "..."].'
        raise EncampError(Code.USAGE, "A command is a list of texts, not one text.", hint)
    given: dict[str, Any] = dict(options)
    for name in ("memory", "disk"):
        if isinstance(given.get(name), str):
            given[name] = parse_bytes(given[name], name)
    if isinstance(given.get("together"), str):
        given["together"] = _together(given["together"])
    body = NewRequest(environment=environment, command=list(command) or None, **given)
    if body.command is not None:
        # JSON has no word for a number that is none, and would leave it out.
        check_timeout(body.timeout)
        variables = tuple(body.variables.items())
        check_command(Command(tuple(body.command), variables, body.workdir))
    return Call(
        method="POST",
        path=_at("requests"),
        expected=RequestRecord,
        body=body,
        key=key or uuid.uuid4().hex,
    )


def _together(word: str) -> Together:
    try:
        return Together(word)
    except ValueError:
        words = ", ".join(repr(choice.value) for choice in Together)
        raise EncampError(Code.USAGE, f"'together' is one of {words}, not {word!r}.") from None


def requests(under_way: bool, last: int) -> Call[Listed[RequestRecord]]:
    query = {"under_way": under_way, "last": last}
    return Call(path=_at("requests"), expected=Listed[RequestRecord], query=query)


def request(name: str) -> Call[RequestRecord]:
    return Call(path=_at("requests", name), expected=RequestRecord)


def cancel(name: str) -> Call[RequestRecord]:
    return Call(method="DELETE", path=_at("requests", name), expected=RequestRecord)


def follow(name: str) -> Call[RequestRecord]:
    return Call(path=_at("requests", name, "stream"), expected=RequestRecord)


def output(name: str, number: int, stream: str, wait: bool) -> Call[bytes]:
    query = {"number": number, "stream": stream, "follow": wait}
    return Call(path=_at("requests", name, "output"), expected=bytes, query=query)


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


def issue(
    hosts: Sequence[str], name: str, arguments: Mapping[str, Value], timeout: float | None
) -> Call[Issued]:
    body = {
        "hosts": list(hosts),
        "name": name,
        "arguments": dict(arguments),
        "timeout": timeout,
    }
    return Call(method="POST", path=_at("commands"), expected=Issued, body=body)


def move_machine(name: str, move: Move, force: bool, image: str) -> Call[CommandRecord]:
    body = {"move": move.value, "force": force, "image": image}
    return Call(
        method="POST", path=_at("machines", name, "moves"), expected=CommandRecord, body=body
    )


def commands(patterns: Sequence[str], under_way: bool, last: int) -> Call[Listed[CommandRecord]]:
    query = {"host": list(patterns), "under_way": under_way, "last": last}
    return Call(path=_at("commands"), expected=Listed[CommandRecord], query=query)


def command(name: str) -> Call[CommandRecord]:
    return Call(path=_at("commands", name), expected=CommandRecord)


def cancel_command(name: str) -> Call[CommandRecord]:
    return Call(method="DELETE", path=_at("commands", name), expected=CommandRecord)


def command_output(name: str) -> Call[bytes]:
    return Call(path=_at("commands", name, "output"), expected=bytes)


# ── triggers and events ──────────────────────────────────────────────────────────────────────────


def triggers() -> Call[Listed[TriggerView]]:
    return Call(path=_at("triggers"), expected=Listed[TriggerView])


def trigger(name: str) -> Call[TriggerView]:
    return Call(path=_at("triggers", name), expected=TriggerView)


def trigger_log(name: str, last: int) -> Call[Listed[Judged]]:
    return Call(path=_at("triggers", name, "log"), expected=Listed[Judged], query={"last": last})


def reload_triggers() -> Call[Listed[TriggerView]]:
    return Call(method="POST", path=_at("triggers", "reload"), expected=Listed[TriggerView])


def events(since: int, last: int, patterns: Sequence[str]) -> Call[Listed[Event]]:
    query = {"since": since, "last": last, "host": list(patterns)}
    return Call(path=_at("events"), expected=Listed[Event], query=query)


def follow_events(since: int, patterns: Sequence[str]) -> Call[Event]:
    query = {"since": since, "host": list(patterns)}
    return Call(path=_at("events", "stream"), expected=Event, query=query)


# ── administration ───────────────────────────────────────────────────────────────────────────────


def tokens() -> Call[Listed[Token]]:
    return Call(path=_at("tokens"), expected=Listed[Token])


def create_token(owner: str, scope: Scope, lifetime: float, label: str) -> Call[NewToken]:
    body = {"owner": owner, "scope": scope, "lifetime": lifetime, "label": label}
    return Call(method="POST", path=_at("tokens"), expected=NewToken, body=body)


def revoke_token(name: str) -> Call[Token]:
    return Call(method="DELETE", path=_at("tokens", name), expected=Token)


def audit(since: int, last: int, who: str) -> Call[Listed[AuditEntry]]:
    query = {"since": since, "last": last, "who": who or None}
    return Call(path=_at("audit"), expected=Listed[AuditEntry], query=query)
