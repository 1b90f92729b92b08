"""Servers that die, cables that are cut, participants that do not read: everything goes on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.bus.bus import Message
from encamp.bus.link import Link
from encamp.bus.nats import NatsBus
from encamp.bus.opening import open_bus
from encamp.model.errors import Code, EncampError
from encamp.model.site import MANAGER, Presences, Site
from tests.bus.meeting import Kept, Watched, ignore, until
from tests.bus.nats_server import DEBIAN, WHEEL, NatsSite, Server, nats_server, nats_site
from tests.bus.participant import participant
from tests.bus.partition import cable

PROGRAMS = pytest.mark.parametrize("program", [DEBIAN, WHEEL], ids=["debian", "wheel"])


async def restart(server: Server) -> None:
    server.stop()
    await asyncio.to_thread(server.start)


@PROGRAMS
async def test_a_server_that_is_killed_and_started_again_loses_and_repeats_nothing(
    tmp_path: Path, program: str
) -> None:
    kept, watched = Kept(), Watched()
    asked: list[bytes] = []

    async def answer(message: Message) -> bytes:
        asked.append(message.body)
        await asyncio.sleep(0.01)
        return b"re " + message.body

    with nats_site(tmp_path, program=program) as site:
        async with (
            open_bus(site.manager(), MANAGER, (), kept) as manager,
            open_bus(site.member("n1"), "n1", (), answer) as n1,
        ):
            await manager.watch(watched)
            await until(lambda: watched.of("n1"))
            done = 0

            async def send() -> None:
                nonlocal done
                for number in range(300):
                    await n1.send(MANAGER, b"%d" % number, timeout=30)
                    done += 1

            async def ask() -> None:
                nonlocal done
                for number in range(150):
                    answered = await manager.request("n1", b"%d" % number, timeout=30)
                    assert answered == b"re %d" % number
                    done += 1

            working = asyncio.gather(send(), ask())
            for moment in (50, 150, 250):
                await until(lambda moment=moment: done >= moment)  # type: ignore[misc]
                await restart(site.server)
            await working
        assert kept.bodies == [b"%d" % number for number in range(300)]
        assert asked == [b"%d" % number for number in range(150)]
        assert watched.of("n1")[:1] == ["joined"]
        assert "lost" not in watched.of("n1"), "the watcher was cut off itself"


async def test_sending_waits_for_a_server_until_its_time_is_up(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        site = Site(bus=(server.url,))
        async with (
            open_bus(site, "a", (), ignore) as a,
            open_bus(site, "b", (), ignore),
        ):
            server.stop()
            with pytest.raises(EncampError) as caught:
                await a.send("b", b"", timeout=0.5)
            assert caught.value.code is Code.UNREACHABLE
            waiting = asyncio.create_task(a.send("b", b"", timeout=30))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(server.start)
            await waiting


async def test_whoever_is_told_to_end_as_the_server_answers_ends(
    site: NatsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager that stood by until just then would never lead otherwise, and one that leads would
    never stop."""

    async def answered(link: Link, future: asyncio.Future[bool]) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        future.set_result(True)

    async with open_bus(site.manager(), MANAGER, (), ignore) as manager:
        with monkeypatch.context() as patched:
            patched.setattr(Link, "_send_ping", answered)
            standing_by = NatsBus(site.manager(), MANAGER, (), ignore, only_asks=True)
            for told in (manager.watch(Watched()), standing_by.__aenter__()):
                task = asyncio.ensure_future(told)
                await asyncio.wait({task}, timeout=30)
                assert task.cancelled()


