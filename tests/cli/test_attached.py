"""Somebody who waits for a request: what the manager says, and what its hosts say, together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from encamp.cli import attached as module
from encamp.cli.attached import Attached
from encamp.door import questions
from encamp.door.peer import Peer
from encamp.door.server import Door
from encamp.model.errors import Code, EncampError
from encamp.model.job import Outcome
from encamp.model.request import (
    REQUEST_OVER,
    Part,
    PartState,
    Reason,
    RequestRecord,
    RequestState,
    claim_id,
)
from encamp.progress import Silent
from tests.cli.test_jobs import record
from tests.meeting.meeting import OUTCOME, Files, Host, Streams, host

WANTED = msgspec.structs.replace(record("5").request, detached=False)


class Manager:
    """Tells what the test has happen."""

    def __init__(self, here: Host) -> None:
        self.here = here
        self.record = RequestRecord(request=WANTED)
        self.ended = False
        self._changed = asyncio.Event()

    def move(self, state: RequestState, attempt: int = 1, sentence: str = "") -> None:
        placed = state not in (RequestState.WAITING, RequestState.CLAIMING)
        part = Part(number=0, host="here", state=PartState.STARTING)
        self.record = RequestRecord(
            request=self.record.request,
            state=state,
            attempt=attempt,
            reason=Reason(sentence=sentence),
            parts=(part,) if placed else (),
        )
        self._changed.set()
        self._changed = asyncio.Event()

    async def __call__(
        self, peer: Peer, question: questions.Question
    ) -> AsyncIterator[msgspec.Struct]:
        match question:
            case questions.Submit():
                yield self.record
            case questions.FollowRequest():
                while True:
                    changed, told = self._changed, self.record
                    yield told
                    if told.state in REQUEST_OVER:
                        return
                    await changed.wait()
            case questions.AskTicket():
                yield self.here.ticket(claim_id(WANTED.id, 0, self.record.attempt))
            case questions.EndRequest():
                self.ended = True
                self.move(RequestState.CANCELLED, self.record.attempt)
                yield self.record
            case _:
                raise AssertionError(question)


class Case:
    def __init__(self, root: Path, here: Host, manager: Manager) -> None:
        self.here = here
        self.manager = manager
        self.streams = Streams(b"input")
        self.attached = Attached(
            root / "door",
            manager.record.request,
            part=lambda number: (self.streams, Files()),
            progress=Silent(),
        )
        self.running: asyncio.Task[list[Outcome | None]]

    def start(self) -> None:
        self.running = asyncio.create_task(self.attached.run())

    def id(self, attempt: int) -> str:
        return claim_id(WANTED.id, 0, attempt)


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    async with host(tmp_path) as here:
        manager = Manager(here)
        async with Door(tmp_path / "door", manager):
            yield Case(tmp_path, here, manager)


async def test_job_that_could_not_be_made_on_one_host_is_met_on_the_next(case: Case) -> None:
    case.start()
    case.manager.move(RequestState.STARTING, 1)
    async with case.here.job(case.id(1)) as first:
        await first.arrived()
        await first.failed(EncampError(Code.DISK_FULL, "The disk is full."))
    case.manager.move(RequestState.WAITING, 1, "tried elsewhere")
    case.manager.move(RequestState.STARTING, 2)
    async with case.here.job(case.id(2)) as second:
        await second.arrived()
        second.began()
        await second.write(b"output")
        await second.ended(OUTCOME)
        assert await case.running == [OUTCOME]
    assert case.streams.out == b"output"
    assert not case.manager.ended


async def test_host_says_better_than_the_manager_why_it_failed(case: Case) -> None:
    case.start()
    case.manager.move(RequestState.STARTING)
    async with case.here.job(case.id(1)) as conversation:
        await conversation.arrived()
        case.manager.move(RequestState.FAILED, sentence="it failed")
        await conversation.failed(EncampError(Code.NOT_READY, "It is not ready.", "See its log."))
        with pytest.raises(EncampError, match="It is not ready") as raised:
            await case.running
    assert raised.value.code is Code.NOT_READY
    assert not case.manager.ended


async def test_manager_says_why_if_no_host_does(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WORD", 0.1)
    case.start()
    case.manager.move(RequestState.STARTING)
    case.manager.move(RequestState.FAILED, sentence="its claim was refused")
    with pytest.raises(EncampError, match="its claim was refused"):
        await case.running


async def test_all_of_the_output_comes_though_the_manager_knows_the_end_already(
    case: Case,
) -> None:
    case.start()
    case.manager.move(RequestState.RUNNING)
    case.streams.may_take.clear()
    async with case.here.job(case.id(1)) as conversation:
        await conversation.arrived()
        conversation.began()
        await conversation.write(bytes(1_000_000))
        case.manager.move(RequestState.DONE)
        ending = asyncio.create_task(conversation.ended(OUTCOME))
        case.streams.may_take.set()
        assert await case.running == [OUTCOME]
        await ending
    assert len(case.streams.out) == 1_000_000


async def test_request_is_ended_with_its_caller(case: Case) -> None:
    case.start()
    async with asyncio.timeout(60):
        while case.attached.record is None:
            await asyncio.sleep(0.01)
    case.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await case.running
    assert case.manager.ended


async def test_host_that_cannot_be_met_is_told_and_the_request_ended(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VERDICT", 0.1)
    monkeypatch.setattr(
        case.here,
        "ticket",
        lambda id: questions.Ticket(host="far", id=id, secret="x"),
    )
    case.start()
    case.manager.move(RequestState.STARTING)
    with pytest.raises(EncampError, match="Host far takes no clients"):
        await case.running
    assert case.manager.ended
