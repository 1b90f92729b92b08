"""Taking what agents say: nothing is believed further than it can be checked.

An agent may be broken, or somebody else's by now. What makes no sense is refused with a reason,
costs no more than its own size, and touches no other host.
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

import msgspec

from encamp.bus.messages import CommandNews, Hello, Report
from encamp.core.happenings import Joined, Reported
from encamp.core.kinds import HOST_FACTS
from encamp.manager.parts import part_id
from encamp.model.command import NAME as COMMAND_NAME
from encamp.model.command import CommandDefinition
from encamp.model.errors import Code, EncampError
from encamp.model.host import NAME as HOST_NAME
from encamp.model.machine import Machine
from encamp.model.property import NAME as PROPERTY_NAME
from encamp.model.property import (
    PropertyDefinition,
    Reading,
    ValueKind,
    fits,
    is_value,
)

MOST_DEFINITIONS = 1000
MOST_SHARED = 1000
MOST_TROUBLES = 10
MOST_MACHINES = 10_000
MOST_GROUPS = 100
MOST_OWNERS = 100_000
MOST_CLAIMS = 10_000
LONGEST_NAME = 254
LONGEST_TEXT = 2000
"""Characters of a sentence or a name that an agent writes."""
MOST_BYTES = 16 << 20
"""What the readings of one host may take in the manager."""
MEETING = re.compile(r"/(.*/)?meeting-[0-9a-f]{1,16}\.sock")
"""Where an agent takes clients on its host: they go where it says, and to no other sockets."""
LATEST = 253_402_300_800.0
"""Seconds since 1970 when years have five digits. What is later can be no date."""
LONGEST_WAY = 60.0
"""Seconds after which no agent waits for its hello to arrive any more."""
CLOCK_TOLERANCE = 1.0
"""Seconds that a host's clock may be off before its times are put right."""

T = TypeVar("T")

_property = re.compile(PROPERTY_NAME).fullmatch
_command = re.compile(COMMAND_NAME).fullmatch
_group = re.compile(HOST_NAME).fullmatch
_fingerprint = re.compile(r"[0-9a-f]{64}").fullmatch


class Shared:
    """Hosts mostly define the same; what is the same is kept once."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}

    def one(self, value: T) -> T:
        """The value, or one that is equal to it and was there before."""
        if len(self._kept) > MOST_SHARED:
            self._kept.clear()
        kept: T = self._kept.setdefault(msgspec.msgpack.encode(value), value)
        return kept

    def hello(self, hello: Hello) -> Hello:
        return msgspec.structs.replace(
            hello, properties=self.one(hello.properties), commands=self.one(hello.commands)
        )


class Account:
    """What the manager remembers of an agent to judge what it says."""

    def __init__(self, hello: Hello, now: float) -> None:
        self.instance = hello.instance
        self.home = hello.home
        self.meeting = hello.meeting
        self.offset = _offset(hello, now)
        self.kinds: dict[str, ValueKind] = {
            definition.name: definition.return_type for definition in hello.properties
        }
        self._sizes: dict[str, int] = {}
        self._total = 0

    def joined(self, name: str, hello: Hello, length: int) -> Joined:
        check_definitions(name, hello)
        return Joined(
            name=name,
            instance=hello.instance,
            version=hello.version[:64],
            clock_offset=self.offset,
            groups=hello.groups,
            properties=hello.properties,
            commands=hello.commands,
            readings=self._readings(name, hello.readings, length),
            machines=self._machines(name, hello.machines),
            troubles=tuple(trouble[:LONGEST_TEXT] for trouble in hello.troubles[:MOST_TROUBLES]),
            owners=hello.owners,
            claims=hello.claims,
        )

    def reported(self, name: str, report: Report, length: int) -> Reported:
        machines = report.machines
        return Reported(
            name,
            self._readings(name, report.readings, length),
            None if machines is None else self._machines(name, machines),
        )

    def moment(self, at: float) -> float:
        """A time that the agent wrote, by the manager's clock."""
        if not is_moment(at):
            return 0.0
        return max(0.0, at - self.offset) if at and abs(self.offset) > CLOCK_TOLERANCE else at

    def checked(self, news: CommandNews) -> CommandNews:
        sensible = is_value(news.value)
        return msgspec.structs.replace(
            news,
            value=news.value if sensible else None,
            reason=news.reason[:LONGEST_TEXT] if sensible else "what it returned is no value",
            phase=news.phase[:LONGEST_NAME],
            machine=news.machine[:LONGEST_NAME],
            started=self.moment(news.started),
            ended=self.moment(news.ended),
        )

    def _spend(self, readings: dict[str, Reading], length: int) -> bool:
        """Is there room for these? What the readings of a host may take is bounded."""
        each = length // max(1, len(readings))
        total = self._total
        for known in readings:
            total += each - self._sizes.get(known, 0)
        if total > MOST_BYTES:
            return False
        self._total = total
        self._sizes.update(dict.fromkeys(readings, each))
        return True

    def _readings(self, name: str, readings: dict[str, Reading], length: int) -> dict[str, Reading]:
        """What makes sense of them as it is, and errors for the rest: one property that is wrong
        does not keep a host from telling the others."""
        if not self._spend(readings, length):
            full = f"the properties of host {name} take more than {MOST_BYTES >> 20} MiB in all"
            return {
                known: Reading(None, full, self.moment(reading.at))
                for known, reading in readings.items()
                if known in self.kinds
            }
        checked = readings
        for known, reading in readings.items():
            better = self._better(name, known, reading)
            if better is reading:
                continue
            if checked is readings:
                checked = dict(readings)
            if better is None:
                del checked[known]
            else:
                checked[known] = better
        return checked

    def _better(self, name: str, known: str, reading: Reading) -> Reading | None:
        """A reading as it can be believed; None: nobody can say what it is about."""
        kind = self.kinds.get(known)
        if kind is None:
            return None
        at = self.moment(reading.at)
        if reading.error:
            if len(reading.error) <= LONGEST_TEXT and reading.value is None and at == reading.at:
                return reading
            return Reading(None, reading.error[:LONGEST_TEXT], at)
        if not fits(reading.value, kind) or not is_value(reading.value):
            what = type(reading.value).__name__
            return Reading(None, f"host {name} reported {what}, not {kind.value}", at)
        return reading if at == reading.at else Reading(reading.value, "", at)

    def _machines(self, name: str, machines: tuple[Machine, ...]) -> tuple[Machine, ...]:
        if len(machines) > MOST_MACHINES:
            raise nonsense(f"it reports {len(machines)} machines")
        for machine in machines:
            texts = (machine.id, machine.name, machine.environment, machine.reason)
            if max(map(len, texts)) > LONGEST_TEXT or not machine.id:
                raise nonsense("it reports a machine whose name, id or reason is too long")
            if not (is_moment(machine.created) and is_moment(machine.changed)):
                raise nonsense("it reports a machine whose times are none")
        return machines


