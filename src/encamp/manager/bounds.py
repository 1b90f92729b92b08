"""What a request may be at most: what no honest one needs is refused before it costs anything."""

from __future__ import annotations

import math

from encamp.bus.messages import encode
from encamp.model.errors import Code, EncampError
from encamp.model.job import Job
from encamp.model.request import MOST_MACHINES, Request
from encamp.model.wanted import check_name

LARGEST = 400_000
"""Bytes of a request: it has to fit a message to a host, with what else is said there."""
LONGEST_EXPRESSION = 10_000
"""Characters of requirements, or of a rank."""
LONGEST_LABEL = 100
MOST_LABELS = 100
HIGHEST_PRIORITY = 1_000_000
MOST_RETRIES = 1000


def check_bounds(request: Request) -> None:
    check_name(request.machine.name)
    _bounded("count", request.count, 1, MOST_MACHINES)
    _bounded("priority", request.priority, -HIGHEST_PRIORITY, HIGHEST_PRIORITY)
    _bounded("retries", request.retries, 0, MOST_RETRIES)
    for what, text in (("requirements", request.requirements), ("rank", request.rank)):
        if len(text) > LONGEST_EXPRESSION:
            raise EncampError(
                Code.USAGE,
                f"'{what}' has {len(text):,} characters, and may have {LONGEST_EXPRESSION:,}.",
            )
    labels = (request.label, *request.near, *request.away)
    if len(labels) > MOST_LABELS:
        raise EncampError(Code.USAGE, f"More than {MOST_LABELS} labels are named.")
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


def _check_job(job: Job) -> None:
    if not job.command.arguments:
        raise EncampError(Code.USAGE, "There is nothing to run.", "Name a program.")
    if job.timeout is not None and not (math.isfinite(job.timeout) and job.timeout > 0):
        raise EncampError(Code.USAGE, f"A time limit of {job.timeout} seconds makes no sense.")


def _bounded(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise EncampError(Code.USAGE, f"'{what}' is {value}; it can be from {least:,} to {most:,}.")
