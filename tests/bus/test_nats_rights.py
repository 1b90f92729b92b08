"""What the servers enforce, whatever an agent does: asked with plain NATS, past our own code."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from encamp.bus import secret, subjects
from encamp.bus.bus import Message
from encamp.bus.frames import MESSAGE, Kind
from encamp.bus.opening import open_bus
from encamp.manager.joining import join
from encamp.model.errors import Code, EncampError
from encamp.model.site import EVERYBODY, MANAGER, Site
from tests.bus.meeting import Kept, Watched, ignore, until
from tests.bus.nats_server import DEBIAN, WHEEL, NatsSite, nats_site


class Plain:
    """A client of NATS that knows nothing of Encamp."""

    def __init__(self, client: Client, errors: list[str]) -> None:
        self.client = client
        self.errors = errors

    async def refused(self) -> bool:
        """Has the server refused what was tried since the last time?"""
        await self.client.flush()
        await asyncio.sleep(0.02)
        refused = [error for error in self.errors if "permissions violation" in error]
        self.errors.clear()
        return bool(refused)

    async def may_publish(self, subject: str, data: bytes = b"x") -> bool:
        await self.client.publish(subject, data)
        return not await self.refused()

    async def may_subscribe(self, subject: str) -> bool:
        await self.client.subscribe(subject, cb=_pass_over)
        return not await self.refused()


async def _pass_over(message: Msg) -> None:
    return None


@asynccontextmanager
async def plain(site: Site) -> AsyncIterator[Plain]:
    errors: list[str] = []

    async def note(error: Exception) -> None:
        errors.append(str(error).lower())

    client = await nats.connect(
        list(site.bus), user_credentials=site.credential, error_cb=note, allow_reconnect=False
    )
    try:
        yield Plain(client, errors)
    finally:
        await client.close()


def agent(site: NatsSite, name: str, directory: Path, groups: tuple[str, ...] = ()) -> Site:
    """An agent as `encamp site add` and `join` make one."""
    invitation = secret.unpack(site.enrolment.add(name, groups, None))
    join(directory / name, invitation)
    credential = directory / name / "credentials" / f"{name}.creds"
    return Site(bus=invitation.bus, credential=str(credential), presence=site.presence)


async def test_an_agent_can_speak_only_under_its_own_name(site: NatsSite, tmp_path: Path) -> None:
    kept, watched = Kept(), Watched()
    name = f"evil.{time.monotonic_ns()}"
    async with (
        open_bus(site.manager(), MANAGER, (), kept) as manager,
        plain(agent(site, name, tmp_path)) as evil,
    ):
        await manager.watch(watched)
        message = MESSAGE.pack(Kind.SEND, 1, 1, 1) + b"I am victim"
        for subject in (
            *(subjects.to(MANAGER, "victim"), subjects.answer(MANAGER, "victim")),
            *(subjects.here("victim"), subjects.here(MANAGER)),
            *(subjects.to("victim", MANAGER), subjects.to("victim", name)),
            *(subjects.group(EVERYBODY, MANAGER), subjects.group(EVERYBODY, name)),
            *("$SYS.REQ.SERVER.PING", "_INBOX.any", "anything"),
        ):
            assert not await evil.may_publish(subject, message), subject
        assert await evil.may_publish(subjects.to(MANAGER, name), message)
        await until(lambda: kept.messages)
    assert [each.sender for each in kept.messages] == [name]
    assert {told.name for told in watched.told} == {name}


async def test_an_agent_cannot_listen_to_what_others_are_told(
    site: NatsSite, tmp_path: Path
) -> None:
    name = f"curious-{time.monotonic_ns()}"
    async with plain(agent(site, name, tmp_path, ("blue",))) as curious:
        for subject in (
            *(">", "to.>", "to.*.manager", "to.victim.*", "to.manager.*"),
            *("re.>", "re.victim.>", "re.*.*", "here.*", "all.*.*", "all.green.*"),
            *("_INBOX.>", "$SYS.>"),
        ):
            assert not await curious.may_subscribe(subject), subject
        for subject in (f"to.{name}.*", f"re.{name}.>", f"all.{EVERYBODY}.*", "all.blue.*"):
            assert await curious.may_subscribe(subject), subject


async def test_a_forged_place_to_answer_to_is_not_answered(site: NatsSite, tmp_path: Path) -> None:
    """The manager may speak to everybody: an agent must not choose where its answer goes."""
    kept = Kept()
    name = f"forger-{time.monotonic_ns()}"

    async def answer(message: Message) -> bytes:
        return b"do as you are told"

    async with (
        open_bus(site.manager(), MANAGER, (), answer),
        open_bus(site.member("victim"), "victim", (), kept) as victim,
        plain(agent(site, name, tmp_path)) as forger,
    ):
        request = MESSAGE.pack(Kind.REQUEST, 1, 1, 1)
        reply = subjects.to("victim", MANAGER)
        await forger.client.publish(subjects.to(MANAGER, name), request, reply=reply)
        await forger.client.flush()
        assert await victim.request(MANAGER, b"") == b"do as you are told"
        await asyncio.sleep(0.1)
    assert kept.messages == []


async def test_what_makes_no_sense_disturbs_nobody_else(site: NatsSite, tmp_path: Path) -> None:
    kept, watched = Kept(), Watched()
    name = f"garbage-{time.monotonic_ns()}"
    chance = random.Random(7)
    async with (
        open_bus(site.manager(), MANAGER, (), kept) as manager,
        open_bus(site.member("honest"), "honest", (), ignore) as honest,
        plain(agent(site, name, tmp_path)) as garbage,
    ):
        await manager.watch(watched)
        for subject in (*(f"to.manager.{name}", f"re.manager.{name}"), f"here.{name}"):
            for _ in range(300):
                data = chance.randbytes(chance.randrange(60))
                if chance.random() < 0.5:
                    data = bytes([chance.randrange(10)]) + data
                await garbage.client.publish(subject, data, reply="to.honest.manager")
        assert not await garbage.refused()
        await honest.request(MANAGER, b"still there?")
        await until(lambda: watched.of("honest"))
        assert watched.of("honest") == ["joined"]
    assert kept.of("honest") == [b"still there?"]


async def test_without_a_credential_nobody_gets_in(site: NatsSite) -> None:
    alone = Site(bus=site.manager().bus)
    with pytest.raises(EncampError, match="wants a credential") as caught:
        async with open_bus(alone, "n1", (), ignore):
            pass
    assert caught.value.code is Code.NOT_PERMITTED


async def test_a_credential_that_is_missing_or_damaged_is_an_error_at_once(
    site: NatsSite, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.creds"
    damaged.write_text("-----BEGIN NATS USER JWT-----\n")
    for path, code in ((damaged, Code.CORRUPT), (tmp_path / "none", Code.INPUT_MISSING)):
        with pytest.raises(EncampError, match=str(path)) as caught:
            async with open_bus(
                Site(bus=site.manager().bus, credential=str(path)), "a", (), ignore
            ):
                pass
        assert caught.value.code is code


async def test_a_credential_of_another_name_is_an_error_at_once_that_says_both(
    site: NatsSite,
) -> None:
    with pytest.raises(EncampError, match="is that of 'node3', and this is 'node1'") as caught:
        async with open_bus(site.member("node3"), "node1", (), ignore):
            pass
    assert caught.value.code is Code.NOT_PERMITTED
    assert "host: node3" in caught.value.hint


async def test_a_second_manager_is_told_that_there_is_one(site: NatsSite) -> None:
    async with open_bus(site.manager(), MANAGER, (), ignore):
        with pytest.raises(EncampError, match="has a manager already") as caught:
            async with open_bus(site.manager(), MANAGER, (), ignore):
                pass
    assert caught.value.code is Code.WRONG_STATE
    assert "stop the other" in caught.value.hint


async def test_a_credential_that_has_expired_is_refused(site: NatsSite) -> None:
    old = site.member("old", expires=time.time() - 10)
    with pytest.raises(EncampError, match="refuses the credential") as caught:
        async with open_bus(old, "old", (), ignore):
            pass
    assert caught.value.code is Code.NOT_PERMITTED


async def test_a_group_that_the_credential_does_not_name_is_said(
    site: NatsSite, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept()
    member = site.member("greedy", ("blue",))
    async with (
        open_bus(site.manager(), MANAGER, (), ignore) as manager,
        open_bus(member, "greedy", ("blue", "red"), kept),
    ):
        await manager.multicast("red", b"for red only")
        await manager.multicast("blue", b"for blue")
        await until(lambda: kept.messages)
    assert kept.bodies == [b"for blue"]
    assert "all.red" in caplog.text


@pytest.mark.parametrize("program", [DEBIAN, WHEEL], ids=["debian", "wheel"])
async def test_whoever_is_removed_is_cut_off_at_once_and_stays_out(
    tmp_path: Path, program: str, caplog: pytest.LogCaptureFixture
) -> None:
    with nats_site(tmp_path, program=program) as site:
        removed, other = agent(site, "removed", tmp_path), agent(site, "other", tmp_path)
        async with (
            open_bus(site.manager(), MANAGER, (), ignore),
            open_bus(removed, "removed", (EVERYBODY,), ignore) as bus,
            open_bus(other, "other", (EVERYBODY,), ignore) as staying,
        ):
            await bus.request(MANAGER, b"")
            assert site.enrolment.remove("removed") == [site.directory / "nats-server.conf"]
            site.server.reload()
            async with asyncio.timeout(20):
                reason = await bus.ended()
            assert reason.code is Code.NOT_PERMITTED
            assert "revoked" in reason.hint
            # Whoever ends by it says so.
            assert "refuses the credential" not in caplog.text
            with pytest.raises(EncampError, match="refuses the credential"):
                await bus.send(MANAGER, b"")
            await staying.request(MANAGER, b"")
        again = agent(site, "removed", tmp_path / "again")
        async with open_bus(again, "removed", (EVERYBODY,), ignore):
            pass
