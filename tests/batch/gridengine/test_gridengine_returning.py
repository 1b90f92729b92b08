"""A job whose starter was killed is queued again by Grid Engine's own commands, which are played
here: once for each run, put off until that is cleared away, and whoever of us is killed
meanwhile."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
import psutil
import pytest

from encamp.batch.gridengine import adapter as adapters
from encamp.batch.gridengine import halting, returning
from encamp.batch.gridengine.adapter import GridEngine
from encamp.batch.gridengine.shepherd import Shepherd
from encamp.batch.system import EndingError
from encamp.model.batch import BatchJob, BatchSettings, Task
from encamp.model.errors import Code, EncampError
from tests.site.siting import root_only

pytestmark = root_only

NOBODY = 65534
QUEUE = "qname main.q\nrerun TRUE\n"
AWAY = "unable to contact qmaster"
RESCHEDULED = "Pushed rescheduling of job 7 on host here"

NOT_ALLOWED = "rejected due to jsv_allowed_mod configuration which does not allow: a"

RUNS, WAITS, RUNS_ELSEWHERE = ("r", "main.q@here"), ("Rq", ""), ("Rr", "main.q@there")


class Place:
    """A host of Grid Engine's with one job."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.id = "7"
        self.part = ""
        self.type = 0
        """What it was submitted by."""
        self.marks: dict[str, str] = {}
        """In its context, too."""
        self.directory = path / "active_jobs" / "7.1"
        self.directory.mkdir(parents=True)
        for name, text in (("trace", "starting job\n"), ("usage", "signal=9\n")):
            (self.directory / name).write_text(text)
        self.commands = path / "commands"
        self.commands.mkdir()
        self.say("qconf", QUEUE)
        self.say("qalter", "")
        self.say("qmod", RESCHEDULED)
        self.left = ""
        self.stands(*RUNS)
        self.config = {"host": "here", "queue": "main.q", "job_owner": "nobody"}
        self.shepherds = [self.shepherd(4711)]
        for module in (adapters, halting, returning):
            monkeypatch.setattr(module, "shepherds", lambda: iter(self.shepherds))
        self.come()

    def come(self) -> None:
        """Another agent."""
        programs = {"commands": str(self.commands), "host": "here"}
        self.adapter = GridEngine(BatchSettings(system="gridengine", programs=programs))

    def shepherd(self, pid: int) -> Shepherd:
        config = self.config
        if "." in self.id:
            config = config | {"ja_task_id": self.id.partition(".")[2]}
        return Shepherd(
            pid=pid, task="7.1", part=self.part, config=config, directory=self.directory
        )

    def say(self, command: str, text: str, code: int = 0) -> None:
        """What a command answers from now on."""
        script = self.commands / command
        said = f"cat <<'END'\n{text}\nEND\nexit {code}\n"
        lines = f"echo {command} $* >>{self.path}/called\necho $TZ >{self.path}/zone\n{said}"
        script.write_text(f"#!/bin/sh\n{lines}")
        script.chmod(0o755)

    def stands(self, state: str, queue: str, *, start: float = 0.0, **context: str) -> None:
        """As `qstat` tells of the one job. `start`: in how many seconds it may begin."""
        number, _, task = self.id.partition(".")
        noted = "".join(
            f"<context_list><VA_variable>{name}</VA_variable><VA_value>{value}</VA_value>"
            "</context_list>"
            for name, value in (self.marks | context).items()
        )
        when = int(time.time() + start) if start else 0
        (self.path / "one").write_text(
            "<detailed_job_info><djob_info><element><JB_owner>a</JB_owner>"
            f"<JB_context>{noted}</JB_context><JB_execution_time>{when}</JB_execution_time>"
            f"<JB_type>{self.type}</JB_type>"
            "</element></djob_info></detailed_job_info>"
        )
        (self.path / "all").write_text(
            f"<job_info><job_list><JB_job_number>{number}</JB_job_number><state>{state}</state>"
            f"<queue_name>{queue}</queue_name><tasks>{task}</tasks></job_list></job_info>"
        )
        script = self.commands / "qstat"
        script.write_text(
            f'#!/bin/sh\ncd {self.path}\ncase "$*" in *-j*) cat one;; *) cat all;; esac\n'
        )
        script.chmod(0o755)

    def waits(self, *, start: float = returning.PUT_OFF - 5, **context: str) -> None:
        """It is back in the queue, and put off."""
        self.stands(*WAITS, start=start, **context)

    def called(self, command: str) -> list[str]:
        if not (self.path / "called").exists():
            return []
        lines = (self.path / "called").read_text().splitlines()
        return [line for line in lines if line.startswith(command)]

    def forget_calls(self) -> None:
        (self.path / "called").unlink(missing_ok=True)

    @property
    def job(self) -> BatchJob:
        return BatchJob(system="gridengine", id=self.id, uid=NOBODY)

    def bring_back(self, *, held: bool = True, task: Task | None = None) -> None:
        self.left = self.adapter.bring_back(self.job, task or Task(), "why", hold=False, held=held)

    def finish(self, *, hold: bool = False) -> None:
        self.adapter.finish(self.job, self.left, "why", hold=hold)

    def clear_away(self) -> None:
        """What is left of the lost run."""
        self.directory.rename(self.path / "gone")
        self.shepherds = []


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="encamp-") as path:
        yield Place(Path(path), monkeypatch)


