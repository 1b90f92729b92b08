"""When a bait is closed and opened, who may undo what, and what is said."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encamp.agent.bait.opening import (
    STOPPED,
    Cause,
    Closing,
    Host,
    Nothing,
    Opening,
    Step,
    step,
)
from encamp.agent.bait.watching import ASK_AGAIN, Watch, read_told
from encamp.home import Home
from encamp.model.batch import Bait, BaitState, BatchSettings, Threshold
from encamp.model.size import MIB
from tests.agent.bait.pretended import MARK, PATIENT, Pretended

GIB = 1024 * MIB

SETTINGS = BatchSettings(
    system="pretended",
    close=Threshold(memory=512 * MIB, disk=1 * GIB),
    open=Threshold(memory=1 * GIB, disk=2 * GIB),
    machines=4,
    every=0.01,
)
ROOMY = Host(memory=8 * GIB, disk=100 * GIB)
OPEN = Bait(state=BaitState.OPEN)
FULL = Bait(state=BaitState.FULL, reason="something")


def decided(host: Host, bait: Bait = OPEN, told: frozenset[Cause] | None = None) -> Step:
    return step(told, host, bait, SETTINGS)


def with_room(**fields: object) -> Host:
    return msgspec.structs.replace(ROOMY, **fields)


# ── deciding ─────────────────────────────────────────────────────────────────────────────────────


def test_a_host_with_room_is_left_open() -> None:
    assert decided(ROOMY) == Nothing("there is room")


def test_what_is_open_in_part_is_opened_or_closed_in_whole() -> None:
    partly = Bait(state=BaitState.OPEN, partly=True)
    assert decided(ROOMY, partly) == Opening("there is room again")
    assert isinstance(decided(with_room(machines=4), partly), Closing)


@pytest.mark.parametrize(
    ("host", "cause", "words"),
    [
        (with_room(memory=511 * MIB), Cause.MEMORY, "511 MiB of memory free, 512 MiB wanted"),
        (with_room(disk=1023 * MIB), Cause.DISK, "1023 MiB of disk free, 1 GiB wanted"),
        (with_room(machines=4), Cause.MACHINES, "4 of 4 machines are in use"),
        (with_room(failing=("environment x failed 3 times",)), Cause.FAILING, "environment x"),
    ],
    ids=lambda value: value.value if isinstance(value, Cause) else "",
)
def test_what_another_machine_would_lack_closes_it_and_is_said(
    host: Host, cause: Cause, words: str
) -> None:
    done = decided(host)
    assert isinstance(done, Closing)
    assert done.causes == {cause}
    assert words in done.reason


def test_thresholds_of_nothing_never_close_it() -> None:
    none = BatchSettings(system="pretended", close=Threshold(), open=Threshold())
    overdrawn = Host(memory=-GIB, disk=-GIB)
    assert isinstance(step(None, overdrawn, OPEN, none), Nothing)
    assert isinstance(step(None, overdrawn, FULL, none), Opening)


def test_exactly_what_is_wanted_is_enough() -> None:
    enough = Host(memory=512 * MIB, disk=1 * GIB, machines=3)
    assert isinstance(decided(enough), Nothing)
    enough = Host(memory=1 * GIB, disk=2 * GIB, machines=3)
    assert isinstance(decided(enough, FULL), Opening)


def test_it_is_opened_again_only_with_more_than_it_was_closed_for() -> None:
    between = with_room(memory=700 * MIB)
    assert isinstance(decided(between), Nothing)
    assert isinstance(decided(between, FULL, frozenset({Cause.MEMORY})), Nothing)


def test_another_cause_is_said_and_other_figures_are_not() -> None:
    told = frozenset({Cause.MEMORY})
    assert isinstance(decided(with_room(memory=100 * MIB), FULL, told), Nothing)
    assert isinstance(decided(with_room(memory=90 * MIB), FULL, told), Nothing)
    done = decided(with_room(disk=0), FULL, told)
    assert isinstance(done, Closing)
    assert done.causes == {Cause.DISK}


def test_what_a_former_agent_said_is_said_anew() -> None:
    stopped = Bait(state=BaitState.FULL, reason=STOPPED)
    assert isinstance(decided(with_room(memory=0), stopped, None), Closing)
    assert isinstance(decided(ROOMY, stopped, None), Opening)


hosts = st.builds(
    Host,
    memory=st.integers(-GIB, 4 * GIB),
    disk=st.integers(-GIB, 4 * GIB),
    machines=st.integers(0, 6),
    failing=st.sampled_from([(), ("environment x failed 3 times",)]),
)
causes = st.none() | st.frozensets(st.sampled_from(Cause))
thresholds = st.builds(Threshold, memory=st.integers(0, 3 * GIB), disk=st.integers(0, 3 * GIB))
settings = st.builds(
    BatchSettings,
    system=st.just("pretended"),
    close=thresholds,
    open=thresholds,
    machines=st.none() | st.integers(1, 6),
)


@PATIENT
@given(causes, hosts, st.sampled_from([BaitState.CLOSED, BaitState.UNKNOWN]), settings)
def test_nothing_is_ever_done_to_what_an_administrator_has_closed_or_nobody_knows(
    told: frozenset[Cause] | None, host: Host, state: BaitState, chosen: BatchSettings
) -> None:
    assert isinstance(step(told, host, Bait(state=state), chosen), Nothing)


@PATIENT
@given(causes, hosts, settings)
def test_with_the_same_room_it_comes_to_rest_after_two_steps(
    told: frozenset[Cause] | None, host: Host, chosen: BatchSettings
) -> None:
    """Whatever the thresholds are, it does not swing."""
    for state in (BaitState.OPEN, BaitState.FULL):
        bait, known, last = Bait(state=state), told, None
        for _ in range(3):
            last = step(known, host, bait, chosen)
            if isinstance(last, Closing):
                bait, known = FULL, last.causes
            elif isinstance(last, Opening):
                bait, known = OPEN, None
        assert isinstance(last, Nothing)


@PATIENT
@given(hosts, hosts, settings)
def test_a_host_with_more_room_is_never_closed_where_one_with_less_is_open(
    one: Host, other: Host, chosen: BatchSettings
) -> None:
    more = Host(
        memory=max(one.memory, other.memory),
        disk=max(one.disk, other.disk),
        machines=min(one.machines, other.machines),
        failing=one.failing if len(one.failing) < len(other.failing) else other.failing,
    )
    if isinstance(step(None, one, OPEN, chosen), Nothing):
        assert isinstance(step(None, more, OPEN, chosen), Nothing)
    if isinstance(step(None, one, FULL, chosen), Opening):
        assert isinstance(step(None, more, FULL, chosen), Opening)


# ── watching ─────────────────────────────────────────────────────────────────────────────────────


class Bench:
    """A watch over a pretended batch system, and a host that can be filled."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = Home(tmp_path / "home")
        self.home.root.mkdir(exist_ok=True)
        self.system = Pretended()
        self.host = ROOMY
        self.now = 100.0
        self.watch = self.another_agent()

    def another_agent(self) -> Watch:
        self.watch = Watch(self.home, self.system, SETTINGS, lambda: self.host, lambda: self.now)
        return self.watch

    def look(self, **fields: object) -> str:
        """What the batch system shows after a look at a host that is like this now."""
        self.host = msgspec.structs.replace(self.host, **fields)
        self.watch.look()
        return self.system.reason

    def told(self) -> tuple[str, str]:
        found = read_told(self.home)
        assert found is not None
        return found.state.value, found.reason


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_it_follows_the_room_with_hysteresis(bench: Bench) -> None:
    assert bench.look() == ""
    assert bench.look(memory=500 * MIB).startswith(f"{MARK}500 MiB of memory free")
    assert bench.told() == ("full", "500 MiB of memory free, 512 MiB wanted")
    assert bench.look(memory=900 * MIB).startswith(f"{MARK}500 MiB of memory free")
    assert bench.look(memory=2 * GIB) == ""
    assert bench.told() == ("open", "")
    assert bench.look(memory=900 * MIB) == ""
    assert bench.system.calls == ["close: 500 MiB of memory free, 512 MiB wanted", "open"]


