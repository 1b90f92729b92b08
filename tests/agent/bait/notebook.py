"""A batch system of the tests' own: a directory in which stands what it knows of each job. Its jobs
are children of root's `shepherd.py`. Agents find it by its entry point, as any other."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.batch.system import BatchSystem
from encamp.model.batch import (
    Bait,
    BaitState,
    BatchJob,
    BatchSettings,
    GivenBack,
    Offered,
    Task,
    Waiting,
)
from encamp.model.errors import Code, EncampError

SHEPHERD = Path(__file__).with_name("shepherd.py").name

STEP, NUMBER, COUNT = "NOTEBOOK_STEP", "NOTEBOOK_TASK", "NOTEBOOK_TASKS"
"""Variables of a task of a step."""


class Returned(msgspec.Struct):
    """What was given back."""

    reason: str
    hold: bool
    at: float


class Notebook(BatchSystem):
    name = "pbs"  # The starter knows three, and this is the plainest.

    def __init__(self, settings: BatchSettings) -> None:
        self.directory = Path(settings.programs["conf"])

    def job_of(self, pid: int) -> str | None:
        while pid > 1:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                owner = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
                fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                return None
            if owner == 0 and len(words) > 2 and words[1].endswith(SHEPHERD.encode()):
                return words[2].decode()
            pid = int(fields[1])
        return None

    def describe(self, id: str) -> BatchJob:
        if (self.directory / "silent").exists():
            raise EncampError(Code.UNREACHABLE, "The notebook is closed.", transient=True)
        if (self.directory / f"{id}.odd").exists():
            raise EncampError(Code.PROTOCOL, "The notebook says what nobody can read.")
        if (self.directory / f"{id}.forgotten").exists():
            raise EncampError(Code.INPUT_MISSING, "The notebook knows of no such job.")
        return msgspec.json.decode((self.directory / f"{id}.job").read_bytes(), type=BatchJob)

    def task_of(self, pid: int, variables: Mapping[str, str]) -> Task:
        step, number = variables.get(STEP, ""), variables.get(NUMBER, "0")
        count = int(variables.get(COUNT, "1"))
        return Task(step=step, number=int(number), count=count, together=count > 1)

    def give_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool) -> GivenBack:
        if (self.directory / "silent").exists():
            raise EncampError(Code.UNREACHABLE, "The notebook is closed.", transient=True)
        if (self.directory / f"{job.id}.kept").exists():
            raise EncampError(Code.WRONG_STATE, "The notebook takes nothing back.")
        if (self.directory / f"{job.id}.torn").exists():
            raise EncampError(Code.COMMAND_FAILED, "The notebook is torn.")
        returned = Returned(reason, hold, time.time())
        with (self.directory / f"{job.id}.back").open("ab") as file:
            file.write(msgspec.json.encode(returned) + b"\n")
        return GivenBack(exit_code=100 if hold else 99)

    def commands(self, environment: str) -> dict[str, Offered]:
        is_read = (self.directory / "read").exists()
        return {"notes": Offered(words=("/bin/echo", "noted"))} if is_read else {}

    def returned(self, id: str) -> list[Returned]:
        with suppress(FileNotFoundError):
            lines = (self.directory / f"{id}.back").read_bytes().splitlines()
            return [msgspec.json.decode(line, type=Returned) for line in lines]
        return []

    def bait(self) -> Bait:
        closed = self.directory / "closed"
        if not closed.exists():
            return Bait(state=BaitState.OPEN)
        return Bait(state=BaitState.FULL, reason=closed.read_text())

    def close(self, reason: str) -> None:
        (self.directory / "closed").write_text(reason)

    def open(self) -> None:
        (self.directory / "closed").unlink(missing_ok=True)

    def waiting(self) -> tuple[Waiting, ...]:
        return ()
