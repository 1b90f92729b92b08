"""Jobs of batch systems on the command line: with a manager, and on a host that has none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.cli import batch_jobs, batch_why
from encamp.cli.batch_standing import jobs_here
from encamp.cli.batch_why import NAME, explanation
from encamp.cli.main import run_command
from encamp.door import questions
from encamp.door.peer import Peer
from encamp.model.batch import JobStanding
from encamp.model.batch_record import BatchRecord, Outcome
from encamp.model.errors import Code, EncampError
from encamp.model.request import Explanation, Reason
from tests.cli.sample_manager import Answering, answered
from tests.cli.sample_site import ESCAPE, Site

Ask = Callable[..., tuple[int, str, str]]
"""Runs a command line: its exit code, and what it printed on both streams."""

NOW = time.time()


def record(id: str, outcome: Outcome = Outcome.DONE, **fields: Any) -> BatchRecord:
    usual = BatchRecord(
        key=f"k{id}",
        system="slurm",
        id=id,
        uid=1000,
        user="alice",
        environment="debian12",
        host="node1",
        machine="abcdef0123456789",
        name="analysis",
        came=NOW - 90,
        begun=NOW - 89,
        ended=NOW - 60,
        outcome=outcome,
    )
    return msgspec.structs.replace(usual, **fields)


RUNNING = record("17", Outcome.RUNNING, ended=0.0)
DONE = record("16", exit_code=3)
BACK = record("15", Outcome.GIVEN_BACK, begun=0.0, tries=3, reason=f"no {ESCAPE} room")


class Batch(Answering):
    """A manager, or an agent, to which jobs came."""

    def __init__(self, *records: BatchRecord) -> None:
        super().__init__(Site(NOW))
        self.records = records or (RUNNING, DONE, BACK)
        self.left_out: tuple[questions.LeftOut, ...] = ()
        self.whys: dict[str, Explanation] = {}

    async def _items(self, peer: Peer, question: questions.Question) -> list[msgspec.Struct]:
        match question:
            case questions.AskBatchJobs():
                wanted = question.id.rpartition(":")[2]
                found = [r for r in self.records if not wanted or r.id.split("_")[0] == wanted]
                exact = [r for r in self.records if r.id == wanted]
                chosen = exact or found
                if question.under_way:
                    chosen = [r for r in chosen if r.outcome is Outcome.RUNNING]
                return [*self.left_out, *chosen[: question.last]]
            case questions.AskWhy():
                if question.id in self.whys:
                    return [self.whys[question.id]]
                raise EncampError(Code.USAGE, f"Nothing on this site is '{question.id}'.")
        return await super()._items(peer, question)


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: str) -> tuple[int, str, str]:
        code = run_command(list(words))
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site and no batch system of this machine's own."""
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setenv("ENCAMP_AGENT_DOOR", str(tmp_path / "agent.sock"))
    monkeypatch.setattr(batch_why, "standing_of", lambda name, system: None)


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batch]:
    monkeypatch.setenv("ENCAMP_DOOR", str(tmp_path / "door.sock"))
    made = Batch()
    with answered(tmp_path / "door.sock", made):
        yield made


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Batch]:
    """That of a host without a manager."""
    made = Batch()
    with answered(tmp_path / "agent.sock", made):
        yield made


# ── lists ────────────────────────────────────────────────────────────────────────────────────────


def test_what_runs_is_listed_with_whose_where_and_in_what(manager: Batch, ask: Ask) -> None:
    code, out, _ = ask("jobs", "--batch")
    assert code == 0
    (row,) = [line for line in out.splitlines() if "slurm:17" in line]
    for word in ("alice", "debian12", "running", "node1", "abcdef01", "analysis"):
        assert word in row
    assert "slurm:16" not in out


def test_what_is_over_is_listed_with_how_it_went(manager: Batch, ask: Ask) -> None:
    code, out, _ = ask("jobs", "--batch", "--all", "--last", "7")
    assert code == 0
    assert "done (3)" in out
    assert "given back" in out
    assert "room" in out
    assert "\x1b" not in out
    assert manager.asked[-1] == questions.AskBatchJobs(last=7)


def test_json_is_the_records(manager: Batch, ask: Ask) -> None:
    code, out, _ = ask("jobs", "--batch", "--all", "--json")
    assert code == 0
    assert msgspec.convert(json.loads(out), list[BatchRecord]) == [RUNNING, DONE, BACK]


