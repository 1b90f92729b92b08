"""Parts of requests, and the commands that carry them out: what news of one means for the other."""

from __future__ import annotations

import msgspec

from encamp.core.happenings import PartMoved
from encamp.model.command import CommandRecord, CommandState
from encamp.model.property import Value
from encamp.model.request import Cause, PartResult, PartState

RUN = "request.run"
"""What a host is told to make a machine of a request by."""
EXEC = "machine.exec"

LONGEST_ID = 200
LONGEST_TEXT = 2000

CAUSES = {"image": Cause.IMAGE, "start": Cause.START}
"""What a part that is being started waits for, by the phase of its command."""
RUNNING = "running"
"""The phase from which on something may have run in the machine."""


class PartId(msgspec.Struct, frozen=True):
    """What `claim_id` is made of."""

    request: str
    number: int
    attempt: int


def part_id(command: str) -> PartId | None:
    """Which part of which request a command is for; None: for none."""
    request, *numbers = command[: LONGEST_ID + 1].split(".")
    if (
        not request
        or len(command) > LONGEST_ID
        or len(numbers) != 2
        or not all(_is_number(text) for text in numbers)
    ):
        return None
    return PartId(request, int(numbers[0]), int(numbers[1]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def as_argument(thing: msgspec.Struct) -> Value:
    """How a command is told something: as what JSON can say."""
    value: Value = msgspec.json.decode(msgspec.json.encode(thing))
    return value


def part_moved(record: CommandRecord) -> PartMoved | None:
    """What is known of a part by its command; None: nothing that would be news."""
    part = part_id(record.id)
    if part is None or record.state is CommandState.WAITING:
        return None
    if record.state is CommandState.RUNNING:
        return _under_way(part, record)
    if record.state is CommandState.DONE:
        return _done(part, record)
    return PartMoved(
        request=part.request,
        number=part.number,
        attempt=part.attempt,
        host=record.host,
        state=PartState.OVER,
        machine=record.machine,
        failure=record.reason or f"its command was {record.state.value}",
        # What its host would not take says nothing of the environment.
        cause=Cause.CLAIM if record.state is CommandState.REFUSED else Cause.NONE,
        began=_may_have_begun(record),
        lost=record.state is CommandState.LOST,
        # A host that has found it ended knows when.
        unknown=record.state is CommandState.LOST and not record.ended,
    )


def _may_have_begun(record: CommandRecord) -> bool:
    """Only what is known not to have begun may be begun elsewhere."""
    if record.state is CommandState.REFUSED:
        return False
    if record.state in (CommandState.CANCELLED, CommandState.TIMED_OUT) and not record.started:
        return False
    return record.phase not in CAUSES


def _under_way(part: PartId, record: CommandRecord) -> PartMoved | None:
    begun = record.phase == RUNNING
    if not begun and record.phase not in CAUSES:
        return None
    return PartMoved(
        request=part.request,
        number=part.number,
        attempt=part.attempt,
        host=record.host,
        state=PartState.RUNNING if begun else PartState.STARTING,
        machine=record.machine,
        cause=CAUSES.get(record.phase, Cause.NONE),
        began=begun,
    )


def _done(part: PartId, record: CommandRecord) -> PartMoved:
    result = _result(record)
    standing = result.standing and not result.failure
    has_job = isinstance(asked := record.arguments.get("request"), dict) and bool(asked.get("job"))
    unknown = has_job and result.exit_code is None
    nothing = "its command has not been run" if unknown else ""
    return PartMoved(
        request=part.request,
        number=part.number,
        attempt=part.attempt,
        host=record.host,
        state=PartState.RUNNING if standing else PartState.OVER,
        machine=result.machine[:LONGEST_ID] or record.machine,
        exit_code=result.exit_code,
        failure=(result.failure or nothing)[:LONGEST_TEXT],
        problem=" ".join(result.problems)[:LONGEST_TEXT],
        cause=Cause.IMAGE if result.image else Cause.NONE,
        began=result.began or standing,
        blames_environment=result.environment,
        final=result.final,
        code=result.code,
        hint=result.hint[:LONGEST_TEXT],
    )


def _result(record: CommandRecord) -> PartResult:
    try:
        return msgspec.convert(record.value, PartResult)
    except msgspec.ValidationError:
        return PartResult(failure="its host told nothing sensible of its end", began=True)


def is_standing(record: CommandRecord) -> bool:
    """Has a command left a machine that stays until somebody ends it?"""
    return record.state is CommandState.DONE and _result(record).standing
