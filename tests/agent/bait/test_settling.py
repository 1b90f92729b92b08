"""What becomes of jobs whose starters are gone is asked until the batch system knows, and written
down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from encamp.agent.bait import settling
from encamp.agent.bait.records import Records, found
from encamp.agent.bait.settling import Lost, Settling
from encamp.batch.system import EndingError
from encamp.home import Home
from encamp.model.batch import BatchJob, BatchSettings, Task
from encamp.model.batch_record import BatchRecord, Outcome, WayBack
from encamp.model.errors import Code, EncampError
from tests.agent.bait.pretended import Pretended

T = TypeVar("T")

LATER = EncampError(Code.WRONG_STATE, "It has not ended yet.", transient=True)
NEVER = EncampError(Code.WRONG_STATE, "It was cancelled.")


class Clock:
    """Passes only when somebody lets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(settling, "time", made)
    monkeypatch.setattr(settling, "LONGEST_DELAY", 0.01)
    monkeypatch.setattr(settling, "RACING_DELAY", 0.01)
    return made


class Deciding(Pretended):
    """Says these, one after the other; None: it takes the job back."""

    def __init__(self, *answers: EncampError | None) -> None:
        super().__init__()
        self.answers = list(answers)
        self.taken: list[tuple[str, str, bool]] = []
        self.held: list[bool] = []

    def answer(self) -> None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        self.held.append(held)
        self.answer()
        self.taken.append((job.id, reason, hold))
        return ""


class Slow(Deciding):
    """Each answer takes half of the time in which a batch system tells."""

    def __init__(self, clock: Clock, *answers: EncampError | None) -> None:
        super().__init__(*answers)
        self.clock = clock

    def answer(self) -> None:
        self.clock.now += settling.PATIENCE / 2
        super().answer()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(settling, "FIRST_DELAY", 0.01)
    return Home(tmp_path / "home").prepare()


async def in_thread(work: Callable[[], T], /) -> T:
    return work()


def settle(
    home: Home, system: Deciding, begin: Callable[[Settling, BatchRecord], None], **fields: Any
) -> BatchRecord:
    """What is written down in the end of a job that came before."""
    kept = Records(home, "host")
    kept.load()
    job = BatchJob(system="pretended", id="17", uid=1000, **fields)
    record = kept.came("k", job, environment="mini", user="alice", step="batch")
    settings = BatchSettings(system="pretended", restarts=2)

    async def main() -> None:
        asked = Settling(kept, in_thread, lambda: (system, settings))
        over = asyncio.Event()
        asked.settled = lambda key: over.set()
        begin(asked, record)
        assert asked.concerns("17")
        await asyncio.wait_for(over.wait(), 60)
        assert not asked.concerns("17")
        await asked.close()

    asyncio.run(main())
    (written,) = found(home)
    return written


def gone(asked: Settling, record: BatchRecord) -> None:
    job = BatchJob(system="pretended", id=record.id, uid=1000, restarts=record.restarts)
    asked.begin(record.key, job, Task(step="batch"))


@pytest.mark.parametrize(("restarts", "hold"), [(0, False), (1, False), (2, True)])
def test_job_whose_starter_was_killed_is_queued_again_and_held_after_a_bound(
    home: Home, restarts: int, hold: bool
) -> None:
    system = Deciding(LATER, LATER, None)
    written = settle(home, system, gone, restarts=restarts)
    assert system.taken == [("17", "Encamp: its starter was killed", hold)]
    assert written.outcome is (Outcome.HELD if hold else Outcome.GIVEN_BACK)


def test_job_that_was_ended_otherwise_is_left_alone(home: Home) -> None:
    system = Deciding(LATER, NEVER)
    written = settle(home, system, gone)
    assert (system.taken, written.outcome) == ([], Outcome.KILLED)
    assert "It was cancelled." in written.reason


def test_job_of_a_former_agent_is_queued_again(home: Home) -> None:
    system = Deciding(None)
    written = settle(home, system, Settling.begin_orphan)
    assert (len(system.taken), written.outcome) == (1, Outcome.GIVEN_BACK)


