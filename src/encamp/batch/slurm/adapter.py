"""Slurm, as Encamp needs it: by its own commands, none of which is changed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import ClassVar

from encamp.batch.slurm.ancestry import step_of
from encamp.batch.slurm.calls import Calls, this_host
from encamp.batch.slurm.commands import commands_in
from encamp.batch.slurm.gathering import Gathered
from encamp.batch.slurm.names import People, may_begin_again, noted, returns_of, wanted
from encamp.batch.slurm.node import MARK, bait_of, plain, with_mark
from encamp.batch.slurm.queue import Entry, entries, new_word, question
from encamp.batch.slurm.returning import Returning
from encamp.batch.slurm.shares import share
from encamp.batch.slurm.tasks import number_in, tasks_here
from encamp.batch.system import BatchSystem
from encamp.model.batch import (
    Bait,
    BaitState,
    BatchJob,
    BatchSettings,
    GivenBack,
    JobStanding,
    Offered,
    Task,
    Waiting,
)
from encamp.model.errors import Code, EncampError

ID = re.compile(r"\d+([_+]\d+)?")
"""Of a job, of a task of an array, or of a component with resources of its own."""
HELD = re.compile(r"JobHeld\w*|job.requeued.in.held.state|launch.failed.requeued.held")
"""Reasons of jobs that wait until somebody says so."""


class Slurm(BatchSystem):
    name: ClassVar[str] = "slurm"

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._call = Calls(
            conf=settings.programs.get("conf", ""), commands=settings.programs.get("commands", "")
        )
        self._entries = Gathered(self._ask)
        self.returning = Returning(self._call, self.look)

    @cached_property
    def node(self) -> str:
        """This host's name as a node: of several on one host, the settings say which."""
        if chosen := self._settings.programs.get("node"):
            return chosen
        host = this_host()
        known = self._call("scontrol", "show", "aliases", host, purpose="looking for this node")
        names = known.split()
        return host if host in names or not names else names[0]

    # ── jobs that come to this host ──────────────────────────────────────────────────────────────

    def job_of(self, pid: int) -> str | None:
        found = step_of(pid)
        return found.job if found else None

    def task_of(self, pid: int, variables: Mapping[str, str]) -> Task:
        found = step_of(pid)
        if found is None or not found.name.partition("+")[0].isdecimal():
            return Task(step=found.name if found else "")
        count = tasks_here(variables)
        number = number_in(variables, "SLURM_LOCALID")
        return Task(
            step=found.name,
            number=number,
            count=max(count, number + 1),
            together=max(count, number + 1) > 1,
            cpus=number_in(variables, "SLURM_CPUS_ON_NODE") or None,
        )

    def describe(self, id: str) -> BatchJob:
        entry = self.look(id)
        if entry is None:
            raise unknown(id)
        hosts = entry.hosts
        if self.node not in hosts:
            raise EncampError(
                Code.WRONG_STATE, f"Slurm's job {entry.id} ({entry.state}) is not on {self.node}."
            )
        cpus, memory = entry.cpus, entry.granted_memory
        if len(hosts) > 1:
            cpus, memory = self._share(entry)
        return BatchJob(
            system=self.name,
            id=entry.id,
            uid=entry.uid,
            name=entry.name,
            queue=entry.queue,
            account=entry.account,
            cpus=cpus,
            memory=memory or entry.memory_for(cpus),
            restarts=entry.restarts,
            returns=returns_of(entry),
            requeue=may_begin_again(entry) and entry.batch,
            hosts=hosts,
            environment=noted(entry),
        )

    def _share(self, entry: Entry) -> tuple[int, int]:
        words = ("show", "job", "-d", "-o", entry.number)
        purpose = f"asking what job {entry.id} was granted"
        return share(self._call("scontrol", *words, purpose=purpose), entry, self.node)

    def give_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool) -> GivenBack:
        return self.returning.give_back(job, task, reason, hold=hold)

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        return self.returning.bring_back(job, task, reason, hold=hold, held=held)

    def finish(self, job: BatchJob, left: str, reason: str, *, hold: bool) -> None:
        self.returning.finish(job, left, reason, hold=hold)

    def commands(self, environment: str) -> dict[str, Offered]:
        return commands_in(environment, self._settings.programs.get("commands", ""))

    # ── this host ────────────────────────────────────────────────────────────────────────────────

    def bait(self) -> Bait:
        try:
            return self._bait()
        except EncampError as error:
            if error.transient or error.code is Code.INPUT_MISSING:
                return Bait(state=BaitState.UNKNOWN, reason=error.sentence)
            raise

    def _bait(self) -> Bait:
        words = ("show", "node", self.node, "-o")
        return bait_of(self._call("scontrol", *words, purpose="asking how this node stands"))

    def close(self, reason: str) -> None:
        bait = self._bait()
        if bait.state is BaitState.OPEN or (
            bait.state is BaitState.FULL and bait.reason != plain(reason)
        ):
            self._update("drain", with_mark(reason), purpose="closing this node")

    def open(self) -> None:
        if self._bait().state is BaitState.FULL:
            self._update("undrain", purpose="opening this node")

    def close_for_good(self, reason: str) -> None:
        # Whatever he writes, it does not begin with our mark.
        words = plain(reason).removeprefix(MARK).strip() or "closed"
        self._update("drain", words, purpose="closing this node")

    def open_for_good(self) -> None:
        if self._bait().state in (BaitState.FULL, BaitState.CLOSED):
            self._update("resume", purpose="opening this node")

    def _update(self, state: str, reason: str = "", *, purpose: str) -> None:
        words = ["update", f"NodeName={self.node}", f"State={state}"]
        if reason:
            words.append(f"Reason={reason}")
        self._call("scontrol", *words, purpose=purpose, cleaning=True)

    # ── the queue ────────────────────────────────────────────────────────────────────────────────

    def waiting(self) -> tuple[Waiting, ...]:
        found: dict[str, Waiting] = {}
        people, now = People(), time.time()
        for entry in self._squeue("--states=PENDING", purpose="asking what waits"):
            # Those that would not begin, were there a free node, do not wait for one.
            later = entry.dependency or (entry.eligible or 0.0) > now
            if later or HELD.fullmatch(entry.reason):
                continue
            for name in wanted(entry, self._settings.rules, people) or ("",):
                had = found.get(name) or Waiting(environment=name, jobs=0, oldest=math.inf)
                older = entry.submitted < had.oldest
                found[name] = Waiting(
                    environment=name,
                    jobs=had.jobs + entry.tasks,
                    cpus=had.cpus + entry.cpus * entry.tasks,
                    oldest=entry.submitted if older else had.oldest,
                    owner=people.user(entry.uid) if older else had.owner,
                )
        return tuple(found[name] for name in sorted(found))

    def standing(self, id: str) -> JobStanding | None:
        entry = self.look(id)
        if entry is None:
            return None
        note = entry.admin_comment.partition(MARK)[2]
        return JobStanding(
            state=entry.state,
            reason="; ".join(filter(None, (entry.reason, note))),
            user=People().user(entry.uid),
            environment=noted(entry),
            waits=entry.state == "PENDING",
            held=HELD.fullmatch(entry.reason) is not None,
            hosts=entry.hosts,
        )

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    def look(self, id: str) -> Entry | None:
        """A job by the number of its own or as users call it."""
        if not ID.fullmatch(id):
            raise unknown(id)
        return self._entries(id)

    def seen_on(self, nodes: Iterable[str]) -> list[Entry]:
        """What runs there, or has failed just now."""
        words = ("--all", "--states=RUNNING,FAILED", f"--nodelist={','.join(nodes)}")
        return self._squeue(*words, purpose="asking what runs on worker nodes")

    def _ask(self, ids: frozenset[str]) -> dict[str, Entry]:
        asked = f"--jobs={','.join(sorted(ids))}"
        try:
            found = self._squeue("--states=all", asked, purpose="asking about jobs")
        except EncampError as error:
            if error.code is not Code.INPUT_MISSING:
                raise
            found = []
        return {name: entry for entry in found for name in (entry.id, entry.number)}

    def _squeue(self, *words: str, purpose: str) -> list[Entry]:
        word = new_word()
        form = f"--Format={question(word)}"
        said = self._call("squeue", "--noheader", "--noconvert", *words, form, purpose=purpose)
        return entries(said, word)


def unknown(id: str) -> EncampError:
    return EncampError(
        Code.INPUT_MISSING,
        f"Slurm knows no job '{id[:64]}'.",
        "Jobs that ended some minutes ago are forgotten.",
    )