def test_an_administrators_drain_outlasts_everything(bench: Bench) -> None:
    bench.look(memory=0)
    bench.system.drain("new memory is being built in")
    assert bench.look(memory=8 * GIB) == "new memory is being built in"
    assert bench.told() == ("closed", "new memory is being built in")
    assert bench.look(memory=0) == "new memory is being built in"
    bench.another_agent()
    assert bench.look(memory=8 * GIB) == "new memory is being built in"
    bench.system.resume()
    assert bench.look() == ""
    assert "open" not in bench.system.calls


def test_an_administrator_who_opens_a_full_host_is_answered_with_the_reason(bench: Bench) -> None:
    bench.look(memory=0)
    bench.system.resume()
    assert bench.look().startswith(MARK)
    assert len(bench.system.calls) == 2


def test_another_agent_knows_its_own_mark(bench: Bench) -> None:
    bench.look(disk=0)
    bench.another_agent()
    assert bench.look(disk=100 * GIB) == ""


def test_a_batch_system_that_does_not_answer_is_told_once_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.system.silent = True
    bench.look()
    bench.look()
    assert bench.told() == ("unknown", "The batch system does not answer.")
    assert caplog.text.count("The batch system does not answer.") == 1
    bench.system.silent = False
    bench.look()
    assert bench.told() == ("open", "")
    assert "The batch system answers again." in caplog.text