def test_job_of_a_former_agent_may_still_come(home: Home, clock: Clock) -> None:
    """Nobody knows whether its starter is gone: a no is none for ever."""
    system = Deciding(NEVER, NEVER, NEVER, None)
    written = settle(home, system, Settling.begin_orphan)
    assert written.outcome is Outcome.GIVEN_BACK
    other = Home(home.root / "other").prepare()
    written = settle(other, Slow(clock, NEVER), Settling.begin_orphan)
    assert (written.outcome, "It was cancelled." in written.reason) == (Outcome.LOST, True)


def test_a_no_is_final_while_the_end_of_a_starter_is_held(home: Home) -> None:
    """It will not come, though a former agent's record does not say so."""
    kept = Records(home, "host")
    kept.load()
    job = BatchJob(system="pretended", id="17", uid=1000)
    record = kept.came("k", job, environment="mini", user="alice")
    system = Deciding(NEVER)

    async def main() -> None:
        asked = Settling(kept, in_thread, lambda: (system, BatchSettings(system="pretended")))
        over = asyncio.Event()
        asked.settled = lambda key: over.set()
        with asked.holding(job, Task()), asked.holding(job, Task()):
            asked.begin_orphan(record)
            await asyncio.wait_for(over.wait(), 60)
        over.clear()
        gone(asked, kept.came("l", job, environment="mini", user="alice"))
        await asyncio.wait_for(over.wait(), 60)

    asyncio.run(main())
    assert [one.outcome for one in found(home)] == [Outcome.KILLED, Outcome.KILLED]
    assert system.held == [True, False]


def test_who_is_in_the_batch_systems_way_learns_it_and_the_end_is_found_out_without(
    home: Home,
) -> None:
    kept = Records(home, "host")
    kept.load()
    job = BatchJob(system="pretended", id="17", uid=1000)
    record = kept.came("k", job, environment="mini", user="alice")
    system = Deciding(EndingError("It is being cancelled."))

    async def main() -> None:
        asked = Settling(kept, in_thread, lambda: (system, BatchSettings(system="pretended")))
        over = asyncio.Event()
        asked.settled = lambda key: over.set()
        with asked.holding(job, Task()), asked.holding(job, Task(step="1.here")):
            gone(asked, record)
            async with asyncio.timeout(60):
                while not asked.is_in_the_way(job, Task()):
                    await asyncio.sleep(0.01)
            # Another of the same job's is not, as far as anybody knows.
            assert not asked.is_in_the_way(job, Task(step="1.here"))
            assert asked.concerns("17")
        assert not asked.is_in_the_way(job, Task())
        system.answers = [NEVER]
        await asyncio.wait_for(over.wait(), 60)

    asyncio.run(main())
    (written,) = found(home)
    assert (written.outcome, "It was cancelled." in written.reason) == (Outcome.KILLED, True)


@pytest.mark.parametrize("code", [Code.COMMAND_FAILED, Code.CONFIGURATION, Code.PROTOCOL])
def test_what_says_nothing_about_the_job_is_no_verdict(home: Home, code: Code) -> None:
    system = Deciding(EncampError(code, "squeue says what nobody has heard before."), None)
    assert settle(home, system, gone).outcome is Outcome.GIVEN_BACK


def test_a_batch_system_that_is_away_is_waited_for(home: Home, clock: Clock) -> None:
    away = EncampError(Code.UNREACHABLE, "Slurm's controller is away.", transient=True)
    assert settle(home, Slow(clock, *[away] * 20, None), gone).outcome is Outcome.GIVEN_BACK


def test_batch_system_that_is_ending_a_job_is_waited_for(home: Home, clock: Clock) -> None:
    ending = EndingError("It is not cleared away yet.")
    assert settle(home, Slow(clock, *[ending] * 20, None), gone).outcome is Outcome.GIVEN_BACK


class Leaving(Deciding):
    """Takes jobs back in two steps."""

    def __init__(self, home: Home, *answers: EncampError | None) -> None:
        super().__init__(*answers)
        self.home = home
        self.finished: list[tuple[str, str, bool]] = []

    def bring_back(self, job: BatchJob, task: Task, reason: str, *, hold: bool, held: bool) -> str:
        return "what is left"

    def finish(self, job: BatchJob, left: str, reason: str, *, hold: bool) -> None:
        (record,) = found(self.home)
        assert record.back is not None, "nobody would know of it after a crash"
        assert record.back.left == left
        self.finished.append((left, reason, hold))
        self.answer()


