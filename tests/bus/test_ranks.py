"""Of two participants with one name, the one with the higher rank has it; over NATS."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from encamp.agent.conversation import Conversation
from encamp.agent.obeying import Obedience
from encamp.bus.bus import Message
from encamp.bus.frames import LINE
from encamp.bus.messages import Cancel, encode
from encamp.bus.opening import open_bus
from encamp.bus.reaching import Reach
from encamp.bus.refusals import OutrankedError
from encamp.home import Home
from encamp.model.errors import EncampError
from encamp.model.site import MANAGER
from tests.bus.meeting import Kept, ignore
from tests.bus.nats_server import NatsSite


async def test_a_later_one_takes_the_name_from_the_former(site: NatsSite) -> None:
    heard: list[Message] = []

    async def kept(message: Message) -> bytes:
        heard.append(message)
        return b"later"

    async with (
        open_bus(site.manager(), MANAGER, (), ignore, rank=7) as former,
        open_bus(site.manager(), MANAGER, (), kept, rank=8),
        open_bus(site.member("n1"), "n1", (), ignore) as n1,
    ):
        assert isinstance(await former.ended(), OutrankedError)
        with pytest.raises(OutrankedError):
            await former.send("n1", b"too late")
        assert await n1.request(MANAGER, b"hello") == b"later"
        assert [message.body for message in heard] == [b"hello"]


async def test_a_former_one_does_not_get_the_name_back(site: NatsSite) -> None:
    async with open_bus(site.manager(), MANAGER, (), ignore, rank=8) as later:
        with pytest.raises(OutrankedError):
            async with open_bus(site.manager(), MANAGER, (), ignore, rank=7):
                pass
        assert later.is_up


async def test_nobody_listens_to_a_former_one_that_does_not_know_it_yet(
    site: NatsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Kept()
    async with (
        open_bus(site.manager(), MANAGER, (), ignore, rank=7) as former,
        open_bus(site.member("n1"), "n1", (), taken) as n1,
    ):
        await former.send("n1", b"first")
        # It is stuck, and hears nothing of the claim.
        monkeypatch.setattr(former, "_take_from_ourselves", lambda data: None)
        async with open_bus(site.manager(), MANAGER, (), ignore, rank=8) as later:
            await later.request("n1", b"second")
            with pytest.raises(EncampError, match="A later 'manager'") as caught:
                await former.request("n1", b"too late")
            assert caught.value.transient
            await later.request("n1", b"third")
        assert n1.is_up
    assert [(message.rank, message.body) for message in taken.messages] == [
        (7, b"first"),
        (8, b"second"),
        (8, b"third"),
    ]


class Told:
    """An agent's side, as far as it is told something."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def cancel(self, command_id: str) -> None:
        self.cancelled.append(command_id)


async def test_an_agent_obeys_the_latest_manager_also_after_its_restart(tmp_path: Path) -> None:
    told = Told()

    async def say(agent: Conversation, rank: int) -> None:
        await agent.take(Message(MANAGER, encode(Cancel(id=f"by-{rank}")), rank=rank))

    def agent() -> Conversation:
        return Conversation("n1", "one", told, Obedience(Home(tmp_path)))  # type: ignore[arg-type]

    first = agent()
    await say(first, 7)
    await say(first, 8)
    for obeying in (first, agent()):
        with pytest.raises(EncampError, match="A later manager leads the site: 8, not 7") as caught:
            await say(obeying, 7)
        assert caught.value.transient
        await say(obeying, 8)
    # Of one process with its agent.
    await say(first, 0)
    # Of a site whose store is a new one.
    await say(first, 1 << LINE | 3)
    assert told.cancelled == ["by-7", "by-8", "by-8", "by-8", "by-0", f"by-{1 << LINE | 3}"]


async def test_whether_the_bus_can_be_reached_is_known_without_being_there(
    site: NatsSite,
) -> None:
    async with (
        open_bus(site.manager(), MANAGER, (), ignore, rank=7) as leading,
        Reach(site.manager(), MANAGER) as reach,
    ):
        while reach.trouble:
            await asyncio.sleep(0.01)
        assert leading.is_up
    expired = site.member("manager", expires=time.time() - 60)
    async with Reach(expired, MANAGER) as reach:
        while "answers" in reach.trouble:
            await asyncio.sleep(0.01)
        assert "credential" in reach.trouble


async def test_ranks_of_different_stores_are_not_compared(site: NatsSite) -> None:
    async with open_bus(site.manager(), MANAGER, (), ignore, rank=1 << LINE | 7) as first:
        with pytest.raises(EncampError, match="has a manager already"):
            async with open_bus(site.manager(), MANAGER, (), ignore, rank=2 << LINE | 8):
                pass
        assert first.is_up
