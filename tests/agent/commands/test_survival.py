"""Whatever is killed, and whenever: a command is carried out once, and its output is whole."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from encamp.agent.commands.directory import CommandDirectory, Request
from encamp.bus.messages import Execute
from encamp.home import Home
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from tests.agent.commands.listening import Asker, carrier_of, execute

STRUCK_DEAD = (sys.executable, "-m", "tests.agent.commands.struck_dead")
NEVER = "1000000"


async def struck_dead(what: str, moment: str, where: Path, message: bytes = b"") -> bool:
    """Whether that process was struck dead before it was done."""
    process = await asyncio.create_subprocess_exec(
        *(*STRUCK_DEAD, what, moment, str(where)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate(message)
    assert process.returncode in (0, -signal.SIGKILL)
    assert said == (b"alive\n" if process.returncode == 0 else b"")
    return process.returncode != 0


async def test_a_command_outlives_its_agent_and_loses_no_output(
    host: Home, asker: Asker, tmp_path: Path
) -> None:
    message = execute("test.talk", lines=100, seconds=0.02)
    agent = await asyncio.create_subprocess_exec(
        *(*STRUCK_DEAD, "agent", NEVER, str(host.root)), stdin=asyncio.subprocess.PIPE
    )
    assert agent.stdin is not None
    agent.stdin.write(msgspec.json.encode(message))
    agent.stdin.close()
    output = host.root / "commands" / "under-way" / message.id / "output"
    while not output.exists() or output.stat().st_size < 100:
        await asyncio.sleep(0.02)
    agent.kill()
    await agent.wait()
    async with asker.agent(host) as commands:
        assert commands.under_way() == (message.id,)
        await commands.execute(message)
        done = await asker.until_over(commands, message.id)
        assert commands.under_way() == ()
    assert done.output == b"".join(b"line %d\n" % number for number in range(100))
    assert (done.state, done.value) == (CommandState.DONE, 100)


async def test_a_manager_that_has_part_of_the_output_gets_the_rest(
    host: Home, asker: Asker, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.touch()
    id = ""
    for piece in ("one\n", "two\n", "three\n"):
        async with asker.agent(host) as commands:
            id = id or await asker.execute(commands, "test.copy", file=str(source))
            _append(source, piece)
            expected = source.read_bytes()
            await asker.listen(commands, lambda: _output(asker, id) == expected)  # noqa: B023
            # Its connection breaks; the manager, for all we know, is another one.
            commands.start_again()
    _append(source, "end")
    async with asker.agent(host) as commands:
        done = await asker.until_over(commands, id)
    assert done.output == b"one\ntwo\nthree\n"


def _append(file: Path, text: str) -> None:
    """In one piece, and without emptying the file first: somebody reads it meanwhile."""
    with file.open("a") as opened:
        opened.write(text)


def _output(asker: Asker, id: str) -> bytes:
    return bytes(asker.heard[id].output) if id in asker.heard else b""


async def test_an_agent_struck_dead_at_any_moment_has_a_command_carried_out_once(
    host: Home, tmp_path: Path
) -> None:
    died = True
    moment = 0
    while died:
        moment += 1
        home = Home(tmp_path / f"home-{moment}").prepare()
        counter = tmp_path / f"counter-{moment}"
        message = execute("test.count", file=str(counter))
        died = await struck_dead("agent", str(moment), home.root, msgspec.json.encode(message))
        asker = Asker()
        async with asker.agent(home) as commands:
            # The manager has had no answer, or does not know: it asks again.
            await commands.execute(message)
            if commands.under_way():
                done = await asker.until_over(commands, message.id)
                assert done.state is CommandState.DONE, (moment, done.reason)
        assert counter.read_text() == "once\n", moment
    assert moment > 8


async def test_a_carrier_struck_dead_at_any_moment_never_carries_out_twice(
    host: Home, tmp_path: Path
) -> None:
    outcomes = []
    died = True
    moment = 0
    while died:
        moment += 1
        home = Home(tmp_path / f"home-{moment}").prepare()
        counter = tmp_path / f"counter-{moment}"
        message = execute("test.count", file=str(counter))
        directory = journalled(home, message)
        died = await struck_dead("carrier", str(moment), directory.path)
        asker = Asker()
        async with asker.agent(home) as commands:
            ended = await asker.until_over(commands, message.id)
        times = counter.read_text() if counter.exists() else ""
        assert times in ("", "once\n"), moment
        assert ended.state in (CommandState.DONE, CommandState.LOST)
        assert times or ended.state is CommandState.LOST, moment
        outcomes.append(ended.state)
    # Before it began, it was begun again; then it was lost; then it was done.
    assert [state for state, _ in itertools.groupby(outcomes)] == [
        CommandState.DONE,
        CommandState.LOST,
        CommandState.DONE,
    ]


def journalled(home: Home, message: Execute) -> CommandDirectory:
    (home.root / "commands" / "under-way").mkdir(parents=True)
    directory = CommandDirectory(home.root / "commands" / "under-way" / message.id)
    directory.journal(
        Request(
            id=message.id,
            name=message.name,
            arguments={**message.arguments, "seconds": 0.0},
            issuer=message.issuer,
            timeout=message.timeout,
            received=time.time(),
            plugin="tests.agent.commands.plugins:count",
        )
    )
    return directory


async def test_a_killed_carrier_loses_its_command_and_leaves_no_process(
    host: Home, asker: Asker, tmp_path: Path
) -> None:
    async with asker.agent(host) as commands:
        id = await asker.execute(commands, "test.deaf", file=str(tmp_path / "pids"))
        await asker.listen(commands, lambda: id in asker.heard and bool(asker.heard[id].output))
        os.kill(carrier_of(id), signal.SIGKILL)
        lost = await asker.until_over(commands, id)
        assert lost.state is CommandState.LOST
        assert lost.reason == "Its process was killed, or the host was restarted under it."
        assert lost.output == b"started\n"
    # One of its processes has thrown away by what it could be known.
    for pid in (tmp_path / "pids").read_text().split():
        with suppress(ProcessLookupError):
            os.killpg(int(pid), signal.SIGKILL)


async def test_a_request_that_was_half_written_is_not_known(host: Home, asker: Asker) -> None:
    message = execute("agent.ping")
    half = host.root / "commands" / "under-way" / message.id
    half.mkdir(parents=True)
    (half / "request.new").write_bytes(b"\x87")
    async with asker.agent(host) as commands:
        assert commands.under_way() == ()
        assert not half.exists()
        await commands.execute(message)
        assert (await asker.until_over(commands, message.id)).value == "pong"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=711", "encamp", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


async def test_a_full_disk_refuses_commands_and_tells_of_those_under_way(
    host: Home, asker: Asker, small_disk: Path
) -> None:
    home = Home(small_disk).prepare()
    async with asker.agent(home) as commands:
        id = await asker.execute(commands, "test.flood", megabytes=3)
        done = await asker.until_over(commands, id)
        assert done.state is CommandState.DONE
        assert "the disk of this host is full" in done.reason
        assert 0 < len(done.output) < 1 << 20
        while (home.root / "commands" / "under-way" / id).exists():
            await asyncio.sleep(0.02)
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        with pytest.raises(EncampError, match="the disk of this host is full") as refused:
            await asker.execute(commands, "agent.ping")
        assert (refused.value.code, refused.value.transient) == (Code.DISK_FULL, True)
        (small_disk / "filler").unlink()
        assert (await asker.run(commands, "agent.ping")).value == "pong"