@pytest.mark.parametrize(("restarts", "hold"), [(0, False), (2, True)])
def test_what_is_left_to_do_is_written_down_before_it_is_begun(
    home: Home, restarts: int, hold: bool
) -> None:
    system = Leaving(home, EndingError("Not yet."), None)
    written = settle(home, system, gone, restarts=restarts)
    assert system.finished == [("what is left", "Encamp: its starter was killed", hold)] * 2
    assert written.outcome is (Outcome.HELD if hold else Outcome.GIVEN_BACK)
    assert written.back is None


def test_next_agent_goes_on_with_what_is_left(home: Home) -> None:
    def orphan(asked: Settling, record: BatchRecord) -> None:
        back = WayBack(left="the rest", outcome=Outcome.HELD, reason="no machine came up")
        asked.begin_orphan(msgspec.structs.replace(record, back=back))

    system = Leaving(home, EndingError("Not yet."), LATER, None)
    written = settle(home, system, orphan)
    assert system.finished == [("the rest", "Encamp: no machine came up", True)] * 3
    assert (written.outcome, written.reason) == (Outcome.HELD, "no machine came up")


def test_job_that_is_deleted_on_its_way_back_was_given_back(home: Home) -> None:
    written = settle(home, Leaving(home, EndingError("Not yet."), NEVER), gone)
    assert written.outcome is Outcome.GIVEN_BACK
    assert written.reason == "its starter was killed; It was cancelled."
    for number, before in enumerate(([], [EndingError("On its way.", queued=False)])):
        other = Home(home.root / str(number)).prepare()
        assert settle(other, Leaving(other, *before, NEVER), gone).outcome is Outcome.KILLED


def test_starter_may_end_when_its_job_is_in_the_queue_and_no_sooner(home: Home) -> None:
    kept = Records(home, "host")
    kept.load()
    job = BatchJob(system="pretended", id="17", uid=1000)
    record = kept.came("k", job, environment="mini", user="alice")
    away = EncampError(Code.UNREACHABLE, "It does not answer.", transient=True)
    system = Leaving(home, away, away, EndingError("Not yet."))
    back = WayBack(left="the rest", outcome=Outcome.GIVEN_BACK, reason="no room")

    async def main() -> None:
        asked = Settling(kept, in_thread, lambda: (system, BatchSettings(system="pretended")))
        assert await asked.sent(record.key, job, Task(), back, lambda: False)
        assert len(system.finished) == 3
        await asked.close()
        system.answers = [away]
        # Who is gone is not waited for, and comes back all the same.
        assert not await asked.sent(record.key, job, Task(), back, lambda: len(system.finished) > 5)
        await asked.close()

    asyncio.run(main())
    (written,) = found(home)
    assert written.back == back


def test_what_is_not_decided_is_left_to_the_next_agent(home: Home) -> None:
    kept = Records(home, "host")
    kept.load()
    job = BatchJob(system="pretended", id="17", uid=1000)
    record = kept.came("k", job, environment="mini", user="alice")

    async def main() -> None:
        settings = BatchSettings(system="pretended")
        asked = Settling(kept, in_thread, lambda: (Deciding(LATER), settings))
        gone(asked, record)
        await asyncio.sleep(0)
        await asked.close()

    asyncio.run(main())
    assert [one.key for one in kept.running()] == ["k"]


def test_batch_system_that_may_forget_a_job_is_asked_often() -> None:
    """Until the job is in the queue; before it is known to go back, there is time."""
    job = BatchJob(system="pretended", id="17", uid=1000)
    lost = Lost("k", job, Task(), settling.PATIENCE, is_gone=True)
    assert lost.longest_delay(is_away=False) == settling.LONGEST_DELAY
    assert lost.longest_delay(is_away=True) == settling.RACING_DELAY
    lost.back = WayBack(left="left", outcome=Outcome.GIVEN_BACK, reason="why")
    assert lost.longest_delay(is_away=False) == settling.RACING_DELAY
    lost.is_sent = True
    assert lost.longest_delay(is_away=False) == settling.SENT_DELAY