def test_hosts_that_do_not_answer_are_named(manager: Batch, ask: Ask) -> None:
    manager.left_out = (questions.LeftOut("node9", "is lost: nothing was heard"),)
    code, out, err = ask("jobs", "--batch")
    assert code == 0
    assert "slurm:17" in out
    assert "node9 is lost: nothing was heard. What came there is not told." in err


def test_where_there_is_no_manager_the_host_itself_is_asked(agent: Batch, ask: Ask) -> None:
    code, out, _ = ask("jobs", "--batch")
    assert code == 0
    assert "slurm:17" in out


def test_ordinary_users_have_their_jobs_on_this_host_told_by_its_agent(
    agent: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert jobs_here() == [RUNNING]
    assert jobs_here()[0].outcome is Outcome.RUNNING


def test_ordinary_users_are_told_of_no_jobs_where_there_is_no_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert jobs_here() == []


def test_a_manager_that_was_named_is_not_passed_over(
    agent: Batch, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_DOOR", str(tmp_path / "gone.sock"))
    code, out, err = ask("jobs", "--batch")
    assert code == Code.UNREACHABLE.value
    assert "slurm:17" not in out
    assert "No manager answers" in err


def test_where_there_is_nobody_it_is_said(ask: Ask) -> None:
    code, _, err = ask("jobs", "--batch")
    assert code == Code.UNREACHABLE.value
    assert "No manager answers" in err
    assert "each host with an agent tells of its own jobs" in err


def test_that_there_is_none_is_said(manager: Batch, ask: Ask) -> None:
    manager.records = (DONE,)
    code, out, _ = ask("jobs", "--batch")
    assert code == 0
    assert "No job of a batch system is in a machine." in out


# ── why ──────────────────────────────────────────────────────────────────────────────────────────


def test_why_tells_of_a_batch_job_by_both_names(manager: Batch, ask: Ask) -> None:
    for name in ("slurm:15", "15"):
        code, out, err = ask("why", name)
        assert (code, err) == (0, "")
        assert "slurm:15" in out
        assert "node1 gave it back to the queue" in out
        assert "tried 3 times" in out
        assert "its batch system begins it again" in out


def test_why_works_on_a_host_without_a_manager(agent: Batch, ask: Ask) -> None:
    for name in ("slurm:17", "17"):
        code, out, _ = ask("why", name)
        assert code == 0
        assert "it runs in machine abcdef01 on node1" in out


def test_a_number_that_is_also_an_id_of_the_sites_own_is_not_guessed(
    manager: Batch, ask: Ask
) -> None:
    manager.whys["15"] = Explanation(
        kind="job", id="15ab" * 8, state="waiting", reason=Reason(sentence="no room")
    )
    code, _, err = ask("why", "15")
    assert code == Code.USAGE.value
    assert "Both batch job slurm:15 and job 15ab" in err
    assert "Write slurm:15" in err
    code, out, _ = ask("why", "slurm:15")
    assert (code, "gave it back" in out) == (0, True)


def test_what_nobody_knows_is_said(manager: Batch, ask: Ask) -> None:
    code, _, err = ask("why", "slurm:4711")
    assert code == Code.USAGE.value
    assert "Nobody knows of a job slurm:4711 that you may see." in err
    code, _, err = ask("why", "slrm:4711")
    assert "no adapter for a batch system 'slrm'. Did you mean 'slurm'?" in err
    code, _, err = ask("why", "4711")
    assert "Nothing on this site is '4711'." in err


@pytest.mark.parametrize("name", ["slurm:x", "gridengine:", "pbs:17x"])
def test_what_is_no_number_of_a_job_is_said(ask: Ask, name: str) -> None:
    """Also where nobody answers."""
    code, _, err = ask("why", name)
    system, _, number = name.partition(":")
    assert code == Code.USAGE.value
    assert f"'{number}' is not the number of a job of {system}." in err
    assert f"{system}:17" in err


def test_a_host_that_is_away_may_know(manager: Batch, ask: Ask) -> None:
    manager.left_out = (questions.LeftOut("node9", "is lost"),)
    code, _, err = ask("why", "slurm:4711")
    assert code == Code.UNREACHABLE.value
    assert "node9 is lost" in err


def test_jobs_of_two_batch_systems_with_one_number_are_told_apart(manager: Batch, ask: Ask) -> None:
    manager.records = (RUNNING, msgspec.structs.replace(RUNNING, system="gridengine"))
    code, _, err = ask("why", "17")
    assert code == Code.USAGE.value
    assert "Write gridengine:17 or slurm:17." in err


def test_a_job_that_waits_is_known_by_its_batch_system(
    manager: Batch, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = JobStanding(state="PENDING", reason="Resources", environment="sl7", waits=True)
    monkeypatch.setattr(batch_why, "standing_of", lambda name, system: standing)
    code, out, _ = ask("why", "slurm:99")
    assert code == 0
    assert "waiting (PENDING)" in out
    assert "the batch system says: Resources; it wants environment 'sl7'" in out


WAITS = JobStanding(state="PENDING", reason="BeginTime", waits=True)
HELD = JobStanding(state="PENDING", reason="JobHeldAdmin", waits=True, held=True)
TIED = JobStanding(state="hRq", waits=True, held=True, release="qrls 15")


@pytest.mark.parametrize(
    ("latest", "standing", "state", "because", "next"),
    [
        (BACK, None, "given back", "gave it back", "begins it again"),
        (BACK, WAITS, "waiting (PENDING)", "the batch system says: BeginTime", "begins it again"),
        (record("15", Outcome.HELD), HELD, "held (PENDING)", "to be held", "scontrol release 15"),
        (record("15", Outcome.HELD), None, "held", "to be held", "scontrol release 15"),
        (record("15", Outcome.HELD), TIED, "held (hRq)", "to be held", "released: qrls 15"),
        (BACK, JobStanding(state="COMPLETED"), "given back", "gave it back", ""),
        (RUNNING, JobStanding(state="RUNNING"), "running", "it runs in machine abcdef01", ""),
        (DONE, None, "done (3)", "with 3", ""),
        (record("1", Outcome.KILLED, signal=9), None, "killed (signal 9)", "by signal 9", ""),
        (record("1", Outcome.LOST), None, "lost", "is gone", ""),
        (record("1", Outcome.PLAIN), None, "plain", "without a machine", ""),
    ],
)
def test_what_hosts_and_the_batch_system_know_is_put_together(
    latest: BatchRecord, standing: JobStanding | None, state: str, because: str, next: str
) -> None:
    found = explanation(latest.id, [latest, record(latest.id, Outcome.GIVEN_BACK)], standing)
    assert found is not None
    assert found.state == state
    assert because in found.reason.sentence
    assert next in found.reason.next
    assert bool(next) is bool(found.reason.next)
    assert len(found.history) == 2


def test_what_both_know_is_said_once() -> None:
    latest = record("15", Outcome.GIVEN_BACK, reason="no room")
    standing = JobStanding(state="PENDING", reason="Encamp: no room", waits=True)
    found = explanation("15", [latest], standing)
    assert found is not None
    assert found.reason.sentence.count("no room") == 1
    other = explanation("15", [latest], msgspec.structs.replace(standing, reason="Priority"))
    assert other is not None
    assert "the batch system says: Priority" in other.reason.sentence


def test_tasks_of_an_array_are_told_together_and_each_by_itself() -> None:
    records = [record("17_1"), record("17_2", Outcome.RUNNING, ended=0.0), record("17_3")]
    found = explanation("slurm:17", records, None)
    assert found is not None
    assert (found.id, found.state) == ("slurm:17", "2 done, 1 running")
    assert len(found.history) == 3
    one = explanation("17_2", records[1:2], None)
    assert one is not None
    assert (one.id, one.state) == ("slurm:17_2", "running")


@pytest.mark.parametrize("name", ["17", "17_3", "17.3", "slurm:17", "gridengine:17.1"])
def test_such_names_may_be_batch_jobs(name: str) -> None:
    assert NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["3f2a", "node1", "slurm:", "slurm:x", "", "17x", "Slurm:17"])
def test_such_names_are_none(name: str) -> None:
    assert NAME.fullmatch(name) is None


def test_the_agents_door_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENCAMP_AGENT_DOOR")
    assert batch_jobs.agent_door() == Path("/run/encamp/agent")
