"""A starter is handed on, and nobody has to wait for another's process to take it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from encamp.agent.bait import handing
from encamp.agent.bait.handing import hand_over, take_over, wait_here
from encamp.agent.bait.starter import Visit
from encamp.machines import sockets
from encamp.model.errors import Code, EncampError
from tests.agent.bait.test_frames import LEAST, field


@pytest.fixture
def visit() -> Iterator[Visit]:
    ours, its = socket.socketpair()
    with its:
        visit = Visit(ours)
        visit.files = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
        visit.payload = LEAST + field("m", b"LONG=" + bytes(b"x" * (4 << 20)))
        yield visit
        visit.close()


async def test_process_gets_all_of_it_though_others_do_not_take_theirs(
    visit: Visit, tmp_path: Path
) -> None:
    with ExitStack() as held:
        stopped = []
        for number in range(50):
            listener = held.enter_context(wait_here(tmp_path / f"stopped{number}"))
            if number % 2:
                held.enter_context(sockets.connect(tmp_path / f"stopped{number}", handing.HAND))
            stopped.append(asyncio.create_task(hand_over(listener, visit, lambda: False)))
        with wait_here(tmp_path / "quick") as listener:
            taking = asyncio.to_thread(take_over, tmp_path / "quick")
            handed, _ = await asyncio.gather(taking, hand_over(listener, visit, lambda: False))
        assert len(handed.asked.variables["LONG"]) == 4 << 20
        assert os.path.sameopenfile(handed.output, visit.files[1])
        handed.connection.close()
        for file in (handed.input, handed.output, handed.error):
            os.close(file)
        for task in stopped:
            task.cancel()
        await asyncio.wait(stopped)


async def test_process_that_is_over_is_not_waited_for(visit: Visit, tmp_path: Path) -> None:
    with wait_here(tmp_path / "gone") as listener, pytest.raises(EncampError) as raised:
        await hand_over(listener, visit, lambda: True)
    assert raised.value.transient
    assert not (tmp_path / "gone").exists()


async def test_process_that_takes_nothing_is_given_up(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing, "QUICK", 0.2)
    with (
        wait_here(tmp_path / "slow") as listener,
        sockets.connect(tmp_path / "slow", handing.HAND),
        pytest.raises(EncampError, match="did not"),
    ):
        await hand_over(listener, visit, lambda: False)


def test_place_that_cannot_be_made_is_told_as_what_could_not_be_written(tmp_path: Path) -> None:
    sentence = "Could not write down command 17: No such"
    with pytest.raises(EncampError, match=sentence) as raised, wait_here(tmp_path / "no" / "17"):
        pass
    assert raised.value.code is Code.DISK_FULL
