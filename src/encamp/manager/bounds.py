"""What a request may be at most: what no honest one needs is refused before it costs anything."""

from __future__ import annotations

from collections.abc import Iterable

from encamp.bus.messages import encode
from encamp.door.questions import Exec
from encamp.model.errors import Code, EncampError
from encamp.model.job import Copy, Job, MachineRequest
from encamp.model.quantity import duration, quantity
from encamp.model.request import MOST_MACHINES, Request
from encamp.model.runnable import LONGEST, check_command, check_text, check_timeout
from encamp.model.wanted import check_name, check_network

LARGEST = 400_000
"""Bytes of a request: it has to fit a message to a host, with what else is said there."""
LONGEST_EXPRESSION = 10_000
"""Characters of requirements, or of a rank."""
LONGEST_LABEL = 100
MOST_LABELS = 100
HIGHEST_PRIORITY = 1_000_000
MOST_RETRIES = 1000


def check_bounds(request: Request) -> None:
    _check_machine(request.machine)
    _bounded("count", request.count, 1, MOST_MACHINES)
    _bounded("priority", request.priority, -HIGHEST_PRIORITY, HIGHEST_PRIORITY)
    _bounded("retries", request.retries, 0, MOST_RETRIES)
    for what, text in (("requirements", request.requirements), ("rank", request.rank)):
        if len(text) > LONGEST_EXPRESSION:
            raise EncampError(
                Code.USAGE,
                f"'{what}' has {len(text):,} characters, and may have {LONGEST_EXPRESSION:,}.",
            )
    if request.wait_at_most is not None and not 0 < request.wait_at_most <= LONGEST:
        raise EncampError(
            Code.USAGE,
            f"Waiting at most {quantity(request.wait_at_most, 'seconds')} makes no sense.",
            f"Give more than 0 and at most {duration(LONGEST)}, or nothing.",
        )
    labels = (request.label, *request.near, *request.away)
    if len(labels) > MOST_LABELS:
        raise EncampError(Code.USAGE, f"More than {MOST_LABELS} labels are named.")
    if not all((*request.near, *request.away)):
        raise EncampError(Code.USAGE, "One of the labels to be near to, or away from, is empty.")
    for label in labels:
        if len(label) > LONGEST_LABEL or not label.isprintable() or label != label.strip():
            raise EncampError(
                Code.USAGE,
                f"{label[:LONGEST_LABEL]!r} is no label: it has up to {LONGEST_LABEL} characters"
                " that can be printed.",
            )
    if request.job is not None:
        _check_job(request.job)
    try:
        length = len(encode(request))
    except (UnicodeEncodeError, ValueError, OverflowError) as error:
        raise EncampError(
            Code.USAGE, "The request holds what is no text, or no number.", detail=str(error)
        ) from error
    if length > LARGEST:
        raise EncampError(
            Code.USAGE,
            f"The request has {length:,} bytes, and may have {LARGEST:,}.",
            "Put what is long into a file, and give it along with --in.",
        )


def _check_machine(machine: MachineRequest) -> None:
    check_name(machine.name)
    check_network(machine.network)
    check_text("The image's name", machine.image or "")
    for share in machine.shares:
        check_text("The path of a share", share.source + share.path)


def _check_job(job: Job) -> None:
    check_command(job.command)
    check_timeout(job.timeout)
    _check_copies((*job.inputs, *job.outputs))
    check_text("The image's name", job.save_as or "")


def check_exec(asked: Exec) -> None:
    """The same for a command in a machine that is there."""
    check_command(asked.command, optional=bool(asked.inputs or asked.outputs))
    check_timeout(asked.timeout)
    _check_copies((*asked.inputs, *asked.outputs))


def _check_copies(copies: Iterable[Copy]) -> None:
    for one in copies:
        check_text("The name of a file to copy", one.source + (one.target or ""))


def _bounded(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise EncampError(Code.USAGE, f"'{what}' is {value}; it can be from {least:,} to {most:,}.")
