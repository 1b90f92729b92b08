"""PBS-style commands: `qstat`, `pbsnodes` and their like, as Slurm's package of them offers.

An example of how little a batch system takes. What these commands tell and do is asked of them.
They begin no jobs themselves: which job a process belongs to, how often it was begun and how it is
given back is asked of Slurm, which stands behind them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from encamp import programs
from encamp.batch.offering import offered
from encamp.batch.pbs.attributes import number_of, one_job, one_node, shares_of
from encamp.batch.slurm.adapter import Slurm
from encamp.batch.slurm.node import is_ours, plain, with_mark, without_mark
from encamp.batch.system import BatchSystem
from encamp.model.batch import (
    Bait,
    BaitState,
    BatchJob,
    BatchSettings,
    GivenBack,
    JobStanding,
    Offered,
    Reads,
    Task,
    Waiting,
)
from encamp.model.errors import Code, EncampError

SILENCE = 30.0
"""Seconds after which a command hangs."""

STATES = {
    "Q": "queued",
    "H": "held",
    "W": "waiting for its time",
    "R": "running",
    "S": "suspended",
    "E": "ending",
    "C": "ended",
}
OWN = {
    **dict.fromkeys(
        ("qstat", "qdel", "qhold", "qrls", "qalter", "qrerun", "pbsnodes"), Reads.NEVER
    ),
    "qsub": Reads.ALONE,
}
"""Commands that jobs find in their machines, and when they read."""
QSUB = dict.fromkeys(("-h", "-I", "-V", "-x", "-X", "-z", "--help", "--man"), 0)
"""Options that are not followed by a word."""
CLOSED = ("offline", "drain", "down", "fail", "maint", "unknown", "future")
"""Words in a node's state with which no job comes."""


class Pbs(BatchSystem):
    name: ClassVar[str] = "pbs"

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._slurm = Slurm(settings)

    # ── jobs that come to this host ──────────────────────────────────────────────────────────────

    def job_of(self, pid: int) -> str | None:
        return self._slurm.job_of(pid)

    def task_of(self, pid: int, variables: Mapping[str, str]) -> Task:
        return self._slurm.task_of(pid, variables)

    def describe(self, id: str) -> BatchJob:
        behind = self._slurm.describe(id)
        told = self._job(id)
        if told is None or told.get("job_state") not in ("R", "S", "E"):
            raise EncampError(Code.WRONG_STATE, f"PBS' job {id} does not run.")
        return msgspec.structs.replace(
            behind,
            system=self.name,
            uid=number_of(told.get("euser", "")),
            queue=told.get("queue", ""),
            account=told.get("Account_Name", ""),
            cpus=shares_of(told.get("exec_host", "")).get(self._slurm.node),
        )

    def give_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool) -> GivenBack:
        return self._slurm.give_back(job, task, reason, hold=hold)

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        return self._slurm.bring_back(job, task, reason, hold=hold, held=held)

    def finish(self, job: BatchJob, left: str, reason: str, *, hold: bool) -> None:
        self._slurm.finish(job, left, reason, hold=hold)

    def commands(self, environment: str) -> dict[str, Offered]:
        place = Path(self._settings.programs.get("pbs", ""))
        own = offered(OWN, lambda name: str(place / name))
        if "qsub" in own:
            own["qsub"] = msgspec.structs.replace(own["qsub"], options=QSUB, letters=True)
        return {**self._slurm.commands(environment), **own}

    # ── this host ────────────────────────────────────────────────────────────────────────────────

    def bait(self) -> Bait:
        try:
            node = one_node(self._call("pbsnodes", self._slurm.node), self._slurm.node)
        except EncampError as error:
            return Bait(state=BaitState.UNKNOWN, reason=error.sentence)
        state, note = node.get("state", ""), node.get("note", "")
        if not any(word in state for word in CLOSED):
            return Bait(state=BaitState.OPEN)
        if is_ours(note):
            return Bait(state=BaitState.FULL, reason=without_mark(note))
        return Bait(state=BaitState.CLOSED, reason=note or state)

    def close(self, reason: str) -> None:
        bait = self.bait()
        if bait.state is BaitState.OPEN or (
            bait.state is BaitState.FULL and bait.reason != plain(reason)
        ):
            self._call("pbsnodes", "-o", "-N", with_mark(reason), self._slurm.node)

    def open(self) -> None:
        if self.bait().state is BaitState.FULL:
            self._call("pbsnodes", "-c", self._slurm.node)

    def close_for_good(self, reason: str) -> None:
        self._call("pbsnodes", "-o", "-N", plain(reason) or "closed", self._slurm.node)

    def open_for_good(self) -> None:
        if self.bait().state in (BaitState.FULL, BaitState.CLOSED):
            self._call("pbsnodes", "-c", self._slurm.node)

    # ── the queue ────────────────────────────────────────────────────────────────────────────────

    def waiting(self) -> tuple[Waiting, ...]:
        return self._slurm.waiting()

    def standing(self, id: str) -> JobStanding | None:
        told = self._job(id)
        behind = self._slurm.standing(id)
        if told is None or behind is None:
            return None
        state = told.get("job_state", "")
        return msgspec.structs.replace(behind, state=STATES.get(state, state))

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    def _job(self, id: str) -> dict[str, str] | None:
        """The number that Slurm uses: the commands know no other."""
        entry = self._slurm.look(id)
        if entry is None:
            return None
        return one_job(self._call("qstat", "-f", entry.number), entry.number)

    def _call(self, name: str, *words: str) -> str:
        directory = self._settings.programs.get("pbs", "")
        environment = {key: os.environ[key] for key in ("PATH", "PERL5LIB") if key in os.environ}
        if conf := self._settings.programs.get("conf") or os.environ.get("SLURM_CONF", ""):
            environment["SLURM_CONF"] = conf
        try:
            return programs.run(
                [str(Path(directory) / name) if directory else name, *words],
                purpose=f"asking PBS with {name}",
                code=Code.COMMAND_FAILED,
                environment=environment,
                silence=SILENCE,
                cleaning=name == "pbsnodes",
            )
        except EncampError as error:
            if error.code is not Code.COMMAND_FAILED:
                raise
            raise EncampError(
                Code.UNREACHABLE,
                f"'{name}' did not answer as it should.",
                "Does the batch system run?",
                transient=True,
                detail=error.detail,
            ) from error
