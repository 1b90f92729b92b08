"""The way back into Slurm's queue, for jobs that could not be run on this host, or were lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from encamp.batch.slurm.ancestry import Step, has_daemon
from encamp.batch.slurm.beginning import Beginning
from encamp.batch.slurm.calls import Calls, patiently
from encamp.batch.slurm.ending import GOING, STANDING, check_lost, is_queued_again, stays
from encamp.batch.slurm.names import ONCE, may_begin_again, noted, returns_of
from encamp.batch.slurm.node import MARK, plain
from encamp.batch.slurm.queue import Entry
from encamp.batch.system import EndingError
from encamp.model.batch import BatchJob, GivenBack, Task
from encamp.model.errors import Code, EncampError

PATIENCE = 60.0
"""Seconds for which a job is tried to be given back to a controller that does not answer."""
AGAIN = 75
"""What a job ends with that was given back, should Slurm not have ended it before."""
REST = 3
"""Seconds for which a job rests that is to begin again at once. A node takes what comes within the
second in which it has ended a job for that job, and Slurm then gives the job up. The time is this
node's, so that it does not matter if the controller's differs."""
GONE = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE")
STANDS = "it stands"
"""What is left to do for a job whose end Slurm has not noticed: to queue it again."""


class Returning:
    """`look`: how a job stands, by its id; None: Slurm knows none of that id."""

    def __init__(self, call: Calls, look: Callable[[str], Entry | None]) -> None:
        self._call = call
        self._look = look
        self._beginning = Beginning(self._begin_now)

    # ── jobs whose starters are there ────────────────────────────────────────────────────────────

    def give_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool) -> GivenBack:
        """What may not be queued again is all the same, as long as its script has not begun."""
        if not job.requeue and not task.is_script:
            raise stays(f"Slurm's job {job.id} may not be queued again: its script has begun.")
        patiently(lambda: self.queue_again(job, reason, hold=hold), PATIENCE)
        self._begin_soon(job, hold=hold)
        return GivenBack(exit_code=AGAIN, wait=True)

    def queue_again(self, job: BatchJob, reason: str, *, hold: bool) -> None:
        """It begins when Slurm lets it."""
        purpose = f"giving job {job.id} back"
        how = "requeuehold" if hold else "requeue"
        try:
            entry = self._look(job.id)
        except EncampError as error:
            if error.code is not Code.PROTOCOL or not self._is_alone(job.id):
                raise
            # What Slurm says of it cannot be read. It knows by itself what may be queued again.
            self._call("scontrol", how, "incomplete", job.id, purpose=purpose)
            return
        if entry is None or entry.state in GONE:
            self._give_back_lost(job, reason, hold=hold)
            return
        if not entry.batch:
            raise stays(f"Slurm's job {job.id} cannot be queued again: it is not a batch job.")
        try:
            self.update(entry, self._noting(entry, job, reason), purpose=purpose)
        except EncampError as error:
            if error.code is Code.WRONG_STATE:
                return  # So it is.
            raise
        if entry.restarts == job.restarts and entry.state != "PENDING":
            with self._allowed(entry, job, purpose):
                # Not a job that has ended meanwhile, which it would bring back to life.
                self._call("scontrol", how, "incomplete", entry.whole, purpose=purpose)
        elif hold:
            self._call("scontrol", "hold", entry.whole, purpose=purpose)

    def _is_alone(self, number: str) -> bool:
        """Does that mean one job? The number of an array means all of its tasks."""
        words = ("show", "job", "--oneliner", number)
        said = self._call("scontrol", *words, purpose=f"asking about job {number}")
        return said.count("JobId=") == 1 and "ArrayJobId=" not in said

    def _give_back_lost(self, job: BatchJob, reason: str, *, hold: bool) -> None:
        """One whose user has cancelled it, or whose time is over, is not to come back; one whose
        starter was killed meanwhile is."""
        try:
            self.bring_back(job, Task(), reason, hold=hold, held=False)  # It does not stand.
        except EncampError as error:
            if error.code is not Code.WRONG_STATE:
                raise

    # ── jobs whose starters are gone ─────────────────────────────────────────────────────────────

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        entry = self._look(job.id)
        if entry is not None and not held:
            # Nor will it notice, for minutes, if the daemon is gone that would tell.
            held = entry.state in STANDING and not has_daemon(Step(entry.number, "batch"))
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
        entry = self._look(job.id)
        if entry is not None and is_queued_again(entry, job):
            return
        if entry is not None and entry.state in STANDING:
            check_lost(entry, job, Task(), held=True)
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
        how = "requeuehold" if hold else "requeue"
        self._call("scontrol", how, entry.whole, purpose=purpose)
        # What has ended can be told nothing; what is in the queue can.
        words = [self._noting(entry, job, reason)]
        if not hold and job.restarts == 0:
            words.append(f"StartTime=now+{REST}")
        with suppress(EncampError):
            patiently(lambda: self.update(entry, *words, purpose=purpose), PATIENCE)

    # ── what is told to Slurm ────────────────────────────────────────────────────────────────────

    @contextmanager
    def _allowed(self, entry: Entry, job: BatchJob, purpose: str) -> Iterator[None]:
        """What may not be queued again, and has not begun, is allowed to for as long as that takes.
        Should we be killed over it, it is noted already that it may begin only once, and everybody
        goes by that."""
        if entry.requeue or job.requeue:
            yield
            return
        self.update(entry, "Requeue=1", purpose=purpose)
        try:
            yield
        finally:
            self.update(entry, "Requeue=0", purpose=purpose)

    def update(self, entry: Entry, *what: str, purpose: str) -> None:
        self._call("scontrol", "update", f"JobId={entry.called}", *what, purpose=purpose)

    def _noting(self, entry: Entry, job: BatchJob, reason: str) -> str:
        """What `scontrol show job` shows afterwards. What it is for stays with it, and so does what
        the site has noted itself."""
        before = entry.admin_comment.partition(MARK)[0].rstrip("; ")
        if not noted(entry) and job.environment:
            before = "; ".join(filter(None, (f"env={job.environment}", before)))
        words = [f"{MARK}{plain(reason).removeprefix('Encamp: ').rstrip('.')}"]
        times = returns_of(entry) if job.returns is None else job.returns + 1
        if times:
            words.append(f"given back {times} time{'s' * (times > 1)}")
        if not may_begin_again(entry):
            words.append(ONCE)
        return f"AdminComment={'; '.join(filter(None, (before, *words)))}"

    # ── when it begins ───────────────────────────────────────────────────────────────────────────

    def _begin_soon(self, job: BatchJob, *, hold: bool) -> None:
        """The first time it would wait for nothing; later that spares nodes a job that comes back
        again and again."""
        if not hold and job.restarts == 0:
            self.begin_soon(job.id)

    def begin_soon(self, id: str) -> None:
        """Slurm would have it wait two minutes."""
        self._beginning.soon(id)

    def _begin_now(self, id: str) -> bool:
        """Let a job that was given back begin soon; False: it has not ended yet."""
        entry = self._look(id)
        if entry is None or entry.state not in ("COMPLETING", "PENDING"):
            return True
        if entry.state == "COMPLETING" or not entry.reason:
            return False  # Or Slurm has not looked at it yet.
        if entry.reason == "BeginTime":
            self.update(entry, f"StartTime=now+{REST}", purpose=f"letting job {id} begin")
        return True
