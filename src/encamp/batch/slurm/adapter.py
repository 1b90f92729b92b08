"""Slurm, as Encamp needs it: by its own commands, none of which is changed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import ClassVar

from encamp.batch.slurm.ancestry import step_of
from encamp.batch.slurm.beginning import Beginning
from encamp.batch.slurm.calls import Calls, patiently, this_host
from encamp.batch.slurm.commands import commands_in
from encamp.batch.slurm.ending import GOING, STANDING, check_lost, is_queued_again
from encamp.batch.slurm.gathering import Gathered
from encamp.batch.slurm.names import People, may_begin_again, noted, wanted
from encamp.batch.slurm.node import MARK, bait_of, plain, with_mark
from encamp.batch.slurm.queue import Entry, entries, new_word, question
from encamp.batch.slurm.shares import share
from encamp.batch.slurm.tasks import number_in, tasks_here
from encamp.batch.system import BatchSystem, EndingError
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

PATIENCE = 60.0
"""Seconds for which a job is tried to be given back to a controller that does not answer."""
AGAIN = 75
"""What a job ends with that was given back, should Slurm not have ended it before."""

REST = 3
"""Seconds for which a job rests that is to begin again at once. A node takes what comes within the
second in which it has ended a job for that job, and Slurm then gives the job up. The time is this
node's, so that it does not matter if the controller's differs."""

HELD = re.compile(r"JobHeld\w*|job.requeued.in.held.state|launch.failed.requeued.held")
"""Reasons of jobs that wait until somebody says so."""
GONE = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE")
STANDS = "it stands"
"""What is left to do for a job whose end Slurm has not noticed: to queue it again."""


class Slurm(BatchSystem):
    name: ClassVar[str] = "slurm"

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._call = Calls(
            conf=settings.programs.get("conf", ""), commands=settings.programs.get("commands", "")
        )
        self._entries = Gathered(self._ask)
        self._beginning = Beginning(self._begin_now)

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
        if found is None or not found.name.isdecimal():
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
        entry = self._entries(id)
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
            requeue=may_begin_again(entry) and entry.batch,
            hosts=hosts,
            environment=noted(entry),
        )

    def _share(self, entry: Entry) -> tuple[int, int]:
        words = ("show", "job", "-d", "-o", entry.number)
        purpose = f"asking what job {entry.id} was granted"
        return share(self._call("scontrol", *words, purpose=purpose), entry, self.node)

    def give_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool) -> GivenBack:
        if not job.requeue:
            raise EncampError(
                Code.WRONG_STATE,
                f"Slurm's job {job.id} cannot be queued again.",
                "It is not a batch job, or was submitted with --no-requeue.",
            )
        patiently(lambda: self.queue_again(job, reason, hold=hold), PATIENCE)
        self._begin_soon(job, hold=hold)
        return GivenBack(exit_code=AGAIN, wait=True)

    def _begin_soon(self, job: BatchJob, *, hold: bool) -> None:
        """The first time it would wait for nothing; later that spares nodes a job that comes back
        again and again."""
        if not hold and job.restarts == 0:
            self.begin_soon(job.id)

    def begin_soon(self, id: str) -> None:
        """Slurm would have it wait two minutes."""
        self._beginning.soon(id)

    def queue_again(self, job: BatchJob, reason: str, *, hold: bool) -> None:
        """It begins when Slurm lets it."""
        purpose = f"giving job {job.id} back"
        entry = self.look(job.id)
        if entry is None or entry.state in GONE:
            self._give_back_lost(job, reason, hold=hold)
            return
        try:
            noting = self._noting(entry, job, reason)
            self._call("scontrol", "update", f"JobId={job.id}", noting, purpose=purpose)
        except EncampError as error:
            if error.code is Code.WRONG_STATE:
                return  # So it is.
            raise
        if entry.restarts == job.restarts and entry.state != "PENDING":
            how = "requeuehold" if hold else "requeue"
            # Not a job that has ended meanwhile, which it would bring back to life.
            self._call("scontrol", how, "incomplete", job.id, purpose=purpose)
        elif hold:
            self._call("scontrol", "hold", job.id, purpose=purpose)

    def _give_back_lost(self, job: BatchJob, reason: str, *, hold: bool) -> None:
        """One whose user has cancelled it, or whose time is over, is not to come back; one whose
        starter was killed meanwhile is."""
        try:
            self.bring_back(job, Task(), reason, hold=hold, held=False)  # It does not stand.
        except EncampError as error:
            if error.code is not Code.WRONG_STATE:
                raise

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        entry = self.look(job.id)
        check_lost(entry, job, task, held=held)
        assert entry is not None
        if entry.state in STANDING:
            return STANDS
        self.bring_back_ended(entry, job, reason, hold=hold)
        return ""

    def finish(self, job: BatchJob, left: str, reason: str, *, hold: bool) -> None:
        """Of one that stood when its starter was killed. Slurm may notice that at any moment, since
        whoever keeps it back can be killed, too; then the job has to be taken back as one that has
        ended."""
        entry = self.look(job.id)
        if entry is not None and is_queued_again(entry, job):
            return
        if entry is not None and entry.state in STANDING:
            self.queue_again(job, reason, hold=hold)
            self._begin_soon(job, hold=hold)
        elif entry is None or entry.state not in GOING:
            check_lost(entry, job, Task(), held=False)
            assert entry is not None
            self.bring_back_ended(entry, job, reason, hold=hold)
            return
        raise EndingError(f"Slurm is ending job {job.id}.")

    def bring_back_ended(self, entry: Entry, job: BatchJob, reason: str, *, hold: bool) -> None:
        purpose = f"queueing job {job.id} again"
        self._call("scontrol", "requeuehold" if hold else "requeue", job.id, purpose=purpose)
        # What has ended can be told nothing; what is in the queue can.
        words = [self._noting(entry, job, reason)]
        if not hold and job.restarts == 0:
            words.append(f"StartTime=now+{REST}")
        note = ("scontrol", "update", f"JobId={job.id}", *words)
        with suppress(EncampError):
            patiently(lambda: self._call(*note, purpose=purpose), PATIENCE)

    def _noting(self, entry: Entry, job: BatchJob, reason: str) -> str:
        """What `scontrol show job` shows afterwards; which environment it is for stays with it."""
        name = noted(entry) or job.environment
        note = f"{MARK}{plain(reason).removeprefix('Encamp: ')}"
        return f"AdminComment={f'env={name}; ' if name else ''}{note}"

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
        return self._entries(id)

    def seen_on(self, nodes: Iterable[str]) -> list[Entry]:
        """What runs there, or has failed just now."""
        words = ("--all", "--states=RUNNING,FAILED", f"--nodelist={','.join(nodes)}")
        return self._squeue(*words, purpose="asking what runs on worker nodes")

    def _ask(self, ids: frozenset[str]) -> dict[str, Entry]:
        for id in ids:
            if not re.fullmatch(r"\d+(_\d+)?", id):
                raise unknown(id)
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

    def _begin_now(self, id: str) -> bool:
        """Let a job that was given back begin soon; False: it has not ended yet."""
        entry = self.look(id)
        if entry is not None and entry.state == "COMPLETING":
            return False
        if entry is not None and entry.state == "PENDING" and entry.reason == "BeginTime":
            words = ("update", f"JobId={id}", f"StartTime=now+{REST}")
            self._call("scontrol", *words, purpose=f"letting job {id} begin")
        return True


def unknown(id: str) -> EncampError:
    return EncampError(
        Code.INPUT_MISSING,
        f"Slurm knows no job '{id[:64]}'.",
        "Jobs that ended some minutes ago are forgotten.",
    )
