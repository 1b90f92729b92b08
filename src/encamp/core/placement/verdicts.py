"""What a host is to machines of one shape: open to them, or why not."""

from __future__ import annotations

import enum
from typing import NamedTuple

from encamp.model.request import Cause


class Meaning(NamedTuple):
    cause: Cause
    one: str
    """What is said of one host."""
    several: str
    """What is said of several: `2 hosts ...`."""
    lasting: bool
    """Waiting for machines to end does not change it."""


_OF_SEVERAL = {
    "could": "could",
    "does": "do",
    "has": "have",
    "is": "are",
    "makes": "make",
    "takes": "take",
}


def _means(cause: Cause, one: str, several: str = "", *, lasting: bool = False) -> Meaning:
    """`several`: if more differs than its verb."""
    verb, _, rest = one.partition(" ")
    return Meaning(cause, one, several or f"{_OF_SEVERAL[verb]} {rest}", lasting)


class Verdict(enum.Enum):
    OPEN = _means(Cause.NONE, "could take it")
    ABSENT = _means(Cause.ABSENT, "is not there", lasting=True)
    TAKES_NONE = _means(Cause.ENVIRONMENT, "takes no requests of a site", lasting=True)
    NOT_FOR_OWNER = _means(Cause.ENVIRONMENT, "makes no machines for this owner", lasting=True)
    SILENT = _means(
        Cause.NO_HOST_FITS,
        "does not tell its processors and memory",
        "do not tell their processors and memory",
        lasting=True,
    )
    FEW_CPUS = _means(Cause.NO_HOST_FITS, "has less than {cpus}", lasting=True)
    LITTLE_MEMORY = _means(Cause.NO_HOST_FITS, "has less than {memory} for machines", lasting=True)
    SMALL_DISK = _means(Cause.NO_HOST_FITS, "has less than {disk} of disk", lasting=True)
    UNMET = _means(Cause.REQUIREMENTS, "does not meet {requirements}", lasting=True)
    UNKNOWN = _means(Cause.REQUIREMENTS, "does not tell what {requirements} asks", lasting=True)
    NOT_NEAR = _means(Cause.NEIGHBOURS, "has no machine of {near}")
    NOT_AWAY = _means(Cause.NEIGHBOURS, "has a machine of {away}", "have machines of {away}")
    SPARED = _means(Cause.LEFT_ALONE, "is not tried for a while, since {environment} failed there")
    TRIED = _means(
        Cause.LEFT_ALONE,
        "is being tried with one other job, since {environment} failed there",
        "are being tried with one other job each, since {environment} failed there",
    )
    DOUBTED = _means(
        Cause.LEFT_ALONE,
        "is not tried for a while, since it refused what it had room for",
        "are not tried for a while, since they refused what they had room for",
    )
    NO_CPUS = _means(Cause.NO_ROOM, "has less than {cpus} free")
    NO_MEMORY = _means(Cause.NO_ROOM, "has less than {memory} free")
    NO_DISK = _means(Cause.NO_ROOM, "has less than {disk} of disk free")