def is_moment(at: float) -> bool:
    """Can a clock, right or wrong, have shown this?"""
    return math.isfinite(at) and 0 <= at < LATEST


def _offset(hello: Hello, now: float) -> float:
    """Seconds that an agent's clock is ahead. As long as it has not measured that, it is judged by
    when its hello came: one that was long on its way seems to come from a clock that is behind."""
    if hello.ahead is not None:
        return hello.ahead if is_moment(now + hello.ahead) else 0.0
    seeming = hello.time - now
    if not is_moment(hello.time) or -LONGEST_WAY < seeming < 0:
        return 0.0
    return seeming


def check_definitions(name: str, hello: Hello) -> None:
    if max(len(hello.properties), len(hello.commands), len(hello.readings)) > MOST_DEFINITIONS:
        raise nonsense(f"it defines more than {MOST_DEFINITIONS} properties or commands")
    if len(hello.groups) > MOST_GROUPS or not all(map(_group, hello.groups)):
        raise nonsense("it is in groups whose names are none, or in too many")
    if max(len(hello.instance), len(hello.home)) > 64 or not hello.instance:
        raise nonsense("it does not say properly which run of an agent it is")
    _check_for_requests(hello)
    for definition in hello.properties:
        if definition.name in HOST_FACTS:
            raise nonsense(f"'{definition.name}' is for the manager to say")
        times = (definition.ticks, definition.timeout, definition.tolerance)
        if not (
            _property(definition.name) and all(map(math.isfinite, times)) and _short(definition)
        ):
            raise nonsense(f"it defines a property '{definition.name[:64]}'")
    for command in hello.commands:
        defaults = [parameter.default for parameter in command.parameters]
        sensible = math.isfinite(command.timeout) and all(map(is_value, defaults))
        if not (_command(command.name) and sensible and _short(command)):
            raise nonsense(f"it offers a command '{command.name[:64]}'")


def _check_for_requests(hello: Hello) -> None:
    owners = hello.owners or ()
    if len(owners) > MOST_OWNERS or any(len(owner) > LONGEST_NAME for owner in owners):
        raise nonsense("it can make machines for too many users, or for some that are none")
    if len(hello.claims) > MOST_CLAIMS or not all(map(part_id, hello.claims)):
        raise nonsense("it has promised too many machines, or some that are none")
    meeting = hello.meeting
    if meeting is None:
        return
    texts = (meeting.address, meeting.socket, meeting.boot)
    if (
        not 0 <= meeting.port < 1 << 16
        or not 0 <= meeting.user < 1 << 32
        or (meeting.port and not _fingerprint(meeting.fingerprint))
        or any(len(text) > LONGEST_TEXT or not text.isprintable() for text in texts)
        or (meeting.socket and MEETING.fullmatch(meeting.socket) is None)
    ):
        raise nonsense("where it takes clients is no place")


def _short(definition: PropertyDefinition | CommandDefinition) -> bool:
    return len(msgspec.msgpack.encode(definition)) <= 20_000


def nonsense(what: str) -> EncampError:
    """Not transient: saying it again does not make it better."""
    return EncampError(
        Code.PROTOCOL,
        f"What this agent says makes no sense: {what}.",
        "It may be of another version than the manager: update the older one.",
    )