def refused(work: Callable[[], object]) -> EncampError:
    with pytest.raises(EncampError) as raised:
        work()
    return raised.value


def lost(place: Place, *, hold: bool = False) -> None:
    """It is queued again, and put off."""
    place.bring_back()
    assert place.called("qalter") == place.called("qmod") == []
    assert isinstance(refused(lambda: place.finish(hold=hold)), EndingError)
    place.waits()


def put_off(line: str) -> float:
    """By how many seconds a command puts the start of its job off; the time is UTC's."""
    found = re.match(r"qalter -a ([0-9]{12}\.[0-9]{2}) ", line)
    assert found is not None, line
    start = datetime.strptime(f"{found[1]} +0000", "%Y%m%d%H%M.%S %z")
    return start.timestamp() - time.time()


LET_GO = ["qalter -ac encamp_back=over 7", "qalter -a 200001010000 7"]


def test_job_is_put_off_until_what_is_left_of_its_run_is_cleared_away(place: Place) -> None:
    lost(place)
    [line] = place.called("qalter")
    assert line.endswith(" -ac encamp_back=here,encamp=why,encamp_restarts=1 7")
    assert returning.PUT_OFF - 60 < put_off(line) <= returning.PUT_OFF
    assert (place.path / "zone").read_text() == "UTC0\n"
    assert place.called("qmod") == ["qmod -rj 7"]
    place.forget_calls()
    for _ in range(2):
        assert isinstance(refused(place.finish), EndingError)
    assert place.called("q") == []
    place.clear_away()
    place.finish()
    assert place.called("q") == LET_GO


def test_job_is_put_off_further_before_it_begins_by_itself(place: Place) -> None:
    lost(place)
    place.forget_calls()
    for start in (returning.PUT_OFF / 3, -5.0):
        place.waits(start=start)
        assert isinstance(refused(place.finish), EndingError)
    for line in place.called("q"):
        assert line.endswith(" 7")
        assert returning.PUT_OFF - 60 < put_off(line) <= returning.PUT_OFF


@pytest.mark.parametrize("start", [-5.0, returning.PUT_OFF + 2 * returning.SKEW])
def test_start_that_is_over_or_its_users_own_is_not_brought_forward(
    place: Place, start: float
) -> None:
    lost(place)
    place.waits(start=start)
    place.clear_away()
    place.finish()
    assert place.called("qalter")[1:] == ["qalter -ac encamp_back=over 7"]


