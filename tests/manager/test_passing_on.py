"""Questions are passed on to the manager that leads, and answers come back whole; over NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from encamp.bus.opening import open_bus
from encamp.bus.reaching import Reach
from encamp.door.frames import Item
from encamp.door.peer import Peer
from encamp.door.questions import AskHosts, Output, Question
from encamp.door.server import Answerer
from encamp.manager.passing_on import PIECE, Answering, UnreachedError, pass_on
from encamp.model.errors import Code, EncampError
from encamp.model.site import MANAGER
from tests.bus.nats_server import NatsSite, nats_site

ALICE = Peer(uid=1001, gid=1001, pid=7, user="alice", groups=("people",))
LARGE = b"x" * (PIECE // 2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsSite]:
    path: Path = tmp_path_factory.mktemp("bus")
    with nats_site(path) as found:
        yield found


@asynccontextmanager
async def leading(site: NatsSite, answer: Answerer, rank: int = 7) -> AsyncIterator[None]:
    answering = Answering(answer)
    async with open_bus(site.manager(), MANAGER, (), answering.take, rank=rank):
        yield
        await answering.close()


async def told(reach: Reach, question: Question, patience: float = 10.0) -> list[Output]:
    items = [part async for part in pass_on(reach, ALICE, question, patience)]
    return [output(one) for one in items]


def output(item: Item) -> Output:
    assert item.kind == "Output"
    return msgspec.msgpack.decode(item.value, type=Output)


async def test_who_asks_and_what_is_answered_arrives_whole(site: NatsSite) -> None:
    async def answer(peer: Peer, question: Question) -> AsyncIterator[msgspec.Struct]:
        assert peer == ALICE
        assert question == AskHosts(hosts=("node1",))
        for number in range(7):
            yield Output(str(number), number, LARGE)

    async with Reach(site.manager(), MANAGER) as reach, leading(site, answer):
        found = await told(reach, AskHosts(hosts=("node1",)))
    assert [(one.offset, one.piece == LARGE) for one in found] == [(n, True) for n in range(7)]


async def test_an_error_of_the_leader_is_raised_where_it_was_asked(site: NatsSite) -> None:
    async def answer(peer: Peer, question: Question) -> AsyncIterator[msgspec.Struct]:
        yield Output("", 0, b"")
        raise EncampError(Code.NOT_PERMITTED, "alice may not.", "Ask somebody.")

    async with Reach(site.manager(), MANAGER) as reach, leading(site, answer):
        with pytest.raises(EncampError, match="alice may not") as caught:
            await told(reach, AskHosts())
    assert (caught.value.code, caught.value.hint) == (Code.NOT_PERMITTED, "Ask somebody.")


async def test_whoever_does_not_read_and_whoever_leaves_costs_the_leader_little(
    site: NatsSite,
) -> None:
    produced, closed = 0, asyncio.Event()

    async def answer(peer: Peer, question: Question) -> AsyncIterator[msgspec.Struct]:
        nonlocal produced
        try:
            while True:
                produced += 1
                yield Output("", 0, LARGE)
        finally:
            closed.set()

    async with Reach(site.manager(), MANAGER) as reach, leading(site, answer):
        async with aclosing(pass_on(reach, ALICE, AskHosts(), 10.0)) as parts:
            for _ in range(5):
                await anext(parts)
        await closed.wait()
        assert produced < 20


async def test_a_leader_that_has_forgotten_the_question_is_gone(
    site: NatsSite,
) -> None:
    async def answer(peer: Peer, question: Question) -> AsyncIterator[msgspec.Struct]:
        yield Output("", 0, b"")
        await asyncio.sleep(3600)

    async with (
        Reach(site.manager(), MANAGER) as reach,
        aclosing(pass_on(reach, ALICE, AskHosts(), 10.0)) as parts,
    ):
        async with leading(site, answer, rank=7):
            await anext(parts)
        # The next one knows nothing of it: whoever asked has to ask again.
        async with leading(site, answer, rank=8):
            with pytest.raises(ConnectionError):
                await anext(parts)


async def test_without_a_leader_it_is_said_so(site: NatsSite) -> None:
    async with Reach(site.manager(), MANAGER) as reach:
        with pytest.raises(UnreachedError):
            await told(reach, AskHosts(), patience=0.5)
