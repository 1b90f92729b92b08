"""What is left alone on a host, for how long, and what becomes of jobs that cannot be run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encamp.agent.bait.errand import Fault
from encamp.agent.bait.failing import (
    LONGEST_DELAY,
    MOST_ENVIRONMENTS,
    Action,
    Failing,
    after_failure,
)
from encamp.agent.bait.rows import (
    Row,
    came_up,
    cleared,
    closes_bait,
    failed,
    is_left_alone,
    is_paused,
    is_to_be_tried,
)
from encamp.home import Home
from encamp.model.batch import BatchJob, BatchSettings
from tests.agent.bait.pretended import PATIENT

SETTINGS = BatchSettings(system="slurm", failures=3, pause=300.0, tries=3, restarts=2)
ALICE, BOB, CAROL, NOBODY = 1000, 1001, 1002, 65534
JOB = BatchJob(system="slurm", id="17", uid=1000)


@pytest.fixture
def failing(tmp_path: Path) -> Failing:
    return Failing(Home(tmp_path), SETTINGS)


def fail(failing: Failing, times: int, environment: str = "sl7", owner: int = ALICE) -> None:
    for _ in range(times):
        failing.failed(environment, "The guest never answered.", owner, 100.0)


def test_an_environment_is_tried_until_it_has_failed_too_often_in_a_row(failing: Failing) -> None:
    fail(failing, 2)
    assert failing.may_try("sl7", ALICE, 100.0) == ""
    fail(failing, 1)
    why = failing.may_try("sl7", ALICE, 101.0)
    assert "environment 'sl7' has failed 3 times in a row on this host" in why
    assert "The guest never answered." in why
    assert failing.may_try("debian12", ALICE, 101.0) == ""


def test_after_the_pause_one_failure_is_enough_for_the_next(failing: Failing) -> None:
    fail(failing, 3)
    assert failing.may_try("sl7", ALICE, 399.9) != ""
    assert failing.may_try("sl7", ALICE, 400.0) == ""
    failing.failed("sl7", "again", ALICE, 410.0)
    assert failing.may_try("sl7", ALICE, 411.0) != ""
    assert failing.may_try("sl7", ALICE, 710.0) == ""


def test_a_machine_that_comes_up_ends_the_row(failing: Failing) -> None:
    fail(failing, 2)
    failing.came_up("sl7", ALICE, 100.0)
    fail(failing, 2)
    assert failing.may_try("sl7", ALICE, 100.0) == ""


def test_what_was_counted_outlives_the_agent(failing: Failing, tmp_path: Path) -> None:
    fail(failing, 3)
    after = Failing(Home(tmp_path), SETTINGS)
    after.load()
    assert after.may_try("sl7", ALICE, 101.0) == failing.may_try("sl7", ALICE, 101.0) != ""


def test_a_file_that_is_damaged_is_no_reason_to_stop(failing: Failing, tmp_path: Path) -> None:
    fail(failing, 3)
    (tmp_path / "batch" / "failing.json").write_bytes(b'{"sl7": {"failures"')
    after = Failing(Home(tmp_path), SETTINGS)
    after.load()
    assert after.may_try("sl7", ALICE, 101.0) == ""
    fail(after, 3)
    assert after.may_try("sl7", ALICE, 101.0) != ""


def test_only_the_agent_reads_what_is_written_down(failing: Failing, tmp_path: Path) -> None:
    fail(failing, 1)
    assert (tmp_path / "batch").stat().st_mode & 0o077 == 0


def test_a_clock_that_was_set_back_pauses_nothing_for_ever(failing: Failing) -> None:
    fail(failing, 3)
    assert failing.may_try("sl7", ALICE, -1_000_000.0) == ""


def test_who_waits_for_it_is_told_that_something_is_paused(tmp_path: Path) -> None:
    told: list[int] = []
    failing = Failing(Home(tmp_path), SETTINGS, lambda: told.append(1))
    fail(failing, 2)
    assert told == []
    fail(failing, 1)
    assert told == [1]


def test_one_owners_failures_are_nobody_elses_affair_before_the_agent_has_tried(
    failing: Failing,
) -> None:
    fail(failing, 9)
    assert failing.may_try("sl7", ALICE, 101.0) != ""
    assert failing.may_try("sl7", BOB, 101.0) == ""
    assert list(failing.closing(101.0)) == []
    assert failing.to_try(101.0) == ["sl7"]


def test_if_the_agents_own_machine_fails_too_everybody_leaves_it_alone(failing: Failing) -> None:
    fail(failing, 3)
    failing.tried("sl7", "It never answered either.", 110.0)
    assert list(failing.closing(111.0)) == ["sl7"]
    assert "It never answered either." in failing.may_try("sl7", BOB, 111.0)
    assert failing.to_try(111.0) == failing.to_try(169.0) == []
    assert failing.may_try("sl7", ALICE, 410.0) == failing.may_try("sl7", BOB, 410.0) == ""


def test_what_fails_for_everybody_is_tried_again_and_ends_when_it_comes_up(
    failing: Failing,
) -> None:
    fail(failing, 3)
    failing.tried("sl7", "It never answered either.", 110.0)
    assert failing.to_try(171.0) == ["sl7"]
    failing.tried("sl7", "It never answered either.", 171.0)
    assert failing.to_try(200.0) == []
    assert failing.may_try("sl7", BOB, 240.0) != ""
    failing.tried("sl7", "", 250.0)
    assert failing.may_try("sl7", ALICE, 251.0) == failing.may_try("sl7", BOB, 251.0) == ""
    assert list(failing.closing(251.0)) == failing.to_try(251.0) == []


def test_what_nobody_asks_for_any_more_is_not_tried_for_ever(failing: Failing) -> None:
    fail(failing, 3)
    now, tried = 110.0, 0
    while now < 10000.0:
        if failing.to_try(now):
            failing.tried("sl7", "It never answers.", now)
            tried += 1
        now += 1.0
    assert 1 < tried < 7
    assert failing.may_try("sl7", BOB, 1000.0) == ""


def test_an_image_that_the_agent_cannot_get_is_everybodys_affair(failing: Failing) -> None:
    for _ in range(3):
        failing.failed("sl7", "It cannot be built.", ALICE, 100.0, Fault.UNFETCHED)
    assert "It cannot be built." in failing.may_try("sl7", BOB, 101.0)
    assert list(failing.closing(101.0)) == failing.to_try(160.0) == ["sl7"]
    failing.tried("sl7", "", 110.0)
    assert failing.may_try("sl7", ALICE, 111.0) == failing.may_try("sl7", BOB, 111.0) == ""


def test_mistake_of_the_host_is_everybodys_affair(failing: Failing) -> None:
    for _ in range(3):
        failing.failed("sl7", "There is a mistake.", ALICE, 100.0, Fault.UNDESCRIBED)
    assert "There is a mistake." in failing.may_try("sl7", BOB, 101.0)


@pytest.mark.parametrize(("up", "closed"), [(90.0, False), (100.0 - SETTINGS.pause, True)])
def test_host_on_which_others_came_up_just_before_stays_open(
    failing: Failing, up: float, closed: bool
) -> None:
    failing.came_up("sl7", ALICE, up)
    failing.came_up("debian12", BOB, up)
    fail(failing, 2)
    fail(failing, 1, owner=BOB)
    assert failing.may_try("sl7", CAROL, 101.0) != ""
    assert list(failing.closing(101.0)) == (["sl7"] if closed else [])


def test_what_is_forgotten_may_be_tried_also_by_the_next_agent(
    failing: Failing, tmp_path: Path
) -> None:
    fail(failing, 3)
    failing.forget()
    after = Failing(Home(tmp_path), SETTINGS)
    after.load()
    assert failing.may_try("sl7", ALICE, 101.0) == after.may_try("sl7", ALICE, 101.0) == ""


def test_a_trial_from_before_says_nothing_about_what_is_there_now(failing: Failing) -> None:
    fail(failing, 3)
    failing.trying("sl7", 101.0)
    failing.forget()
    failing.tried("sl7", "no kernel", 102.0)
    assert failing.may_try("sl7", ALICE, 103.0) == failing.may_try("sl7", BOB, 103.0) == ""
    assert failing.closing(103.0) == {}


def test_if_the_agents_own_machine_comes_up_only_that_owner_is_left_alone(
    failing: Failing, tmp_path: Path
) -> None:
    fail(failing, 3)
    failing.tried("sl7", "", 110.0)
    after = Failing(Home(tmp_path), SETTINGS)
    after.load()
    for one in (failing, after):
        assert "where others do" in one.may_try("sl7", ALICE, 111.0)
        assert one.may_try("sl7", BOB, 111.0) == ""
        assert list(one.closing(111.0)) == one.to_try(111.0) == []
        assert one.may_try("sl7", ALICE, 400.0) == ""


def test_whoever_failed_alone_counts_no_more_for_others(failing: Failing) -> None:
    fail(failing, 3)
    failing.tried("sl7", "", 110.0)
    fail(failing, 5)
    fail(failing, 2, owner=BOB)
    assert failing.may_try("sl7", BOB, 120.0) == failing.may_try("sl7", CAROL, 120.0) == ""
    assert list(failing.closing(120.0)) == []


def test_it_is_not_tried_more_often_than_once_in_a_pause(failing: Failing) -> None:
    fail(failing, 3)
    failing.trying("sl7", 105.0)
    assert failing.to_try(106.0) == []
    failing.tried("sl7", "", 110.0)
    failing.came_up("sl7", BOB, 120.0)
    for now in (130.0, 140.0, 150.0, 409.0):
        failing.failed("sl7", "It was ended.", ALICE, now)
        assert failing.to_try(now) == []
    failing.failed("sl7", "It was ended.", ALICE, 411.0)
    assert failing.may_try("sl7", ALICE, 412.0) != ""
    assert failing.to_try(412.0) == ["sl7"]


def test_another_owners_machine_that_comes_up_is_as_good_as_the_agents_own(
    failing: Failing,
) -> None:
    fail(failing, 3)
    failing.came_up("sl7", BOB, 110.0)
    assert "where others do" in failing.may_try("sl7", ALICE, 111.0)
    assert failing.to_try(111.0) == []


def test_a_machine_of_that_owners_ends_it(failing: Failing) -> None:
    fail(failing, 3)
    failing.tried("sl7", "", 110.0)
    failing.came_up("sl7", ALICE, 120.0)
    assert failing.may_try("sl7", ALICE, 121.0) == ""


def test_two_owners_need_no_trial_and_close_the_host(failing: Failing) -> None:
    fail(failing, 2)
    fail(failing, 1, owner=BOB)
    assert list(failing.closing(101.0)) == failing.to_try(160.0) == ["sl7"]
    assert failing.to_try(101.0) == []
    assert failing.may_try("sl7", CAROL, 101.0) != ""


def test_after_a_pause_it_is_found_out_anew_whose_affair_it_is(failing: Failing) -> None:
    fail(failing, 2)
    fail(failing, 1, owner=BOB)
    failing.failed("sl7", "It was ended.", ALICE, 401.0)
    assert failing.may_try("sl7", ALICE, 402.0) != ""
    assert failing.may_try("sl7", BOB, 402.0) == ""
    assert list(failing.closing(402.0)) == []
    assert failing.to_try(402.0) == ["sl7"]


def test_machines_that_were_killed_say_nothing_of_the_environment_without_a_trial(
    failing: Failing,
) -> None:
    for owner in (ALICE, BOB, BOB, CAROL):
        failing.failed("sl7", "It was ended.", owner, 100.0, Fault.KILLED)
    assert list(failing.closing(101.0)) == []
    assert [failing.may_try("sl7", one, 101.0) for one in (ALICE, BOB, CAROL)] == ["", "", ""]
    assert failing.to_try(101.0) == ["sl7"]
    failing.tried("sl7", "It was ended.", 110.0)
    assert list(failing.closing(111.0)) == ["sl7"]


def test_one_owners_broken_environment_does_not_close_a_host_on_which_others_come_up(
    failing: Failing,
) -> None:
    fail(failing, 3)
    failing.came_up("debian12", BOB, 102.0)
    failing.tried("sl7", "It never answered.", 103.0)
    assert list(failing.closing(104.0)) == []
    assert failing.may_try("sl7", BOB, 104.0) != ""


def test_so_many_environments_are_remembered_and_no_more(failing: Failing, tmp_path: Path) -> None:
    for number in range(MOST_ENVIRONMENTS + 5):
        failing.failed(f"e{number}", "", ALICE, float(number))
    rows = msgspec.json.decode((tmp_path / "batch" / "failing.json").read_bytes())
    assert len(rows) == MOST_ENVIRONMENTS
    assert "e0" not in rows


# ── deciding ─────────────────────────────────────────────────────────────────────────────────────

jobs = st.builds(
    BatchJob,
    system=st.just("slurm"),
    id=st.just("17"),
    uid=st.just(1000),
    restarts=st.integers(0, 10),
    requeue=st.booleans(),
)
chosen = st.builds(
    BatchSettings,
    system=st.just("slurm"),
    tries=st.integers(1, 10),
    restarts=st.integers(0, 10),
    failures=st.integers(1, 5),
    pause=st.floats(1, 1000),
)


@PATIENT
@given(jobs, chosen, st.integers(1, 20), st.booleans())
def test_what_has_begun_is_never_begun_again_on_the_spot(
    job: BatchJob, settings: BatchSettings, tries: int, paused: bool
) -> None:
    done = after_failure(job, settings, begun=True, tries=tries, paused=paused)
    assert done.action is not Action.AGAIN
    assert (done.action is Action.FAIL) is (not job.requeue)


@PATIENT
@given(jobs, chosen, st.booleans())
def test_what_has_not_begun_is_tried_so_often_and_then_given_back(
    job: BatchJob, settings: BatchSettings, paused: bool
) -> None:
    tries = 0
    while True:
        tries += 1
        done = after_failure(job, settings, begun=False, tries=tries, paused=paused)
        if done.action is not Action.AGAIN:
            break
        assert 0 < done.delay <= LONGEST_DELAY
    assert tries == (1 if paused else settings.tries)
    assert done.action is (Action.HOLD if job.restarts >= settings.restarts else Action.BACK)


@PATIENT
@given(chosen)
def test_no_job_goes_back_and_forth_for_ever(settings: BatchSettings) -> None:
    """Each time it is given back, its batch system has begun it once more."""
    job, rounds = JOB, 0
    while after_failure(job, settings, begun=False, tries=settings.tries).action is not Action.HOLD:
        job = msgspec.structs.replace(job, restarts=job.restarts + 1)
        rounds += 1
        assert rounds <= settings.restarts
    assert rounds == settings.restarts


@PATIENT
@given(
    chosen,
    st.lists(st.tuples(st.floats(0, 400), st.integers(1, 3), st.booleans()), max_size=30),
)
def test_a_row_is_paused_exactly_while_its_last_failure_says(
    settings: BatchSettings, happens: list[tuple[float, int, bool]]
) -> None:
    row, now, count = Row(), 1000.0, 0
    for seconds, owner, comes_up in happens:
        now += seconds
        row = Row() if comes_up else failed(row, "why", owner, settings, now)
        count = 0 if comes_up else count + 1
        assert row.failures == count
        assert is_paused(row, settings, now) is (count >= settings.failures)
        if closes_bait(row, settings, now):
            assert is_left_alone(row, NOBODY, settings, now)
        assert not is_paused(row, settings, now + settings.pause + 1)


@PATIENT
@given(
    chosen,
    st.lists(st.tuples(st.floats(0, 400), st.sampled_from("fktr")), max_size=30),
)
def test_whatever_one_owner_does_alone_concerns_nobody_else(
    settings: BatchSettings, happens: list[tuple[float, str]]
) -> None:
    """As long as others' machines, and the agent's, come up."""
    row, now, last = Row(), 1000.0, -1000.0
    for seconds, what in happens:
        now += seconds
        if what in "fk":
            fault = Fault.KILLED if what == "k" else Fault.UNCLEAR
            row = failed(row, "why", ALICE, settings, now, fault)
        elif what == "r":
            row = came_up(row, BOB, settings, now) or Row()
        elif is_to_be_tried(row, settings, now):
            assert now - last >= settings.pause * 0.999
            row, last = cleared(row, settings, now), now
        assert not is_left_alone(row, BOB, settings, now)
        assert not closes_bait(row, settings, now)