def test_array_is_put_off_until_all_its_tasks_are_cleared_away(place: Place) -> None:
    place.id = "7.1"
    place.shepherds = [place.shepherd(4711)]
    place.stands(*RUNS)
    lost(place)
    [line] = place.called("qalter")
    assert line.endswith(" -ac encamp_back_1=here,encamp_1=why,encamp_restarts_1=1 7")
    assert place.called("qmod") == ["qmod -rj 7.1"]
    place.clear_away()
    for other, more in (("there", 1), ("over", 2)):
        place.forget_calls()
        place.waits(encamp_back_1="over", encamp_back_2=other, encamp_backs="x")
        place.finish()
        let_go = ["qalter -ac encamp_back_1=over 7", "qalter -a 200001010000 7"]
        assert place.called("qalter") == let_go[:more]


def test_job_that_is_to_be_held_is_held_by_its_user(place: Place) -> None:
    place.id = "7.1"
    place.shepherds = [place.shepherd(4711)]
    place.stands(*RUNS)
    lost(place, hold=True)
    assert place.called("qalter")[1:] == ["qalter -h u 7.1"]
    place.forget_calls()
    place.clear_away()
    place.finish(hold=True)
    assert place.called("qalter -h") == []


def test_job_comes_back_where_it_may_not_be_put_off(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.say("qalter", NOT_ALLOWED, code=1)
    lost(place)
    assert place.called("qmod") == ["qmod -rj 7"]
    assert "'encamp batch install gridengine' adds them" in caplog.text
    place.waits(start=0)
    place.clear_away()
    place.finish()


def test_job_does_not_come_back_before_it_is_put_off(place: Place) -> None:
    place.bring_back()
    for said, code in ((AWAY, Code.UNREACHABLE), ("something else", Code.COMMAND_FAILED)):
        place.say("qalter", said, code=1)
        assert refused(place.finish).code is code
    assert place.called("qmod") == []


@pytest.mark.parametrize("rescheduled", [True, False])
def test_next_agent_goes_on_where_a_killed_one_was(place: Place, rescheduled: bool) -> None:
    lost(place)
    if not rescheduled:
        place.stands(*RUNS)
    place.come()
    place.shepherds = []
    place.forget_calls()
    assert isinstance(refused(place.finish), EndingError)
    assert place.called("qmod") == ([] if rescheduled else ["qmod -rj 7"])
    place.waits()
    place.clear_away()
    place.finish()
    assert place.called("qalter")[-2:] == LET_GO


def test_refusal_to_queue_it_again_is_no_last_word(place: Place) -> None:
    """Grid Engine may just be learning of its end."""
    place.say("qmod", "job 7 is not running")
    place.bring_back()
    again = refused(place.finish)
    assert (again.transient, "is not running" in again.sentence) == (True, True)


def test_job_that_may_never_run_again_is_not_left_put_off(place: Place) -> None:
    """Other tasks of it may wait."""
    place.say("qmod", "The job 7 is not restartable")
    place.bring_back()
    place.stands(*RUNS, start=returning.PUT_OFF)
    final = refused(place.finish)
    assert (final.transient, "a second time" in final.sentence) == (False, True)
    assert place.called("qalter")[1:] == LET_GO


@pytest.mark.parametrize("same_host", [True, False])
def test_run_that_somebody_has_let_go_is_not_taken_for_the_lost_one(
    place: Place, same_host: bool
) -> None:
    lost(place)
    place.stands(*(("Rr", "main.q@here") if same_host else RUNS_ELSEWHERE))
    place.shepherds = [place.shepherd(4712)] if same_host else []
    place.forget_calls()
    place.finish()
    assert place.called("q") == []


def test_papers_that_are_kept_for_people_keep_no_job_waiting(place: Place) -> None:
    """KEEP_ACTIVE of execd_params has the directory stay for good. Else one that stays for long
    says that its daemon is away, and has told nothing."""
    lost(place)
    status = place.directory / "exit_status"
    status.write_text("137\n")
    place.say("qconf", "execd_params INHERIT_ENV=false,KEEP_ACTIVE=TRUE")
    assert isinstance(refused(place.finish), EndingError)
    long_ago = status.stat().st_mtime - returning.KEPT - 1
    os.utime(status, (long_ago, long_ago))
    for never in ("execd_params none", "execd_params KEEP_ACTIVE=false", "x y"):
        place.say("qconf", never)
        assert isinstance(refused(place.finish), EndingError)
    place.say("qconf", "execd_params INHERIT_ENV=false,KEEP_ACTIVE=TRUE")
    place.finish()


def test_job_that_is_not_there_any_more_is_not_brought_back(place: Place) -> None:
    lost(place)
    (place.path / "one").write_text("<detailed_job_info/>")
    for work in (place.finish, place.bring_back):
        final = refused(work)
        assert (final.transient, "forgotten" in final.sentence) == (False, True)


def test_exit_code_that_means_nothing_is_not_relied_upon(place: Place) -> None:
    place.config["forbid_reschedule"] = "1"
    place.shepherds = [place.shepherd(4711)]
    back = place.adapter.give_back(place.job, Task(), "why", hold=False)
    assert (back.exit_code, place.called("qalter"), place.called("qmod")) == (99, [], [])
    place.left = back.left
    assert isinstance(refused(place.finish), EndingError)
    assert place.called("qmod") == ["qmod -rj 7"]
    place.say("qconf", QUEUE.replace("TRUE", "FALSE"))
    place.come()
    final = refused(lambda: place.adapter.give_back(place.job, Task(), "why", hold=False))
    assert (final.transient, "a second time" in final.sentence) == (False, True)


def test_master_that_does_not_tell_whether_it_may_is_waited_for(place: Place) -> None:
    place.say("qconf", AWAY, code=1)
    assert refused(place.bring_back).transient
    assert place.adapter.describe("7").requeue is None
    place.say("qconf", QUEUE.replace("TRUE", "FALSE"))
    final = refused(place.bring_back)
    assert (final.code, final.transient) == (Code.WRONG_STATE, False)
    assert place.called("qmod") == place.called("qalter") == []


def test_job_is_put_back_when_tasks_of_it_on_its_host_have_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = place.directory / "1.here"
    task.mkdir()
    place.bring_back()
    usage = place.directory / "usage"
    usage.unlink()  # Somebody keeps the end of its starter from Grid Engine.
    for _ in range(2):
        waits = refused(place.finish)
        assert (waits.transient, isinstance(waits, EndingError)) == (True, False)
    assert place.called("qalter") == place.called("qmod") == []
    task.rmdir()
    assert isinstance(refused(place.finish), EndingError)
    assert place.called("qmod") == ["qmod -rj 7"]
    # Nor are they waited for when Grid Engine has seen that the script has ended, and forgets it;
    task.mkdir()
    place.forget_calls()
    usage.write_text("signal=9\n")
    assert isinstance(refused(place.finish), EndingError)
    assert place.called("qmod") == ["qmod -rj 7"]
    # or without end.
    usage.unlink()
    place.forget_calls()
    monkeypatch.setattr(returning, "TASKS_END", -1.0)
    assert isinstance(refused(place.finish), EndingError)
    assert place.called("qmod") == ["qmod -rj 7"]


def test_script_is_not_let_go_of_before_its_tasks(place: Place) -> None:
    """Also if the job is back in the queue already, because of one of them."""
    task = place.directory / "1.here"
    task.mkdir()
    place.bring_back()
    (place.directory / "usage").unlink()
    place.waits()
    waits = refused(place.finish)
    assert (waits.transient, isinstance(waits, EndingError)) == (True, False)
    task.rmdir()
    assert isinstance(refused(place.finish), EndingError)
    place.clear_away()
    place.finish()
    assert place.called("qalter")[-1] == "qalter -a 200001010000 7"


@pytest.mark.parametrize("agents", [1, 2])
def test_job_whose_tasks_went_with_its_script_waits_until_nobody_speaks_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, agents: int
) -> None:
    """The daemon tells of the task once more, and the master could take that for the end of the
    next run."""
    (place.directory / "1.here").mkdir()
    place.bring_back()
    place.waits()
    assert isinstance(refused(place.finish), EndingError)
    place.clear_away()
    if agents == 2:
        place.come()
    settles(place, monkeypatch)


