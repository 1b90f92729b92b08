"""What is written down of a batch job that is to be carried out here, and what came of it."""

from __future__ import annotations

import enum

import msgspec

from encamp.agent.bait.starter import Starter
from encamp.model.batch import BatchJob, Offered, Task
from encamp.model.errors import Code, EncampError
from encamp.model.machine import PhaseTime
from encamp.model.size import Size

KILLED = 256
"""Added to the signal that ended a command, where exit codes are numbers below it."""


class Errand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All but what the job itself said, which may be secret and is handed over."""

    job: BatchJob
    task: Task
    starter: Starter
    environment: str
    size: Size
    shares: tuple[str, ...] = ()
    """Directories of the host that the site shows to all jobs."""
    marks: tuple[int, ...] = ()
    """Groups of the starter's that are not for the machine's process: with the job its batch system
    ends all that has them, and the machine may stay."""
    commands: dict[str, Offered] = {}
    """The batch system's own, which it finds in its machine."""
    programs: dict[str, str] = {}
    """Where the batch system's things are, if not where its packages put them."""
    tries: int = 0
    record: str = ""
    """The key of what is written down of the job."""
    host: str = ""
    """The record of whoever has made the machine that it joins, and"""
    machine: str = ""
    """that machine's id; empty: it gets one of its own."""
    tasks: int = 0
    """For so many of a step the machine is, and for nothing else; 0: it is its job's or its own."""

    @property
    def in_script(self) -> bool:
        """Does it join the machine of its job's script?"""
        return bool(self.host) and not self.tasks

    @property
    def key(self) -> tuple[str, str, int]:
        """What there is one machine at a time for."""
        return self.job.id, self.task.step, self.task.number


class Fault(enum.Enum):
    """Why a machine did not come up, where that was not for want of room."""

    UNCLEAR = "unclear"
    KILLED = "killed"
    """Its process was, by a signal."""
    UNFETCHED = "unfetched"
    """There was none: the agent could not get the image, whoever the job's owner is."""
    UNDESCRIBED = "undescribed"
    """There was none: what describes the host's environments has a mistake."""


OF_THE_HOST = frozenset({Fault.UNFETCHED, Fault.UNDESCRIBED})
"""Faults that concern everybody, whoever was met by them."""


def told_of(error: EncampError) -> str:
    """What a job reads of it. How large its machine is was the batch system's decision: what the
    command line could do about that is no hint. What a build has printed is nowhere else."""
    if error.code is Code.NO_ROOM:
        return error.sentence
    last = [line.strip() for line in error.detail.splitlines() if line.strip()][-1:]
    if error.code is Code.BUILD_FAILED and last:
        return f"{error.sentence} It said: {last[0]}"
    return str(error)


class Carried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it."""

    machine: str = ""
    came_up: bool = False
    """The machine was there."""
    began: bool = False
    """The command may have begun."""
    ended: int | None = None
    """Its exit code, or KILLED and the signal; None: it did not come to its end."""
    failure: str = ""
    """Why not."""
    fault: Fault | None = None
    """None: the environment is not to be blamed for that."""
    queued: bool = False
    """The job was back in the queue by then."""
    deserted: bool = False
    """Its starter was gone."""
    phases: tuple[PhaseTime, ...] = ()
    cpu_seconds: float | None = None
    """Of the machine's process."""
    peak_memory: int | None = None
