"""What is written down of a batch job that is to be carried out here, and what came of it."""

from __future__ import annotations

import msgspec

from encamp.agent.bait.starter import Starter
from encamp.model.batch import BatchJob, Offered, Task
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
    blamed: bool = False
    """The environment did not come up, and it was for no want of room."""
    killed: bool = False
    """The machine's process was killed by a signal before that."""
    deserted: bool = False
    """Its starter was gone."""
    phases: tuple[PhaseTime, ...] = ()
    cpu_seconds: float | None = None
    """Of the machine's process."""
    peak_memory: int | None = None