@pytest.mark.parametrize(
    ("step", "mistake"),
    [
        ("drop", AttributeError("nothing to abort")),
        ("take_from", RuntimeError("nobody thought of this")),
        ("flush", asyncio.CancelledError()),
    ],
    ids=["dropping", "connecting", "waiting"],
)
async def test_a_mistake_in_keeping_the_connection_is_said_and_the_connection_made_anew(
    tmp_path: Path,
    step: str,
    mistake: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept, failures = Kept(), 0
    right = getattr(Link, step)

    async def wrong_at_first(link: Link, *words: Any) -> None:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise mistake
        await right(link, *words)

    with nats_server(tmp_path) as server:
        site = Site(bus=(server.url,))
        async with open_bus(site, "a", (), ignore) as a, open_bus(site, "b", (), kept):
            await a.send("b", b"before")
            monkeypatch.setattr(Link, step, wrong_at_first)
            await restart(server)
            await a.send("b", b"after", timeout=60)
            assert failures >= 2, "both have come back only after their mistakes"
    assert kept.bodies == [b"before", b"after"]
    assert "is lost by a mistake" in caplog.text


async def test_it_is_said_as_loudly_that_the_connection_is_back_as_that_it_was_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with nats_server(tmp_path) as server:
        async with open_bus(Site(bus=(server.url,)), "a", (), ignore):
            server.stop()
            await until(lambda: "no connection to the bus" in caplog.text)
            await asyncio.to_thread(server.start)
            await until(lambda: "connected to the bus again" in caplog.text)
    levels = {record.levelname for record in caplog.records if "to the bus" in record.message}
    assert levels == {"WARNING"}


async def test_one_who_was_there_a_moment_ago_is_waited_for(tmp_path: Path) -> None:
    kept = Kept()
    with nats_server(tmp_path) as server:
        site = Site(bus=(server.url,))
        async with open_bus(site, "a", (), ignore) as a:
            async with open_bus(site, "b", (), kept):
                await a.send("b", b"before")
            waiting = asyncio.create_task(a.send("b", b"after", timeout=60))
            await asyncio.sleep(1.5)
            async with open_bus(site, "b", (), kept):
                await waiting
                await until(lambda: len(kept.messages) == 2)
    assert kept.bodies == [b"before", b"after"]


async def test_a_participant_without_signs_of_life_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(bus: NatsBus) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(NatsBus, "_beat", fail)
    with nats_server(tmp_path) as server:
        async with open_bus(Site(bus=(server.url,)), "a", (), ignore) as a:
            async with asyncio.timeout(20):
                reason = await a.ended()
    assert reason.code is Code.INTERNAL
    assert "signs of life" in reason.sentence
    assert "nobody thought of this" in caplog.text


async def test_opening_waits_for_a_server_as_long_as_it_is_told_to(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        server.stop()
        site = Site(bus=(server.url,))
        with pytest.raises(EncampError, match="No server of the bus answers") as caught:
            async with open_bus(site, "a", (), ignore, patience=0.3):
                pass
        assert caught.value.code is Code.UNREACHABLE
        opening = asyncio.create_task(open_bus(site, "a", (), ignore).__aenter__())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.start)
        bus = await opening
        await bus.__aexit__(None, None, None)


async def test_when_one_server_of_three_dies_its_participants_go_on_at_another(
    tmp_path: Path,
) -> None:
    kept, watched = Kept(), Watched()
    with nats_site(tmp_path, count=3) as site:
        names = [f"n{number}" for number in range(6)]
        async with (
            open_bus(site.manager(), MANAGER, (), kept) as manager,
            asyncio.TaskGroup() as tasks,
        ):
            await manager.watch(watched)
            gone = asyncio.Event()

            async def talk(name: str) -> None:
                # One address is enough: the servers tell of each other.
                member = site.member(name)
                member = msgspec.structs.replace(member, bus=member.bus[:1])
                async with open_bus(member, name, (), ignore) as bus:
                    for number in range(100):
                        await bus.send(MANAGER, b"%d" % number, timeout=30)
                    await gone.wait()
                    for number in range(100, 200):
                        await bus.send(MANAGER, b"%d" % number, timeout=30)
                    await until(lambda: len(kept.of(name)) == 200)

            for name in names:
                tasks.create_task(talk(name))
            await until(lambda: len(kept.messages) > 100)
            site.server.stop()
            gone.set()
        numbers = [b"%d" % number for number in range(200)]
        assert all(kept.of(name) == numbers for name in names)


async def test_one_who_does_not_read_is_thrown_out_by_the_server_and_still_gets_everything(
    tmp_path: Path,
) -> None:
    slow_options = 'write_deadline: "300ms"\nmax_pending: 2097152'
    numbers = [b"%d" % number for number in range(7)]
    names = [f"n{number}" for number in range(12)]
    file = tmp_path / "kept"
    with nats_server(tmp_path, options=slow_options) as server:
        site = Site(bus=(server.url,))
        with participant(site, "slow", file) as slow:
            met: list[str] = []
            stopped = asyncio.Event()

            async def push(name: str) -> None:
                async with open_bus(site, name, (), ignore) as bus:
                    await bus.send("slow", numbers[0], timeout=60)
                    met.append(name)
                    await stopped.wait()
                    for number in numbers[1:]:
                        await bus.send("slow", number + b" " * 990_000, timeout=60)

            pushing = [asyncio.create_task(push(name)) for name in names]
            # Whoever comes while it is thrown out would not find it there.
            await until(lambda: len(met) == len(names))
            slow.send_signal(signal.SIGSTOP)
            stopped.set()
            await until(lambda: "Slow Consumer" in server.log.read_text())
            slow.send_signal(signal.SIGCONT)
            await asyncio.gather(*pushing)
            await until(lambda: file.read_bytes().count(b"\n") >= len(names) * len(numbers))
    lines = [line.split() for line in file.read_bytes().splitlines()]
    for name in names:
        assert [line[1] for line in lines if line[0] == name.encode()] == numbers


async def test_a_cut_cable_is_noticed_and_when_it_is_mended_everything_goes_on(
    tmp_path: Path,
) -> None:
    watched = Watched()
    file = tmp_path / "kept"
    with (
        cable() as line,
        nats_server(tmp_path, host=line.here) as server,
    ):
        site = Site(bus=(server.url,), presence=Presences(interval=0.2, silence=3.0))
        with participant(site, "far", file, prefix=line.prefix):
            async with open_bus(site, MANAGER, (), ignore) as manager:
                await manager.watch(watched)
                assert await manager.request("far", b"before") == b"0"
                await until(lambda: watched.of("far"))
                line.cut()
                waiting = asyncio.create_task(manager.request("far", b"meanwhile", timeout=60))
                await until(lambda: len(watched.of("far")) == 2)
                assert watched.of("far") == ["joined", "lost"]
                assert "nothing was heard of it for 3 seconds" in watched.reason("far")
                line.mend()
                assert await waiting == b"1"
                await until(lambda: len(watched.of("far")) == 3)
                assert watched.of("far")[-1] == "joined"
                assert await manager.request("far", b"after", timeout=60) == b"2"
    assert file.read_bytes() == b"manager before\nmanager meanwhile\nmanager after\n"
