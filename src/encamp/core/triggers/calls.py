"""What a trigger can do: the functions of its commands, and the actions that calls of them mean.

send(hosts, 'machine.pause', machine='b3')  any command, to any set of agents
start(host, 'debian12')                     machine.start; stop, kill, pause ... likewise
place('debian12', owner='alice')            machines made ready wherever there is room
stop_idle('debian12', keep=2)               the others that stand ready are removed
query(hosts, 'load1')                       have properties reported
sender.send_get_property(['load1'])         the same, of all hosts
log(text), webhook(url, text), mail(address, subject, text)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from encamp.core.actions import AskProperties, IssueCommand, Notify, PlaceMachines, Step, Way
from encamp.core.expressions import Argument, Call, Prepared, Signature
from encamp.core.kinds import HOST_FACTS
from encamp.core.schema import OF_VALUE, Schema, Type
from encamp.core.triggers.causes import ISSUER, START
from encamp.core.world import Known, World
from encamp.model.command import CommandDefinition
from encamp.model.property import Value

MACHINE_COMMANDS = {
    name: f"machine.{name}"
    for name in ("stop", "kill", "pause", "resume", "suspend", "restore", "remove")
}
"""Functions that do the command of that name to one machine, or to several."""
REMOVE = MACHINE_COMMANDS["remove"]

OF_ENVIRONMENTS = frozenset({"place", "start", "stop_idle"})
"""Functions that are told an environment."""

LONGEST_TEXT = 100_000
"""Characters of what is told to people."""

ADDRESS = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*|[a-z_][a-z0-9_-]*")


def signatures(commands: Mapping[str, CommandDefinition]) -> dict[str, Signature]:
    """Of everything that can be called, if agents offer these commands."""
    hosts = Argument("to", things="host", many=True)
    made = [
        Signature(
            "send",
            (hosts, Argument("command", Type.STR, constant=True)),
            chosen_by="command",
            chosen={
                name: _arguments(command)
                for name, command in commands.items()
                if not command.internal
            },
        ),
        Signature("query", (hosts,), more=Argument("properties", Type.STR)),
        Signature("sender.send_get_property", (Argument("properties", Type.LIST, required=False),)),
        Signature(
            "place",
            (
                Argument("environment", Type.STR),
                Argument("count", Type.INT, required=False),
                Argument("owner", Type.STR, required=False),
                Argument("batch", Type.BOOL, required=False),
            ),
        ),
        Signature("log", (Argument("text", Type.STR),)),
        Signature("webhook", (Argument("url", Type.STR), Argument("text", Type.STR))),
        Signature(
            "mail",
            (Argument("to", Type.STR), Argument("subject", Type.STR), Argument("text", Type.STR)),
        ),
    ]
    if START in commands:
        made.append(Signature("start", (hosts, *_arguments(commands[START]))))
    if REMOVE in commands:
        keep = Argument("keep", Type.INT, required=False)
        made.append(Signature("stop_idle", (Argument("environment", Type.STR), keep)))
    for function, name in MACHINE_COMMANDS.items():
        if name in commands:
            machines = Argument("machine", things="machine", many=True, by_key=False)
            others = [one for one in _arguments(commands[name]) if one.name != "machine"]
            made.append(Signature(function, (machines, *others)))
    return {signature.name: signature for signature in made}


def _arguments(command: CommandDefinition) -> tuple[Argument, ...]:
    own = [
        Argument(
            parameter.name,
            OF_VALUE[parameter.kind],
            required=parameter.required and parameter.default is None,
            help=parameter.help,
        )
        for parameter in command.parameters
    ]
    # Those that must be given first: a call may leave the names of the first ones out.
    own.sort(key=lambda argument: not argument.required)
    if all(argument.name != "timeout" for argument in own):
        own.append(Argument("timeout", Type.FLOAT, required=False))
    return tuple(own)


# ── checked when loaded ──────────────────────────────────────────────────────────────────────────


def wrong_with(call: Call, schema: Schema, environments: Collection[str] = ()) -> str:
    """What is wrong with the arguments of a call that are known already; empty: nothing.
    `environments`: those of the site, if they are known."""
    if call.function in OF_ENVIRONMENTS:
        return _wrong_machines(call, environments)
    if call.function == "webhook" and "url" in call.constants:
        return _wrong_url(call.constants["url"])
    if call.function == "mail" and "to" in call.constants:
        return _wrong_address(call.constants["to"])
    if call.function in ("query", "sender.send_get_property"):
        asked = call.constants.get("properties", [])
        facts = schema.kinds["host"].facts
        for name in asked if isinstance(asked, list | tuple) else [asked]:
            if isinstance(name, str) and (name not in facts or name in HOST_FACTS):
                return f"no host has a property '{name}'{_near(name, facts)}"
    return ""


def _wrong_machines(call: Call, environments: Collection[str]) -> str:
    import difflib

    environment = call.constants.get("environment")
    if isinstance(environment, str) and environments and environment not in environments:
        found = difflib.get_close_matches(environment, environments, n=1, cutoff=0.6)
        near = f"did you mean '{found[0]}'?" if found else "'encamp env ls' lists them"
        return f"there is no environment '{environment}'; {near}"
    for name, least in (("count", 1), ("keep", 0)):
        number = call.constants.get(name)
        if isinstance(number, int) and number < least:
            return f"'{name}' is {number}, and must be {least} at least"
    return ""


def _near(name: str, facts: Mapping[str, object]) -> str:
    import difflib

    known = [fact for fact in facts if fact not in HOST_FACTS]
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean '{found[0]}'?" if found else "; 'encamp properties' lists them"


def _wrong_url(url: Value) -> str:
    try:
        parts = urlsplit(str(url))
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if good and str(url).isprintable() and " " not in str(url):
        return ""
    return f"{str(url)!r} is no URL; one such as 'https://example.org/hook' is expected"


def _wrong_address(address: Value) -> str:
    if ADDRESS.fullmatch(str(address)):
        return ""
    return f"{str(address)!r} is no address of mail; one such as 'admin@example.org' is expected"


# ── carried out when it fires ────────────────────────────────────────────────────────────────────


class CannotBeDoneError(Exception):
    """A call whose arguments, now that they are known, make no sense. Says why."""


class Doing:
    """What calls of a trigger are made into actions with."""

    def __init__(self, trigger: str, commands: Mapping[str, CommandDefinition]) -> None:
        self.trigger = trigger
        self.commands = commands

    def actions(self, call: Prepared, world: World) -> tuple[Step, ...]:
        if call.function == "stop_idle":
            return self._stop_idle(dict(call.arguments), world)
        make = FUNCTIONS.get(call.function)
        if make is None:
            return self._to_machines(MACHINE_COMMANDS[call.function], dict(call.arguments), world)
        return make(self, dict(call.arguments))

    def send(self, arguments: dict[str, Any]) -> tuple[Step, ...]:
        hosts, name = arguments.pop("to"), arguments.pop("command")
        return self._issue(hosts, name, arguments)

    def start(self, arguments: dict[str, Any]) -> tuple[Step, ...]:
        return self._issue(arguments.pop("to"), START, arguments)

    def _to_machines(self, name: str, arguments: dict[str, Any], world: World) -> tuple[Step, ...]:
        made: list[Step] = []
        for key in arguments.pop("machine"):
            machine = world.things["machine"].get(key)
            if machine is None:
                raise CannotBeDoneError(f"there is no machine '{key}'")
            host, machine_id = machine.fact("host"), machine.fact("id")
            if isinstance(host, str) and isinstance(machine_id, str):
                made += self._issue((host,), name, {"machine": machine_id, **arguments})
        return tuple(made)

    def _stop_idle(self, arguments: dict[str, Any], world: World) -> tuple[Step, ...]:
        """All but some that stand ready; those that have done so longest."""
        idle = [
            machine
            for machine in world.things["machine"].values()
            if machine.fact("idle") is True
            and machine.fact("environment") == arguments["environment"]
        ]
        idle.sort(key=lambda machine: (-_number(machine.fact("changed")), machine.key))
        given = idle[max(0, arguments.get("keep", 0)) :]
        keys = tuple(machine.key for machine in given)
        # By the time its host hears of it, a job may have taken one of them.
        return self._to_machines(REMOVE, {"machine": keys, "idle": True}, world)

    def _issue(
        self, hosts: tuple[str, ...], name: str, arguments: dict[str, Any]
    ) -> tuple[Step, ...]:
        if not hosts:
            return ()
        own = {parameter.name for parameter in self.commands[name].parameters}
        timeout = None if "timeout" in own else arguments.pop("timeout", None)
        if timeout is not None and not timeout > 0:
            raise CannotBeDoneError(f"a command cannot be given {timeout} seconds")
        return (IssueCommand(tuple(hosts), name, arguments, f"{ISSUER}{self.trigger}", timeout),)

    def query(self, arguments: dict[str, Any]) -> tuple[Step, ...]:
        hosts = tuple(arguments["to"])
        if not hosts:
            return ()
        return (AskProperties(hosts, _names(arguments.get("properties", ()))),)

    def query_all(self, arguments: dict[str, Any]) -> tuple[Step, ...]:
        return (AskProperties(None, _names(arguments.get("properties", ()))),)

    def place(self, arguments: dict[str, Any]) -> tuple[Step, ...]:
        count = arguments.get("count", 1)
        if not 0 <= count <= MOST_PLACED:
            raise CannotBeDoneError(f"{count} machines cannot be placed, at most {MOST_PLACED}")
        if not count:
            return ()
        owner = str(arguments.get("owner", ""))
        batch = bool(arguments.get("batch", False))
        return (PlaceMachines(arguments["environment"], count, owner, self.trigger, batch),)

    def log(self, arguments: dict[str, Any]) -> tuple[Step, ...]:
        return (Notify(Way.LOG, str(arguments["text"])[:LONGEST_TEXT], self.trigger),)

    def webhook(self, arguments: dict[str, Any]) -> tuple[Step, ...]:
        if wrong := _wrong_url(arguments["url"]):
            raise CannotBeDoneError(wrong)
        text = str(arguments["text"])[:LONGEST_TEXT]
        return (Notify(Way.WEBHOOK, text, self.trigger, arguments["url"]),)

    def mail(self, arguments: dict[str, Any]) -> tuple[Step, ...]:
        if wrong := _wrong_address(arguments["to"]):
            raise CannotBeDoneError(wrong)
        subject = " ".join(str(arguments["subject"]).split())[:LONGEST_SUBJECT]
        text = str(arguments["text"])[:LONGEST_TEXT]
        return (Notify(Way.MAIL, text, self.trigger, arguments["to"], {"subject": subject}),)


def _number(known: Known) -> float:
    return known if isinstance(known, float | int) else 0.0


LONGEST_SUBJECT = 200
MOST_PLACED = 1000

FUNCTIONS: dict[str, Callable[[Doing, dict[str, Any]], tuple[Step, ...]]] = {
    "send": Doing.send,
    "start": Doing.start,
    "place": Doing.place,
    "query": Doing.query,
    "sender.send_get_property": Doing.query_all,
    "log": Doing.log,
    "webhook": Doing.webhook,
    "mail": Doing.mail,
}


def _names(names: Any) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in names):
        raise CannotBeDoneError("names of properties are texts")
    return tuple(names)


# ── in words ─────────────────────────────────────────────────────────────────────────────────────

FEW_HOSTS = 3


def words(step: Step) -> str:
    """What is done, for the log: `machine.pause(machine='b3') on node1`."""
    if isinstance(step, IssueCommand):
        given = ", ".join(f"{name}={value!r}" for name, value in step.arguments.items())
        return f"{step.name}({_short(given)}) on {_some(step.hosts)}"
    if isinstance(step, AskProperties):
        what = ", ".join(step.properties) or "all properties"
        return f"query {what} of {'all hosts' if step.hosts is None else _some(step.hosts)}"
    if isinstance(step, PlaceMachines):
        whose = f" of {step.owner}" if step.owner else ""
        return f"place {step.count} of {step.environment} for jobs{whose}"
    where = f" to {step.to}" if step.to else ""
    return f"{step.way.value}{where}: {_short(step.text)}"


def _some(hosts: tuple[str, ...]) -> str:
    if len(hosts) <= FEW_HOSTS:
        return ", ".join(hosts)
    return f"{', '.join(hosts[:FEW_HOSTS])} and {len(hosts) - FEW_HOSTS} more"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
