"""Claims: what a host promises it has room for, and keeps until it is used, released or expired."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from encamp.agent.commands.family import MARK
from encamp.agent.promised import counting
from encamp.bus.messages import Claim
from encamp.home import Home, user_name
from encamp.machines import room
from encamp.machines.hardware import Hardware
from encamp.machines.standing import OWN, Standing, standing
from encamp.model.command import CommandState
from encamp.model.driver import DriverName
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, Size
from tests.agent.commands.listening import Asker
from tests.agent.commands.requesting import claim, execute, id_of, request

GIB = 1024 * MIB


def of(id: str, memory: int = 128 * MIB, *, disk: int = 0, cpus: int = 1, **more: object) -> Claim:
    whole = Claim(
        id=id,
        owner=user_name(os.geteuid()),
        environment="mini",
        size=Size(cpus, memory, disk),
        seconds=60.0,
    )
    return msgspec.structs.replace(whole, **more)


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 4 GiB for machines, and none."""
    monkeypatch.setattr(room, "standing", list)
    monkeypatch.setattr(room, "available_memory", lambda: 4 * GIB + room.RESERVE)


async def test_no_more_is_promised_than_there_is(host: Home, asker: Asker, empty: None) -> None:
    async with asker.agent(host) as commands:
        await commands.claim(of("a", 2 * GIB))
        await commands.claim(of("b", 1 * GIB))
        with pytest.raises(EncampError, match="Not enough memory") as refused:
            await commands.claim(of("c", 1 * GIB))
        assert refused.value.code is Code.NO_ROOM
        assert refused.value.transient
        # The same again is the same promise, whatever is left.
        await commands.claim(of("a", 2 * GIB))
        assert commands.claims() == ("a", "b")
        commands.release("a")
        commands.release("unheard-of")
        await commands.claim(of("c", 2 * GIB))
        assert commands.claims() == ("b", "c")


async def test_many_claims_at_once_are_judged_one_after_the_other(
    host: Home, asker: Asker, empty: None
) -> None:
    async with asker.agent(host) as commands:
        claims = (commands.claim(of(f"many{number}", 1 * GIB)) for number in range(12))
        told = await asyncio.gather(*claims, return_exceptions=True)
        assert sum(answer is None for answer in told) == 3
        assert len(commands.claims()) == 3


async def test_disks_and_processors_are_promised_once_too(
    host: Home, asker: Asker, empty: None
) -> None:
    free = os.statvfs(host.root)
    half = free.f_bavail * free.f_frsize * 6 // 10
    async with asker.agent(host) as commands:
        await commands.claim(of("a", disk=half))
        with pytest.raises(EncampError, match="Not enough disk"):
            await commands.claim(of("b", disk=half))
        with pytest.raises(EncampError, match="processors"):
            await commands.claim(of("c", cpus=10_000))


async def test_what_is_promised_outlives_the_agent(host: Home, asker: Asker, empty: None) -> None:
    async with asker.agent(host) as commands:
        await commands.claim(of("a", 3 * GIB))
    (host.root / "claims" / "torn").write_bytes(b'{"id": "torn"')
    unfinished = (host.root / "claims" / "a").read_bytes().replace(b'"a"', b'"b"')
    (host.root / "claims" / ".b").write_bytes(unfinished)
    async with asker.agent(host) as commands:
        assert commands.claims() == ("a",)
        assert sorted(path.name for path in (host.root / "claims").iterdir()) == ["a"]
        with pytest.raises(EncampError, match="Not enough memory"):
            await commands.claim(of("b", 3 * GIB))


async def test_what_an_agent_was_about_to_begin_itself_is_not_promised_by_the_next(
    host: Home, asker: Asker, empty: None
) -> None:
    async with asker.agent(host) as commands:
        await commands.claim(of("a", 1 * GIB))
    kept = host.root / "claims" / "a"
    kept.with_name("bait.0").write_bytes(kept.read_bytes().replace(b'"a"', b'"bait.0"'))
    async with asker.agent(host) as commands:
        assert commands.claims() == ("a",)
        assert list(kept.parent.iterdir()) == [kept]


