"""The prepared process: carriers that are forked are as good as those that are started."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from encamp.agent.commands import caretaker
from encamp.agent.commands.directory import CommandDirectory, Request, Result
from encamp.agent.commands.prepared import Prepared
from encamp.agent.commands.records import Records
from encamp.agent.commands.starting import start_carrier
from encamp.home import Home
from encamp.model.command import CommandState
from tests.agent.commands.listening import Asker


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host it may take long until a carrier is there."""
    monkeypatch.setattr("encamp.agent.commands.prepared.STARTED_IN", 60.0)


@asynccontextmanager
async def prepared(home: Home, ended: list[int]) -> AsyncIterator[Prepared]:
    Records(home).prepare()
    made = Prepared(home, ended.append)
    try:
        yield made
    finally:
        made.close()


def taken(home: Home, id: str, plugin: str, **arguments: object) -> CommandDirectory:
    """A command that an agent has written down."""
    directory = Records(home).directory(id)
    directory.journal(
        Request(
            id=id,
            name=f"test.{plugin}",
            arguments=arguments,  # type: ignore[arg-type]
            issuer="alice",
            timeout=60.0,
            received=time.time(),
            plugin=f"tests.agent.commands.plugins:{plugin}",
        )
    )
    return directory


async def result(directory: CommandDirectory) -> Result:
    while (found := directory.read_result()) is None:
        await asyncio.sleep(0.01)
    return found


async def test_however_many_carriers_are_made_a_command_is_carried_out_once(
    host: Home, tmp_path: Path
) -> None:
    ended: list[int] = []
    counter = tmp_path / "counter"
    async with prepared(host, ended) as process:
        directory = taken(host, "once", "count", file=str(counter))
        forked = [await process.start(directory) for _ in range(3)]
        started = start_carrier(directory, host)
        assert (await result(directory)).state is CommandState.DONE
        assert None not in forked
        while sorted(ended) != sorted(filter(None, forked)):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(os.waitpid, started, 0)
    assert counter.read_text() == "once\n"


@pytest.mark.parametrize("forked", [True, False])
async def test_a_peer_that_has_gone_ends_programs_and_no_command(host: Home, forked: bool) -> None:
    async with prepared(host, []) as process:
        directory = taken(host, "severed", "sever")
        started = None if forked else start_carrier(directory, host)
        if started is None:
            assert await process.start(directory) is not None
        done = await result(directory)
        assert (done.state, done.value) == (CommandState.DONE, -signal.SIGPIPE), done.reason
        if started is not None:
            await asyncio.to_thread(os.waitpid, started, 0)


async def test_what_it_has_begun_goes_on_without_it(host: Home, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("one\n")
    async with prepared(host, []) as process:
        directory = taken(host, "goes-on", "copy", file=str(source))
        child = await process.start(directory)
        assert child is not None
        while directory.read_output(0, 100) != b"one\n":
            await asyncio.sleep(0.01)
        assert os.getsid(child) == child
        server = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)
        # Its end is noticed, and another takes its place.
        counter = tmp_path / "counter"
        again = taken(host, "again", "count", file=str(counter))
        if await process.start(again) is None:
            assert await process.start(again) is not None
        assert (await result(again)).state is CommandState.DONE
    with source.open("a") as file:
        file.write("end")
    ended = await result(directory)
    assert (ended.state, directory.read_output(0, 100)) == (CommandState.DONE, b"one\n")


def waits(server: int) -> list[int]:
    """The carrier that the prepared process has made to wait, and its worker."""
    carriers = children(server)
    return [*carriers, *(worker for carrier in carriers for worker in children(carrier))]


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


async def both_wait(server: int) -> list[int]:
    while len(found := waits(server)) < 2:
        await asyncio.sleep(0.01)
    return found


def kill_and_wait(pid: int) -> None:
    """Until it is dead, though nobody may have looked: a moment longer, it could be told things."""
    ended = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([ended], [], [], 60)[0]
    finally:
        os.close(ended)


def targets(files: Path) -> set[str]:
    """What the descriptors of a process lead to."""
    found = set()
    for file in files.iterdir():
        with suppress(OSError):  # It has just been closed.
            found.add(str(file.readlink()))
    return found


