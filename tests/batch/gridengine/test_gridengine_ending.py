"""A job whose starter was killed is asked for back where its shepherd has left its papers: once for
each run, and whatever the job's user has made of them. Grid Engine's commands are played here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from encamp.batch.gridengine import adapter as adapters
from encamp.batch.gridengine.adapter import GridEngine
from encamp.batch.gridengine.ending import NO_ROOM
from encamp.batch.gridengine.shepherd import Shepherd
from encamp.model.batch import BatchJob, BatchSettings, Task
from encamp.model.errors import Code, EncampError
from tests.site.siting import root_only

pytestmark = root_only

NOBODY = 65534
JOB = BatchJob(system="gridengine", id="7", uid=NOBODY)
DETAIL = (
    "<detailed_job_info><djob_info><element><JB_owner>a</JB_owner></element></djob_info>"
    "</detailed_job_info>"
)
QUEUE = "qname main.q\nrerun TRUE\n"
RUNS_HERE = (
    "<job_info><queue_info><job_list state='running'><JB_job_number>7</JB_job_number>"
    "<state>r</state><queue_name>main.q@here</queue_name></job_list></queue_info></job_info>"
)
AWAY = "unable to contact qmaster"


class Place:
    """A host of Grid Engine's with one job."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.directory = path / "active_jobs" / "7.1"
        self.directory.mkdir(parents=True)
        os.chown(self.directory, NOBODY, NOBODY)
        for name, text in (("trace", "starting job\n"), ("usage", "signal=9\n")):
            (self.directory / name).write_text(text)
        self.commands = path / "commands"
        self.commands.mkdir()
        self.say("qconf", QUEUE)
        self.say("qalter", "")
        self.say("qmod", "")
        self.asked(RUNS_HERE)
        self.pid = 4711
        monkeypatch.setattr(adapters, "shepherds", lambda: iter([self.shepherd]))
        programs = {"commands": str(self.commands), "host": "here"}
        self.adapter = GridEngine(BatchSettings(system="gridengine", programs=programs))

    @property
    def shepherd(self) -> Shepherd:
        config = {"host": "here", "queue": "main.q", "job_owner": "nobody"}
        return Shepherd(pid=self.pid, task="7.1", part="", config=config, directory=self.directory)

    def say(self, command: str, text: str, code: int = 0) -> None:
        """What a command answers from now on."""
        script = self.commands / command
        lines = f"echo {command} $* >>{self.path}/called\ncat <<'END'\n{text}\nEND\nexit {code}\n"
        script.write_text(f"#!/bin/sh\n{lines}")
        script.chmod(0o755)

    def asked(self, jobs: str) -> None:
        """`qstat` tells of one job, or of all."""
        (self.path / "one").write_text(DETAIL)
        (self.path / "all").write_text(jobs)
        script = self.commands / "qstat"
        script.write_text(
            f"#!/bin/sh\ncd {self.path}\ncase $* in *-j*) cat one;; *) cat all;; esac\n"
        )
        script.chmod(0o755)

    def called(self, command: str) -> list[str]:
        lines = (self.path / "called").read_text().splitlines()
        return [line for line in lines if line.startswith(command)]

    def bring_back(
        self, *, hold: bool = False, held: bool = True, task: Task | None = None
    ) -> None:
        self.adapter.bring_back(JOB, task or Task(), "why", hold=hold, held=held)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where others than root can pass through, too."""
    with tempfile.TemporaryDirectory(prefix="encamp-") as path:
        Path(path).chmod(0o755)
        yield Place(Path(path), monkeypatch)


def refused(work: Callable[[], None]) -> EncampError:
    with pytest.raises(EncampError) as raised:
        work()
    return raised.value


def test_mark_is_left_by_whom_the_directory_belongs_to(place: Place) -> None:
    """Where it is on a server, root may be nobody there."""
    place.bring_back()
    assert (place.directory / NO_ROOM).stat().st_uid == NOBODY


def test_job_is_held_and_queued_again_where_no_mark_can_be_left(place: Place) -> None:
    place.directory.chmod(0o500)
    place.bring_back()
    assert not (place.directory / NO_ROOM).exists()
    assert place.called("qalter -h") == ["qalter -h u 7"]
    assert place.called("qmod") == ["qmod -rj 7"]


def test_master_that_does_not_tell_whether_it_may_is_waited_for(place: Place) -> None:
    place.say("qconf", AWAY, code=1)
    assert refused(place.bring_back).transient
    assert place.adapter.describe("7").requeue is None
    place.say("qconf", QUEUE.replace("TRUE", "FALSE"))
    final = refused(place.bring_back)
    assert (final.code, final.transient) == (Code.WRONG_STATE, False)
    assert not (place.directory / NO_ROOM).exists()


def test_one_run_is_asked_for_once(place: Place) -> None:
    """Whoever lets a held job go meanwhile does not find it held again."""
    for _ in range(3):
        assert refused(lambda: place.bring_back(hold=True, held=False)).transient
    assert len(place.called("qalter -h")) == len(place.called("qalter -ac")) == 1
    place.asked(RUNS_HERE.replace("<state>r<", "<state>Rq<"))
    place.bring_back(hold=True, held=False)
    assert len(place.called("qalter -h")) == 1


def test_next_run_on_the_same_host_is_not_taken_for_the_lost_one(place: Place) -> None:
    assert refused(lambda: place.bring_back(held=False)).transient
    (place.directory / NO_ROOM).unlink()
    place.pid += 1
    place.bring_back(held=False)
    assert not (place.directory / NO_ROOM).exists()


def test_task_of_a_job_that_goes_on_elsewhere_was_not_given_back(place: Place) -> None:
    place.asked(RUNS_HERE.replace("@here", "@there"))
    place.directory.rename(place.path / "gone")
    assert (
        "Only batch jobs" in refused(lambda: place.bring_back(task=Task(step="1.there"))).sentence
    )


def test_papers_of_any_size_cost_nothing(place: Place) -> None:
    """The trace is the job's own file."""
    os.truncate(place.directory / "trace", 1 << 40)
    final = refused(place.bring_back)
    assert (final.transient, "does not tell" in final.sentence) == (False, True)
    (place.directory / "trace").unlink()
    os.mkfifo(place.directory / "trace")
    assert "does not tell" in refused(place.bring_back).sentence
