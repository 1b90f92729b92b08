"""A host that has been taken over can say what it likes: the rest of the site does not notice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from encamp.bus.bus import LARGEST_MESSAGE, Bus, Message
from encamp.bus.messages import CommandNews, Hello, News, Report, encode
from encamp.bus.opening import open_bus
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.property import PropertyDefinition, Reading, ValueKind
from encamp.model.site import EVERYBODY, MANAGER, Site
from tests.site.siting import RunningSite, root_only, running_site

pytestmark = [pytest.mark.site, root_only]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSite]:
    """An honest host, and a credential for another."""
    with running_site(tmp_path_factory.mktemp("site")) as site:
        site.add_agent("evil")
        yield site


def connection(site: RunningSite) -> Bus:
    """The hostile host's own, as its credential allows it."""

    async def ignore(message: Message) -> bytes | None:
        return None

    credential = str(site.root / "evil" / "credentials" / "evil.creds")
    known = Site(bus=(f"nats://{site.address}",), credential=credential, host="evil")
    return open_bus(known, "evil", (EVERYBODY,), ignore)


def hello(**more: Any) -> Hello:
    plain = Hello(
        instance="evil",
        home="evil",
        version="1",
        time=time.time(),
        properties=(
            PropertyDefinition(name="text", command="x", return_type=ValueKind.STR),
            PropertyDefinition(name="number", command="x", return_type=ValueKind.INT),
        ),
    )
    return msgspec.structs.replace(plain, **more)


async def refusal(bus: Bus, body: bytes) -> EncampError:
    with pytest.raises(EncampError) as refused:
        await bus.request(MANAGER, body)
    return refused.value


def unaffected(site: RunningSite) -> None:
    assert site.hosts()["node1"]["presence"] == "joined"
    assert "pong" in site("command", "send", "node1", "agent.ping").stdout
    assert "Traceback" not in site.daemons["manager"].said()


async def test_what_is_no_message_is_refused_and_told_once(site: RunningSite) -> None:
    chance = random.Random(7)
    good = [
        encode(hello()),
        encode(Report(instance="evil", readings={"text": Reading("x" * 50)})),
        encode(News(instance="evil", commands=(CommandNews(id="a", state=CommandState.DONE),))),
    ]
    async with connection(site) as bus:
        for _ in range(400):
            body = bytearray(chance.choice(good))
            for _ in range(chance.randrange(1, 6)):
                body[chance.randrange(len(body))] = chance.randrange(256)
            body = body[: chance.randrange(len(body) + 1)]
            with suppress(EncampError):  # Some are valid still.
                await bus.request(MANAGER, bytes(body))
        for junk in (
            b"",
            b"\xc1",
            b"\x81" * 10_000,
            b"\xdf\xff\xff\xff\xff",
            b"x" * LARGEST_MESSAGE,
        ):
            assert (await refusal(bus, junk)).code is Code.PROTOCOL
    await asyncio.to_thread(unaffected, site)
    told = [event for event in site.events("host trouble") if event["host"] == "evil"]
    assert 1 <= len(told) <= 3


async def test_depth_and_size_without_bound_are_refused(site: RunningSite) -> None:
    async with connection(site) as bus:
        await bus.request(MANAGER, encode(hello()))
        deep = b"\x92" + b"\x91" * 200_000
        assert (await refusal(bus, deep)).code is Code.PROTOCOL
        # A list where a text was announced, each deeper than the other.
        report = Report(instance="evil", readings={"text": Reading([[[["x"]]]])})
        await bus.request(MANAGER, encode(report))
        many = {f"p{number}": Reading(number) for number in range(5000)}
        # Nobody knows what these are about: they are left out.
        await bus.request(MANAGER, encode(Report(instance="evil", readings=many)))
        names = tuple(PropertyDefinition(name=f"p{number}", command="x") for number in range(5000))
        assert (await refusal(bus, encode(hello(properties=names)))).code is Code.PROTOCOL
    error = (await asyncio.to_thread(site.hosts))["evil"]["readings"]["text"]["error"]
    assert "list, not str" in error
    await asyncio.to_thread(unaffected, site)


async def test_a_host_cannot_end_the_commands_of_another(site: RunningSite) -> None:
    done = await asyncio.to_thread(site.ask, "command", "send", "node1", "agent.ping", "--detach")
    [record] = done if isinstance(done, list) else [done]
    async with connection(site) as bus:
        await bus.request(MANAGER, encode(hello()))
        forged = CommandNews(id=record["id"], state=CommandState.FAILED, reason="forged")
        await bus.request(MANAGER, encode(News(instance="evil", commands=(forged,))))
    await asyncio.to_thread(
        site.wait_for, "its end", lambda: site.commands()[record["id"]]["state"] == "done"
    )
    assert "forged" not in site.commands()[record["id"]]["reason"]


async def test_a_flood_of_reports_does_not_keep_others_waiting(site: RunningSite) -> None:
    async with connection(site) as bus:
        await bus.request(MANAGER, encode(hello()))
        body = encode(Report(instance="evil", readings={"text": Reading("x" * 100_000)}))

        async def flood() -> None:
            while True:
                await bus.request(MANAGER, body)

        tasks = [asyncio.create_task(flood()) for _ in range(8)]
        try:
            await asyncio.to_thread(unaffected, site)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_clock_an_hour_off_is_told_and_put_right(site: RunningSite) -> None:
    later = time.time() + 3600
    async with connection(site) as bus:
        reading = Reading(7, at=later)
        await bus.request(MANAGER, encode(hello(time=later, readings={"number": reading})))
        host = (await asyncio.to_thread(site.hosts))["evil"]
    assert 3590 < host["clock_offset"] < 3610
    assert abs(host["readings"]["number"]["at"] - time.time()) < 300
    site.wait_for(
        "the clock to be told",
        lambda: any("seconds ahead" in told["sentence"] for told in site.events("host trouble")),
    )
    await asyncio.to_thread(unaffected, site)


async def test_a_host_is_in_no_group_that_its_credential_does_not_name(site: RunningSite) -> None:
    async with connection(site) as bus:
        await bus.request(MANAGER, encode(hello(groups=("workers", "administrators"))))
        host = (await asyncio.to_thread(site.hosts))["evil"]
        assert host["groups"] == ("workers",)
