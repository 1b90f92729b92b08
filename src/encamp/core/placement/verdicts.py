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


class Verdict(enum.Enum):
    OPEN = Meaning(Cause.NONE, "could take it", "could take it", False)
    ABSENT = Meaning(Cause.ABSENT, "is not there", "are not there", True)
    TAKES_NONE = Meaning(
        Cause.ENVIRONMENT, "takes no requests of a site", "take no requests of a site", True
    )
    NOT_FOR_OWNER = Meaning(
        Cause.ENVIRONMENT,
        "makes no machines for this owner",
        "make no machines for this owner",
        True,
    )
    SILENT = Meaning(
        Cause.NO_HOST_FITS,
        "does not tell its processors and memory",
        "do not tell their processors and memory",
        True,
    )
    FEW_CPUS = Meaning(Cause.NO_HOST_FITS, "has less than {cpus}", "have less than {cpus}", True)
    LITTLE_MEMORY = Meaning(
        Cause.NO_HOST_FITS,
        "has less than {memory} for machines",
        "have less than {memory} for machines",
        True,
    )
    SMALL_DISK = Meaning(
        Cause.NO_HOST_FITS,
        "has less than {disk} of disk",
        "have less than {disk} of disk",
        True,
    )
    UNMET = Meaning(
        Cause.REQUIREMENTS, "does not meet {requirements}", "do not meet {requirements}", True
    )
    UNKNOWN = Meaning(
        Cause.REQUIREMENTS,
        "does not tell what {requirements} asks",
        "do not tell what {requirements} asks",
        True,
    )
    NOT_NEAR = Meaning(
        Cause.NEIGHBOURS, "has no machine of {near}", "have no machine of {near}", False
    )
    NOT_AWAY = Meaning(
        Cause.NEIGHBOURS, "has a machine of {away}", "have machines of {away}", False
    )
    SPARED = Meaning(
        Cause.LEFT_ALONE,
        "is spared after {environment} failed there",
        "are spared after {environment} failed there",
        False,
    )
    TRIED = Meaning(
        Cause.LEFT_ALONE,
        "is tried with one machine after {environment} failed there",
        "are tried with one machine each after {environment} failed there",
        False,
    )
    DOUBTED = Meaning(
        Cause.LEFT_ALONE,
        "has broken its promises, and is spared",
        "have broken their promises, and are spared",
        False,
    )
    NO_CPUS = Meaning(
        Cause.NO_ROOM, "has less than {cpus} free", "have less than {cpus} free", False
    )
    NO_MEMORY = Meaning(
        Cause.NO_ROOM, "has less than {memory} free", "have less than {memory} free", False
    )
    NO_DISK = Meaning(
        Cause.NO_ROOM,
        "has less than {disk} of disk free",
        "have less than {disk} of disk free",
        False,
    )