def settles(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is brought forward after two reports of its daemon's, of which the host has its own
    time."""
    place.say("qconf", "load_report_time 00:01:30")
    place.forget_calls()
    now = time.monotonic()
    for later, is_over in ((0.0, False), (185.0, False), (195.0, True)):
        monkeypatch.setattr(time, "monotonic", lambda later=later: now + later)
        assert place.called("qalter") == []
        if is_over:
            place.finish()
        else:
            assert isinstance(refused(place.finish), EndingError)
    assert "qalter -a 200001010000 7" in place.called("qalter")


@pytest.mark.parametrize(("text", "amount"), [("00:01:30", 90.0), ("15", 15.0), ("odd", 40.0)])
def test_times_of_grid_engine_are_read(text: str, amount: float) -> None:
    assert returning.seconds(text) == amount


# ── programs that a job has begun on other hosts ─────────────────────────────────────────────────

TASK = Task(step="1.here")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "NOTICED", 0.0)


@pytest.fixture
def with_task(place: Place) -> Place:
    """Of a job whose script is elsewhere."""
    place.directory /= TASK.step
    place.directory.mkdir()
    for name in ("trace", "usage"):
        (place.directory.parent / name).rename(place.directory / name)
    place.config |= {"pe": "mpi", "qrsh_control_port": "there:4000"}
    place.part = TASK.step
    place.shepherds = [place.shepherd(4711)]
    place.stands("r", "main.q@there")
    return place


def test_with_a_task_all_of_its_job_comes_back_when_both_hosts_are_cleared(
    with_task: Place,
) -> None:
    with_task.bring_back(task=TASK)
    assert isinstance(refused(with_task.finish), EndingError)
    [line] = with_task.called("qalter")
    marks = "encamp_back=there,encamp_back_1.here=here"
    assert line.endswith(f" -ac {marks},encamp=why,encamp_restarts=1 7")
    assert with_task.called("qmod") == ["qmod -rj 7"]
    with_task.waits()
    assert isinstance(refused(with_task.finish), EndingError)
    with_task.clear_away()
    let_go = ["qalter -ac encamp_back_1.here=over 7", "qalter -a 200001010000 7"]
    with_task.marks = {"encamp_back_1.here": "over"}
    for other, more in (("there", 1), ("over", 2)):
        with_task.forget_calls()
        with_task.waits(encamp_back=other)
        with_task.finish()
        assert with_task.called("qalter") == let_go[:more]


def test_task_whose_job_went_with_it_waits_until_nobody_speaks_of_it(
    with_task: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_task.bring_back(task=TASK)
    with_task.waits(encamp_back="over")
    assert isinstance(refused(with_task.finish), EndingError)
    with_task.clear_away()
    with_task.directory.parent.rename(with_task.path / "gone-too")
    with_task.marks = {"encamp_back_1.here": "over"}
    with_task.waits(encamp_back="over")
    settles(with_task, monkeypatch)


@pytest.fixture
def script(with_task: Place) -> Iterator[psutil.Process]:
    """The shepherd of its script, on the same host."""
    with subprocess.Popen(["sleep", "600"]) as process:
        main = msgspec.structs.replace(
            with_task.shepherd(process.pid), part="", directory=with_task.directory.parent
        )
        with_task.shepherds.append(main)
        with_task.stands("r", "main.q@here")
        yield psutil.Process(process.pid)
        for waker in wakers_of(psutil.Process(process.pid)):
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(waker.pid), signal.SIGKILL)
        process.kill()


def stands_still(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def put_back(place: Place, script: psutil.Process) -> None:
    place.bring_back(task=TASK)
    assert not stands_still(script)
    assert isinstance(refused(place.finish), EndingError)
    os.waitid(os.P_PID, script.pid, os.WSTOPPED)
    assert place.called("qmod") == ["qmod -rj 7"]
    place.waits(encamp_back="here")


@pytest.mark.parametrize("agents", [1, 2])
def test_script_stands_still_until_grid_engine_has_heard_of_its_tasks(
    with_task: Place, script: psutil.Process, agents: int
) -> None:
    """Else its daemon would never begin the job again."""
    other = with_task.directory.with_name("2.here")
    other.mkdir()
    put_back(with_task, script)
    if agents == 2:
        with_task.come()
    for task in (with_task.directory, other):
        assert isinstance(refused(with_task.finish), EndingError)
        assert stands_still(script)
        task.rename(with_task.path / task.name)
    with_task.finish()
    os.waitid(os.P_PID, script.pid, os.WCONTINUED)


@pytest.mark.parametrize("is_there", [False, True])
def test_script_stands_still_whatever_becomes_of_another_task(
    with_task: Place, script: psutil.Process, is_there: bool
) -> None:
    """Several may be lost at once, of which one brings the job back, and another one comes late."""
    other = with_task.directory.with_name("2.here")
    shutil.copytree(with_task.directory, other)
    put_back(with_task, script)
    shepherd = msgspec.structs.replace(with_task.shepherd(4712), part=other.name, directory=other)
    if is_there:
        with_task.shepherds.append(shepherd)
    with_task.stands("r", "main.q@here")
    with_task.say("qmod", "")
    lost = returning.Lost(shepherd=shepherd.pid, directory=str(other), part=other.name)
    left = msgspec.json.encode(lost).decode()
    with suppress(EncampError):
        with_task.adapter.finish(with_task.job, left, "why", hold=False)
    assert stands_still(script)


@pytest.mark.parametrize("said", ["what nobody understands", AWAY])
def test_script_goes_on_if_its_job_could_not_be_put_back(
    with_task: Place, script: psutil.Process, said: str
) -> None:
    with_task.bring_back(task=TASK)
    with_task.say("qmod", said, code=1 if said is AWAY else 0)
    for _ in range(2):
        assert refused(with_task.finish).transient
        os.waitid(os.P_PID, script.pid, os.WCONTINUED)
        assert not stands_still(script)
    assert wakers_of(script) == []


def test_time_in_which_a_script_stands_still_begins_when_it_does(
    with_task: Place, script: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_task.bring_back(task=TASK)
    with_task.say("qmod", AWAY, code=1)
    refused(with_task.finish)
    os.waitid(os.P_PID, script.pid, os.WCONTINUED)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + halting.HEARD + 1)
    with_task.say("qmod", RESCHEDULED)
    assert isinstance(refused(with_task.finish), EndingError)
    assert stands_still(script)
    with_task.waits(encamp_back="here")
    assert isinstance(refused(with_task.finish), EndingError)
    assert stands_still(script)


def wakers_of(script: psutil.Process) -> list[psutil.Process]:
    """Processes that are to have it go on, should nobody else."""
    found = {
        each.pid: each
        for each in psutil.process_iter(["cmdline", "ppid"])
        if {"encamp-waker", str(script.pid)} <= {*(each.info["cmdline"] or ())}
    }
    # A shell's child has its words until it becomes the program that it runs.
    return [each for each in found.values() if each.info["ppid"] not in found]


@pytest.fixture
def one_processor() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_processor")
def test_waker_that_is_not_needed_any_more_is_gone(script: psutil.Process) -> None:
    """Not only killed. With one processor it has not ended yet when its killer goes on at once."""
    for _ in range(20):
        waker = halting.Waker(script)
        (process,) = wakers_of(script)
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        ended = os.pidfd_open(process.pid)
        waker.close()
        is_over = select.select([ended], [], [], 0)[0]
        os.close(ended)
        assert is_over


def test_script_goes_on_by_itself_when_no_agent_has_it_go_on(
    with_task: Place, script: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halting, "HEARD", 0.2)
    monkeypatch.setattr(halting, "LATE", 0.2)
    put_back(with_task, script)
    os.waitid(os.P_PID, script.pid, os.WCONTINUED)
    psutil.wait_procs(wakers_of(script), 30)
    refused(with_task.finish)


def test_nobody_is_woken_who_does_not_stand_still(
    with_task: Place, script: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever process has got the number of the shepherd meanwhile."""
    monkeypatch.setattr(halting, "HEARD", 0.2)
    monkeypatch.setattr(halting, "LATE", 0.2)
    monkeypatch.setattr(psutil.Process, "suspend", lambda process: None)
    with_task.bring_back(task=TASK)
    refused(with_task.finish)
    assert not psutil.wait_procs(wakers_of(script), 30)[1]
    assert os.waitid(os.P_PID, script.pid, os.WCONTINUED | os.WNOHANG) is None


def test_tasks_that_ended_long_ago_are_not_waited_for(with_task: Place) -> None:
    """There are sites that keep their directories."""
    assert halting.has_tasks(with_task.directory.parent)
    status = with_task.directory / "exit_status"
    status.write_text("0\n")
    assert halting.has_tasks(with_task.directory.parent)
    os.utime(status, (0, time.time() - halting.HEARD - 1))
    assert not halting.has_tasks(with_task.directory.parent)


@pytest.mark.parametrize("why", ["late", "deleted", "refused"])
def test_script_does_not_stand_still_for_longer(
    with_task: Place, script: psutil.Process, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "refused":
        with_task.bring_back(task=TASK)
        with_task.say("qmod", "Job 7 is not restartable")
    else:
        put_back(with_task, script)
    if why == "late":
        assert isinstance(refused(with_task.finish), EndingError)
        monkeypatch.setattr(halting, "HEARD", 0.0)
    elif why == "deleted":
        with_task.say("qstat", "", code=1)
    refused(with_task.finish)
    os.waitid(os.P_PID, script.pid, os.WCONTINUED)


def test_task_that_grid_engine_has_seen_to_its_end_brings_nothing_back(with_task: Place) -> None:
    """What it says of the job then is of the next run, or final."""
    with_task.bring_back(task=TASK)
    with_task.shepherds = [with_task.shepherd(4712)]
    with_task.finish()
    assert with_task.called("qmod") == with_task.called("qalter") == []


def test_task_that_nobody_waits_for_any_more_brings_nothing_back(with_task: Place) -> None:
    """Its shepherd has ended it since the job's script has ended."""
    with_task.bring_back(task=TASK)
    trace = with_task.directory / "trace"
    trace.write_text("commlib_to_pty: was connected, but lost connection -> exiting\n")
    with_task.finish()
    assert with_task.called("qmod") == with_task.called("qalter") == []
    assert "has ended the job" in refused(lambda: with_task.bring_back(task=TASK)).sentence


@pytest.mark.parametrize("task", [Task(), TASK])
def test_next_agent_has_a_job_begin_of_which_nothing_is_left(
    place: Place, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen nothing of the run that another host has put back, or what became of that."""
    place.clear_away()
    part = "" if task.is_script else task.step
    place.marks = {"encamp_back": "over", returning.mark("7", part): "here"}
    place.waits()
    place.come()
    place.bring_back(task=task, held=False)
    assert place.left
    place.marks[returning.mark("7", part)] = "over"
    place.waits()
    settles(place, monkeypatch)


def test_run_of_which_nothing_was_seen_is_not_put_back(place: Place) -> None:
    """What is listed here by now is the next one."""
    place.clear_away()
    place.waits(encamp_back="here")
    place.come()
    place.bring_back(held=False)
    place.stands("t", "main.q@here", encamp_back="here")
    place.finish()
    assert place.called("qmod") == []


def test_job_that_is_migrated_is_grid_engines(place: Place) -> None:
    with (place.directory / "trace").open("a") as trace:
        trace.write("11/18/2026 06:00:09 [106:7]: queued signal TTOU\n")
    assert "has ended the job" in refused(place.bring_back).sentence


def test_script_that_is_gone_when_it_is_given_back_is_waited_for(place: Place) -> None:
    """Grid Engine was faster."""
    place.adapter.describe("7")
    place.waits(encamp_back="here")
    (place.directory / "trace").write_text("mapped signal KILL to signal KILL\n")
    place.shepherds = []
    back = place.adapter.give_back(place.job, Task(), "why", hold=False)
    assert "active_jobs" in back.left


def test_task_of_a_job_that_goes_on_elsewhere_was_not_given_back(with_task: Place) -> None:
    with_task.clear_away()
    final = refused(lambda: with_task.bring_back(task=TASK))
    assert "forgotten" in final.sentence


def test_task_is_given_back_with_its_job(with_task: Place) -> None:
    back = with_task.adapter.give_back(with_task.job, TASK, "why", hold=False)
    assert (back.exit_code, "1.here" in back.left) == (75, True)
    assert with_task.adapter.describe("7").requeue is True
    assert with_task.called("qmod") == []


def test_task_of_a_job_that_somebody_sits_before_does_not_come_back(with_task: Place) -> None:
    with_task.type = 8
    with_task.stands("r", "main.q@there")
    assert with_task.adapter.describe("7").requeue is False
    final = refused(lambda: with_task.bring_back(task=TASK))
    assert (final.transient, final.sentence) == (False, "Only batch jobs can be queued again.")
    back = with_task.adapter.give_back(with_task.job, TASK, "why", hold=False)
    assert (back.exit_code, back.left) == (75, "")


@pytest.mark.parametrize("cleared", [True, False])
def test_run_that_ends_because_another_host_has_put_its_job_back_is_waited_for(
    place: Place, cleared: bool
) -> None:
    """Grid Engine has killed it then."""
    place.adapter.describe("7")
    (place.directory / "trace").write_text("mapped signal KILL to signal KILL\n")
    place.stands(*RUNS, encamp_back="here")
    assert "has ended the job" in refused(place.bring_back).sentence
    place.waits(encamp_back="there")
    assert "has ended the job" in refused(place.bring_back).sentence
    place.waits(encamp_back="here")
    if cleared:
        place.clear_away()
    place.bring_back()
    if not cleared:
        assert isinstance(refused(place.finish), EndingError)
        assert place.called("qalter") == []
        place.clear_away()
    place.waits(encamp_back="over")
    place.finish()
    assert place.called("qalter") == LET_GO
    assert place.called("qmod") == []


@pytest.mark.parametrize("stands", [RUNS, RUNS_ELSEWHERE, WAITS])
def test_job_is_in_the_queue_only_if_it_waits(place: Place, stands: tuple[str, str]) -> None:
    place.stands(*stands)
    assert place.adapter.is_queued("7") == (stands == WAITS)
    assert not place.adapter.is_queued("8")


def test_job_that_was_here_and_runs_elsewhere_was_given_back(place: Place) -> None:
    place.stands(*RUNS_ELSEWHERE)
    place.clear_away()
    place.bring_back()
    assert place.left == ""


def test_papers_of_any_size_cost_nothing(place: Place) -> None:
    """The trace is the job's own file."""
    os.truncate(place.directory / "trace", 1 << 40)
    final = refused(place.bring_back)
    assert (final.transient, "does not tell" in final.sentence) == (False, True)
    (place.directory / "trace").unlink()
    os.mkfifo(place.directory / "trace")
    assert "does not tell" in refused(place.bring_back).sentence