async def test_whoever_has_no_claim_leaves_alone_what_is_promised(
    host: Home, asker: Asker, empty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        """For a machine that somebody starts beside the agent."""
        hardware = Hardware(DriverName.EMULATION, Size(1, 2 * GIB), "none", 1)
        room.check_room(hardware, None, counting(host))

    async with asker.agent(host) as commands:
        check()
        await commands.claim(of("a", 3 * GIB))
        with pytest.raises(EncampError, match="Not enough memory"):
            check()
        # The command that uses it has the room.
        monkeypatch.setenv(MARK, "a")
        check()
        monkeypatch.delenv(MARK)
        commands.release("a")
        check()
        await commands.claim(of("b", 3 * GIB, seconds=0.01))
        while commands.claims():
            await asyncio.sleep(0.005)
        check()


async def test_nothing_is_left_of_a_claim_whose_command_is_over(
    host: Home, asker: Asker, empty: None
) -> None:
    wanted = request("true")
    async with asker.agent(host) as commands:
        await commands.claim(claim(wanted))
        await commands.execute(execute(wanted))
        await asker.until_over(commands, id_of(wanted))
        assert list((host.root / "claims").iterdir()) == []


async def test_a_claim_that_is_not_used_in_time_expires(
    host: Home, asker: Asker, empty: None
) -> None:
    wanted = request("true")
    async with asker.agent(host) as commands:
        await commands.claim(claim(wanted, seconds=0.01))
        while commands.claims():
            await asyncio.sleep(0.005)
        with pytest.raises(EncampError, match="its claim has expired") as refused:
            await commands.execute(execute(wanted))
        # The same command will not be taken later either.
        assert (refused.value.code, refused.value.transient) == (Code.NO_ROOM, False)
        assert commands.under_way() == ()
        assert not (host.root / "commands" / "under-way" / id_of(wanted)).exists()


async def test_a_claim_that_was_used_is_not_given_again(
    host: Home, asker: Asker, empty: None
) -> None:
    wanted = request("true")
    wanted = msgspec.structs.replace(wanted, environment="mini")
    async with asker.agent(host) as commands:
        await commands.claim(claim(wanted))
        await commands.cancel(id_of(wanted))
        ended = await asker.until_over(commands, id_of(wanted))
        assert ended.state is CommandState.CANCELLED
        assert commands.claims() == ()
        with pytest.raises(EncampError, match="was used before"):
            await commands.claim(claim(wanted))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"id": "../etc"}, "cannot be a claim's id"),
        ({"seconds": 0.0}, "cannot last"),
        ({"seconds": float("inf")}, "cannot last"),
        ({"owner": "nobody of that name"}, "has no account|makes machines for"),
        ({"environment": "no-such"}, "There is no environment"),
    ],
)
async def test_claims_that_make_no_sense_are_refused(
    host: Home, asker: Asker, empty: None, wrong: dict[str, object], sentence: str
) -> None:
    async with asker.agent(host) as commands:
        with pytest.raises(EncampError, match=sentence):
            await commands.claim(of(**{"id": "a", **wrong}))  # type: ignore[arg-type]
        assert commands.claims() == ()


@pytest.mark.site
async def test_a_claims_room_passes_to_its_machine_and_counts_once_throughout(
    machine_home: Home, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = standing

    def here() -> list[Standing]:
        """Of the host's machines only this test's: others come and go."""
        found = []
        for machine in everything():
            with suppress(OSError):
                where = Path(f"/proc/{machine.pid}/cwd").readlink()
                if where.is_relative_to(machine_home.root):
                    found.append(machine)
        return found

    total = 4 * GIB + room.RESERVE
    monkeypatch.setattr(room, "standing", here)
    monkeypatch.setattr(
        room, "available_memory", lambda: total - sum(machine.used for machine in here())
    )
    wanted = request()
    machine = wanted.size.memory + OWN + 32 * MIB
    # It grows while it is looked at, but not by as much as it has.
    slack = machine // 3
    fits = of("fits", 4 * GIB - machine - OWN - 32 * MIB - slack)
    too_much = of("too-much", fits.size.memory + 2 * slack)
    looks = 0

    async with asker.agent(machine_home) as commands:

        async def look() -> None:
            nonlocal looks
            looks += 1
            await commands.claim(fits)
            commands.release(fits.id)
            with pytest.raises(EncampError, match="Not enough memory"):
                await commands.claim(too_much)

        await commands.claim(claim(wanted))
        await look()
        await commands.execute(execute(wanted))
        over = asyncio.create_task(asker.until_over(commands, id_of(wanted)))
        while not over.done():
            await look()
        await look()
        made = (await over).value
        assert isinstance(made, dict)
        assert commands.claims() == ()
        removed = await asker.run(commands, "machine.remove", machine=made["machine"], force=True)
        assert removed.state is CommandState.DONE, removed.reason
        await commands.claim(too_much)
    assert looks > 5