def server_of(process: Prepared) -> int:
    assert process._process is not None
    return process._process.pid


@pytest.mark.parametrize("which", [0, 1])
async def test_a_command_is_carried_out_though_who_waited_for_it_was_killed(
    host: Home, tmp_path: Path, which: int
) -> None:
    counter = tmp_path / "counter"
    async with prepared(host, []) as process:
        process.prepare()
        kill_and_wait((await both_wait(server_of(process)))[which])
        directory = taken(host, "killed", "count", file=str(counter))
        assert await process.start(directory) is not None
        assert (await result(directory)).state is CommandState.DONE
    assert counter.read_text() == "once\n"


async def test_a_command_is_carried_out_though_who_was_told_of_it_never_heard(
    host: Home, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    async with prepared(host, []) as process:
        process.prepare()
        carrier, _ = await both_wait(server_of(process))
        os.kill(carrier, signal.SIGSTOP)
        directory = taken(host, "deaf", "count", file=str(counter))
        starting = asyncio.create_task(process.start(directory))
        await asyncio.sleep(0.2)
        os.kill(carrier, signal.SIGKILL)
        assert await starting not in (None, carrier)
        assert (await result(directory)).state is CommandState.DONE
    assert counter.read_text() == "once\n"


async def test_nobody_waits_any_more_when_it_ends(host: Home) -> None:
    async with prepared(host, []) as process:
        process.prepare()
        waiting = await both_wait(server_of(process))
    async with asyncio.timeout(60):
        while any(Path(f"/proc/{pid}").exists() for pid in waiting):
            await asyncio.sleep(0.01)


async def test_the_lock_is_held_by_the_worker_too(host: Home, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("one\n")
    async with prepared(host, []) as process:
        process.prepare()
        carrier, worker = await both_wait(server_of(process))
        directory = taken(host, "locked", "copy", file=str(source))
        assert await process.start(directory) == carrier
        while directory.read_output(0, 100) != b"one\n":
            await asyncio.sleep(0.01)
        holds = [Path(f"/proc/{pid}/fd") for pid in (carrier, worker)]
        for files in holds:
            assert str(directory.lock) in targets(files)
        with source.open("a") as file:
            file.write("end")
        assert (await result(directory)).state is CommandState.DONE


async def test_a_child_that_has_ended_before_anybody_knows_of_it_is_none(host: Home) -> None:
    """An agent that was held up reads both at once."""
    ended: list[int] = []
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        async with prepared(host, ended) as process:
            process._connection = ours
            process._answer = answer = asyncio.get_running_loop().create_future()
            its.send(b"started 4711")
            its.send(b"ended 4711")
            process._hear()
            assert process.children == {4711}
            process._hear()
            assert (await answer, process.children, ended) == (4711, set(), [4711])


async def test_a_command_goes_on_and_is_judged_though_nobody_says_when_its_carrier_ends(
    host: Home, asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "TICK", 0.05)
    source = tmp_path / "source"
    source.write_text("one\n")
    ends: list[Result] = []
    id, plugin = "bait.watched", "tests.agent.commands.plugins:copy"
    async with asker.agent(host) as commands, asyncio.timeout(60):
        commands.own.tell(lambda one: ends.extend(filter(None, [one.result])))
        await commands.own.begin_without_room(id, "alice", plugin, {"file": str(source)}, 60.0)
        directory = Records(host).directory(id)
        while directory.read_output(0, 100) != b"one\n":
            await asyncio.sleep(0.01)
        carrier = commands.process_of(id)
        assert carrier is not None
        commands._caretaker.prepared.close()
        while commands.process_of(id) is not None:
            await asyncio.sleep(0.01)
        # It goes on, and is begun no second time.
        with source.open("a") as file:
            file.write("two\n")
        while directory.read_output(0, 100) != b"one\ntwo\n":
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert (ends, commands._tracked[id].attempts) == ([], 1)
        os.kill(carrier, signal.SIGKILL)
        while not ends:
            await asyncio.sleep(0.01)
    assert ends[0].state is CommandState.LOST
