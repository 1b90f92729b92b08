"""One record for each run of a batch job, whatever happens to the agent that writes it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from encamp.agent.bait import records
from encamp.agent.bait.records import IN_ONE_FILE, KEPT, MOST, Records, count_running, found
from encamp.home import Home
from encamp.model.batch import BatchJob
from encamp.model.batch_record import BatchRecord, Outcome

NOW = time.time()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr("encamp.agent.bait.records.time.time", lambda: NOW)
    return Home(tmp_path)


@pytest.fixture
def clock() -> Callable[[], float]:
    """A second later each time it is looked at."""
    ticks = itertools.count()
    return lambda: NOW - 3600 + next(ticks)


@pytest.fixture
def kept(home: Home, clock: Callable[[], float]) -> Records:
    return another_agent(home, clock)


def another_agent(home: Home, clock: Callable[[], float] = lambda: NOW) -> Records:
    made = Records(home, "node1", clock)
    made.load()
    return made


def job(id: str = "17", uid: int = 1000, system: str = "slurm") -> BatchJob:
    return BatchJob(system=system, id=id, uid=uid, name="analysis", queue="main", restarts=1)


def come(kept: Records, key: str, one: BatchJob | None = None, user: str = "alice") -> BatchRecord:
    return kept.came(key, one or job(), environment="debian12", user=user)


def test_a_job_is_written_down_before_anything_is_done_for_it(home: Home, kept: Records) -> None:
    come(kept, "k1")
    (record,) = found(home)
    assert (record.full_id, record.user, record.environment) == ("slurm:17", "alice", "debian12")
    assert (record.host, record.name, record.queue, record.restarts) == (
        "node1",
        "analysis",
        "main",
        1,
    )
    assert record.outcome is Outcome.STARTING
    assert count_running(home) == 1


def test_its_life_is_one_record(home: Home, kept: Records) -> None:
    came = come(kept, "k1").came
    kept.change("k1", machine="ab12", tries=2)
    kept.change("k1", begun=came + 5)
    (record,) = found(home, under_way=True)
    assert (record.outcome, record.machine, record.tries) == (Outcome.RUNNING, "ab12", 2)
    kept.over("k1", Outcome.DONE, exit_code=3, cpu_seconds=1.5, peak_memory=1 << 28)
    assert found(home, under_way=True) == []
    assert count_running(home) == 0
    (record,) = found(home)
    assert (record.outcome, record.exit_code, record.machine) == (Outcome.DONE, 3, "ab12")
    assert (record.came, record.begun) == (came, came + 5)
    assert record.ended > record.came
    assert (record.cpu_seconds, record.peak_memory) == (1.5, 1 << 28)


def test_what_is_over_or_was_never_there_does_not_change(home: Home, kept: Records) -> None:
    come(kept, "k1")
    kept.over("k1", Outcome.GIVEN_BACK, reason="no room")
    assert kept.change("k1", machine="x") is None
    assert kept.over("k1", Outcome.DONE) is None
    assert kept.change("k2", machine="x") is None
    (record,) = found(home)
    assert (record.outcome, record.reason) == (Outcome.GIVEN_BACK, "no room")


def test_the_same_job_that_comes_again_has_another_record(home: Home, kept: Records) -> None:
    come(kept, "k1")
    kept.over("k1", Outcome.GIVEN_BACK, reason="no room")
    come(kept, "k2")
    assert [record.key for record in found(home, id="17")] == ["k2", "k1"]


def test_another_agent_goes_on_where_the_last_one_was(home: Home, kept: Records) -> None:
    come(kept, "k1")
    come(kept, "k2")
    kept.over("k2", Outcome.DONE, exit_code=0)
    after = another_agent(home)
    assert [record.key for record in after.running()] == ["k1"]
    after.over("k1", Outcome.LOST, reason="the host was restarted")
    assert {record.key: record.outcome for record in found(home)} == {
        "k1": Outcome.LOST,
        "k2": Outcome.DONE,
    }


def test_an_agent_that_died_between_two_files_leaves_one_record(
    home: Home, kept: Records, tmp_path: Path
) -> None:
    come(kept, "k1")
    written = (records.under_way_of(home) / "k1").read_bytes()
    kept.over("k1", Outcome.DONE, exit_code=0)
    (records.under_way_of(home) / "k1").write_bytes(written)
    assert [record.outcome for record in found(home)] == [Outcome.DONE]
    assert another_agent(home).running() == []
    assert count_running(home) == 0


def test_a_line_that_was_cut_short_costs_no_other(home: Home, kept: Records) -> None:
    for key in ("k1", "k2"):
        come(kept, key)
    kept.over("k1", Outcome.DONE)
    (path,) = records.over_of(home).iterdir()
    with path.open("ab") as file:
        file.write(b'\n{"key":"k9","sys')
    (records.under_way_of(home) / "half").write_bytes(b'{"key"')
    after = another_agent(home)
    after.over("k2", Outcome.DONE)
    assert {record.key for record in found(home)} == {"k1", "k2"}


def test_owners_are_told_apart_by_number_and_by_name(home: Home, kept: Records) -> None:
    come(kept, "k1", job("1", uid=1000), user="alice")
    come(kept, "k2", job("2", uid=1001), user="bob")
    kept.over("k2", Outcome.DONE)
    assert [record.key for record in found(home, uid=1001)] == ["k2"]
    assert [record.key for record in found(home, user="alice")] == ["k1"]
    assert found(home, uid=1002) == []
    assert len(found(home)) == 2


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("17", ["k1", "k2", "k3", "k4"]),
        ("slurm:17", ["k1", "k2", "k3"]),
        ("gridengine:17", ["k4"]),
        ("17_3", ["k2"]),
        ("slurm:17_3", ["k2"]),
        ("1", []),
        ("170", ["k5"]),
    ],
)
def test_a_job_is_found_by_what_its_users_call_it(
    home: Home, kept: Records, name: str, keys: list[str]
) -> None:
    jobs = (job("17"), job("17_3"), job("17_4"), job("17", system="gridengine"), job("170"))
    for number, one in enumerate(jobs, 1):
        come(kept, f"k{number}", one)
    assert sorted(record.key for record in found(home, id=name)) == keys


def test_the_latest_come_first_and_so_many(home: Home, kept: Records) -> None:
    for number in range(6):
        come(kept, f"k{number}", job(str(number)))
        if number % 2:
            kept.over(f"k{number}", Outcome.DONE)
    assert [record.id for record in found(home, last=4)] == ["5", "4", "3", "2"]


def test_what_is_kept_is_bounded_in_number(home: Home, kept: Records) -> None:
    some = MOST + IN_ONE_FILE + 10
    record = come(kept, "k")
    for number in range(some):
        kept._here[f"k{number}"] = record
        kept.over(f"k{number}", Outcome.DONE)
    files = sorted(records.over_of(home).iterdir())
    assert MOST // IN_ONE_FILE <= len(files) <= MOST // IN_ONE_FILE + 1
    assert MOST <= len(found(home, last=some)) < MOST + IN_ONE_FILE + 10


def test_what_is_older_than_a_week_is_forgotten(home: Home, kept: Records) -> None:
    come(kept, "k1")
    kept.over("k1", Outcome.DONE, ended=NOW - KEPT - 1)
    come(kept, "k2")
    kept.over("k2", Outcome.DONE)
    assert [record.key for record in found(home)] == ["k2"]
    (path,) = records.over_of(home).iterdir()
    os.utime(path, (NOW - KEPT - 1, NOW - KEPT - 1))
    another_agent(home)
    assert list(records.over_of(home).iterdir()) == []


def test_only_the_agent_reads_them(home: Home, kept: Records) -> None:
    come(kept, "k1")
    kept.over("k1", Outcome.DONE)
    for path in (records.under_way_of(home).parents[1], *records.over_of(home).parents[:2]):
        assert path.stat().st_mode & 0o077 == 0


def test_a_disk_that_is_full_keeps_no_job_from_being_remembered(
    home: Home, kept: Records, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    come(kept, "k1")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(Path, "open", lambda *_: full(Path(), b""))
    come(kept, "k2")
    kept.over("k1", Outcome.DONE)
    monkeypatch.undo()
    assert [record.key for record in kept.running()] == ["k2"]
    assert "No space left on device" in caplog.text
    kept.over("k1", Outcome.DONE, exit_code=0)
    kept.over("k2", Outcome.DONE, exit_code=0)
    assert {record.key for record in found(home)} == {"k1", "k2"}


@pytest.mark.parametrize("key", ["", "../x", ".x", "a/b", "x" * 200])
def test_no_key_leads_anywhere_else(kept: Records, key: str) -> None:
    with pytest.raises(ValueError, match="cannot be a record's key"):
        come(kept, key)


@pytest.mark.parametrize(
    "outcome", [Outcome.DONE, Outcome.KILLED, Outcome.GIVEN_BACK, Outcome.LOST]
)
def test_a_run_that_is_over_is_known_to_later_agents(
    home: Home, kept: Records, outcome: Outcome
) -> None:
    come(kept, "k1")
    assert kept.run_of(job(), 0.0) is None
    tasks = [f"t{number}" for number in range(12)]
    for key in tasks:
        kept.came(key, job(), environment="mini", user="alice", step="0")
    kept.over("k1", outcome)
    for key in tasks:
        kept.over(key, Outcome.FAILED)
    after = another_agent(home)
    known = after.run_of(job(), 0.0)
    assert known is not None
    assert (known.key, known.outcome) == ("k1", outcome)
    assert after.run_of(msgspec.structs.replace(job(), restarts=2), 0.0) is None
    assert after.run_of(job("17_1"), 0.0) is None
    assert after.run_of(job(system="gridengine"), 0.0) is None
    # A later run, of which nobody counts how many were before.
    (record,) = [each for each in found(home) if each.key == "k1"]
    assert after.run_of(job(), record.came) == known
    assert after.run_of(job(), record.came + 0.1) is None