def test_a_host_that_cannot_be_looked_at_is_not_opened(bench: Bench) -> None:
    bench.look(memory=0)

    def broken() -> Host:
        raise OSError("no such file system")

    bench.watch = Watch(bench.home, bench.system, SETTINGS, broken)
    assert bench.look().startswith(MARK)
    assert bench.told()[0] == "unknown"


def test_since_when_it_is_so_is_kept_while_only_the_reason_changes(bench: Bench) -> None:
    bench.look(memory=0)
    bench.now = 200.0
    bench.look(memory=8 * GIB, disk=0)
    found = read_told(bench.home)
    assert found is not None
    assert found.since == 100.0
    assert "disk" in found.reason


def test_the_batch_system_is_asked_only_if_something_is_to_be_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    bench.system.before_answer = lambda: asked.append("")
    now = 0.0
    monkeypatch.setattr("encamp.agent.bait.watching.time.monotonic", lambda: now)
    for _ in range(5):
        bench.watch.look(sparing=True)
    assert len(asked) == 1
    bench.host = with_room(memory=0)
    for _ in range(5):
        bench.watch.look(sparing=True)
    assert bench.system.reason.startswith(MARK)
    assert len(asked) == 4
    bench.system.resume()
    bench.watch.look(sparing=True)
    assert len(asked) == 4
    now = ASK_AGAIN
    bench.watch.look(sparing=True)
    assert bench.system.reason.startswith(MARK)
    bench.system.silent = True
    now = 2 * ASK_AGAIN
    before = len(asked)
    for _ in range(3):
        bench.watch.look(sparing=True)
    assert len(asked) == before + 3


async def _until(condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def test_it_looks_again_and_again_and_closes_when_the_agent_ends(bench: Bench) -> None:
    task = asyncio.create_task(bench.watch.run())
    bench.host = with_room(memory=0)
    await _until(lambda: bench.system.reason.startswith(MARK))
    bench.host = ROOMY
    await _until(lambda: not bench.system.reason)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.system.reason == MARK + STOPPED
    assert bench.told() == ("full", STOPPED)
    bench.another_agent()
    assert bench.look() == ""


async def test_an_agent_that_ends_leaves_an_administrators_drain_alone(bench: Bench) -> None:
    bench.system.drain("closed for repair")
    task = asyncio.create_task(bench.watch.run())
    await _until(lambda: bench.watch.told is not None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.system.reason == "closed for repair"
    assert bench.system.calls == []


async def test_a_look_that_is_under_way_when_the_agent_ends_does_not_open_it(bench: Bench) -> None:
    bench.look(memory=0)
    bench.host = ROOMY
    asked, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        assert go_on.wait(60)

    bench.system.before_answer = wait
    task = asyncio.create_task(bench.watch.run())
    assert await asyncio.to_thread(asked.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.system.reason == MARK + STOPPED


async def test_it_looks_at_once_when_it_is_told_to(bench: Bench) -> None:
    seldom = msgspec.structs.replace(SETTINGS, every=3600.0)
    watch = Watch(bench.home, bench.system, seldom, lambda: bench.host)
    task = asyncio.create_task(watch.run())
    await _until(lambda: watch.told is not None)
    bench.host = with_room(memory=0)
    watch.look_soon()
    await _until(lambda: bench.system.reason.startswith(MARK))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
