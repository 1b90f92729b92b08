"""Requests, as the agent of a host carries them out, with real machines."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from encamp.agent.commands.left import FETCHED_FOR
from encamp.agent.commands.records import Records
from encamp.agent.commands.supervising import Commands
from encamp.agent.meeting.point import MeetingPoint
from encamp.bus.messages import Execute
from encamp.door.questions import Exec, Ticket
from encamp.guest.archive import Unpacker, pack
from encamp.home import Home
from encamp.machines import room
from encamp.machines.standing import Standing, standing
from encamp.meeting.client import Client
from encamp.meeting.frames import Role
from encamp.meeting.kept import FETCHED
from encamp.meeting.tickets import digest
from encamp.model.command import CommandState
from encamp.model.driver import DriverName
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Copy
from encamp.model.request import Request
from encamp.model.site import Site
from encamp.model.size import MIB
from tests.agent.commands.listening import Asker
from tests.agent.commands.requesting import SECRET, begin, claim, id_of, request, result_of, run
from tests.conftest import left_behind
from tests.meeting.meeting import Streams

pytestmark = pytest.mark.site


@pytest.fixture
def home(machine_home: Home) -> Home:
    return machine_home


class Agent:
    """An agent with its meeting point."""

    def __init__(self, commands: Commands, point: MeetingPoint) -> None:
        self.commands = commands
        self._point = point

    def client(
        self, id: str, streams: Streams, role: Role = Role.RUN, files: Files | None = None
    ) -> Client:
        ticket = Ticket(host="here", id=id, secret=SECRET, meeting=self._point.meeting)
        return Client(ticket, role, streams=streams, files=files or Files())


@asynccontextmanager
async def agent(asker: Asker, home: Home) -> AsyncIterator[Agent]:
    point = MeetingPoint(home, "here", "0123456789abcdef", Site())
    async with asker.agent(home) as commands, point:
        yield Agent(commands, point)


class Files:
    """A client's files: what it brings, and where it puts what comes."""

    def __init__(self, inputs: Iterable[Path] = (), place: Path | None = None) -> None:
        self._inputs = list(inputs)
        self._place = place

    async def pack(self, number: int, name: str) -> AsyncIterator[bytes]:
        for piece in pack([(self._inputs[number], name)]):
            yield piece

    async def unpack(self, number: int, pieces: AsyncIterable[bytes]) -> None:
        assert self._place is not None
        with Unpacker(self._place) as unpacker:
            async for piece in pieces:
                unpacker.feed(piece)
            unpacker.finish()


async def test_a_detached_job_leaves_its_output_until_it_is_fetched(
    home: Home, asker: Asker, tmp_path: Path
) -> None:
    wanted = request(
        *("sh", "-c", "echo out; echo wrong >&2; echo made > /tmp/made; exit 3"),
        outputs=(Copy("/tmp/made"),),
    )
    async with agent(asker, home) as here:
        result = await run(asker, here.commands, wanted)
        assert (result.exit_code, result.began, result.failure) == (3, True, "")
        assert result.reason == "exit code 3"
        assert here.commands.claims() == ()
    # Whoever comes later, to another run of the agent, finds it.
    async with agent(asker, home) as here:
        streams = Streams()
        outcome = await here.client(id_of(wanted), streams, Role.FOLLOW).run()
        assert (bytes(streams.out), bytes(streams.error)) == (b"out\n", b"wrong\n")
        assert outcome is not None
        assert outcome.exit_code == 3
        files = Files(place=tmp_path)
        fetching = here.client(id_of(wanted), Streams(), Role.FETCH, files)
        fetching.is_fetched = lambda: True
        await fetching.run()
        assert (tmp_path / "made").read_text() == "made\n"
        left = Records(home).find(id_of(wanted))
        assert left is not None
        while not (left.kept / FETCHED).exists():
            await asyncio.sleep(0.005)
        Records(home).forget(time.time())
        await here.client(id_of(wanted), Streams(), Role.FOLLOW).run()
        Records(home).forget(time.time() + FETCHED_FOR)
        with pytest.raises(EncampError):
            await here.client(id_of(wanted), Streams(), Role.FOLLOW).run()


async def test_an_attached_job_speaks_with_its_client_and_brings_files_both_ways(
    home: Home, asker: Asker, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("brought\n")
    (tmp_path / "back").mkdir()
    wanted = request(
        *("sh", "-c", "cat; cat in.txt > out.txt; echo over >&2; exit 5"),
        detached=False,
        inputs=(Copy(str(tmp_path / "in.txt")),),
        outputs=(Copy("out.txt"),),
    )
    async with agent(asker, home) as here:
        streams = Streams(b"one\n", b"two\n")
        files = Files([tmp_path / "in.txt"], tmp_path / "back")
        client = here.client(id_of(wanted), streams, files=files)
        # It comes before there is anything to come to.
        talking = asyncio.create_task(client.run())
        id = await begin(here.commands, wanted)
        outcome = await talking
        assert outcome is not None
        assert outcome.exit_code == 5
        assert (bytes(streams.out), bytes(streams.error)) == (b"one\ntwo\n", b"over\n")
        assert (tmp_path / "back" / "out.txt").read_text() == "brought\n"
        result = result_of(await asker.until_over(here.commands, id))
        assert (result.exit_code, result.began) == (5, True)
        assert result.machine == outcome.machine
        assert Records(home).find(id) is None


async def test_a_job_ends_with_its_client_and_hears_its_signals(home: Home, asker: Asker) -> None:
    script = "trap 'echo got it' INT; echo up; while :; do sleep 0.1; done"
    wanted = request("sh", "-c", script, detached=False)
    async with agent(asker, home) as here:
        streams = Streams()
        streams.endless = True
        id = await begin(here.commands, wanted)
        client = here.client(id, streams)
        talking = asyncio.create_task(client.run())
        while b"up" not in streams.out:
            await asyncio.sleep(0.01)
        client.signal(signal.SIGINT)
        while b"got it" not in streams.out:
            await asyncio.sleep(0.01)
        talking.cancel()
        result = result_of(await asker.until_over(here.commands, id))
        assert (result.exit_code, result.began, result.final) == (None, True, True)
        assert "went away" in result.failure
    while left_behind(home):
        await asyncio.sleep(0.02)


async def test_phases_are_told_as_they_come(home: Home, asker: Asker) -> None:
    wanted = request("sleep", "0.2")
    phases: list[tuple[str, str]] = []
    async with asker.agent(home) as commands:
        id = await begin(commands, wanted)
        while True:
            for news in commands.tell():
                phases.append((news.phase, news.machine))
                commands.taken({}, (news,))
            if Records(home).is_over(id):
                break
            await asyncio.sleep(0.002)
    machine = phases[-1][1]
    seen = list(dict.fromkeys(phases))
    assert seen[-2:] == [("start", machine), ("running", machine)]
    assert len(machine) == 32


async def test_a_machine_that_was_wanted_for_itself_stays_and_can_be_worked_in(
    home: Home, asker: Asker
) -> None:
    async with agent(asker, home) as here:
        result = await run(asker, here.commands, request())
        assert (result.standing, result.exit_code, result.failure) == (True, None, "")
        wanted = Exec(command=Command(arguments=("sh", "-c", "cat; echo here >&2; exit 7")))
        message = Execute(
            id="exec-1",
            name="machine.exec",
            arguments={
                "machine": result.machine,
                "exec": msgspec.json.decode(msgspec.json.encode(wanted)),
                "ticket": digest(SECRET),
            },
            issuer="somebody",
            timeout=60.0,
        )
        await here.commands.execute(message)
        streams = Streams(b"said\n")
        outcome = await here.client("exec-1", streams).run()
        assert outcome is not None
        assert outcome.exit_code == 7
        assert (bytes(streams.out), bytes(streams.error)) == (b"said\n", b"here\n")
        done = result_of(await asker.until_over(here.commands, "exec-1"))
        assert (done.exit_code, done.machine) == (7, result.machine)
        removed = await asker.run(
            here.commands, "machine.remove", machine=result.machine, force=True
        )
        assert removed.state is CommandState.DONE, removed.reason


@pytest.mark.parametrize(
    ("change", "sentence", "final"),
    [
        ({"image": "no-such-image"}, "no-such-image", True),
        ({"name": "bad name"}, "cannot be a machine's name", True),
        ({"driver": DriverName.USERMODE, "network": "user"}, "have no network 'user'", True),
    ],
)
async def test_what_is_wrong_with_a_request_is_told_as_its_own_fault(
    home: Home, asker: Asker, change: dict[str, object], sentence: str, final: bool
) -> None:
    wanted = request("true")
    machine = msgspec.structs.replace(wanted.machine, **change)
    async with asker.agent(home) as commands:
        result = await run(asker, commands, msgspec.structs.replace(wanted, machine=machine))
    assert (result.began, result.final, result.environment) == (False, final, False), result
    assert sentence in result.failure
    assert asker.heard[id_of(wanted)].phase == ("image" if "image" in change else "")


@pytest.mark.parametrize("words", [("true",), ()])
async def test_a_mistake_in_the_settings_fails_a_job_at_once_and_is_no_fault_of_the_environment(
    home: Home,
    asker: Asker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("templat_limit: 3G\n")
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path))
    async with asker.agent(home) as commands:
        result = await run(asker, commands, request(*words))
        assert (result.began, result.final, result.environment) == (False, True, False), result
        assert result.code is Code.CONFIGURATION
        assert f"There is a mistake in {settings}. {settings}:1:1: " in result.failure
        assert "did you mean 'template_limit'?" in result.failure
        # Nothing keeps the next one from being tried.
        settings.unlink()
        assert (await run(asker, commands, request("true"))).exit_code == 0


@pytest.mark.parametrize("whom", ["agent", "carrier", "prepared"])
async def test_whoever_is_killed_nothing_is_left_and_nothing_runs_twice(
    home: Home, asker: Asker, whom: str
) -> None:
    wanted = request("sh", "-c", "echo up; sleep 3600")
    async with asker.agent(home) as commands:
        id = await begin(commands, wanted)
        out = Records(home).directory(id).kept / "stdout"
        while not (out.exists() and out.stat().st_size):
            await asyncio.sleep(0.01)
        child = commands.process_of(id)
        assert child is not None
        if whom == "carrier":
            os.kill(child, signal.SIGKILL)
        if whom == "prepared":
            os.kill(int(Path(f"/proc/{child}/stat").read_text().split()[3]), signal.SIGKILL)
            await asyncio.sleep(0)
    async with asker.agent(home) as commands:
        if whom != "carrier":
            assert commands.under_way() == (id,)
            assert commands.claims() == ()
            await commands.cancel(id)
        ended = await asker.until_over(commands, id)
        wanted_state = CommandState.LOST if whom == "carrier" else CommandState.CANCELLED
        assert ended.state is wanted_state, ended.reason
        assert ended.last is not None
        assert ended.last.phase == "running"
        while left_behind(home):
            await asyncio.sleep(0.02)


async def test_the_next_job_of_the_same_owner_gets_the_machine_where_both_allow_it(
    home: Home, asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "environments.yaml").write_text("again:\n  extends: mini\n  reuse: true\n")
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path))

    def job(*words: str, reuse: bool = True) -> Request:
        return msgspec.structs.replace(request(*words), environment="again", reuse=reuse)

    async with asker.agent(home) as commands:
        first = await run(asker, commands, job("sh", "-c", "echo left > /tmp/left; exit 1"))
        assert first.exit_code == 1
        second = await run(asker, commands, job("grep", "left", "/tmp/left"))
        assert (second.machine, second.exit_code) == (first.machine, 0)
        assert second.phases[0].how == "reused"
        fresh = await run(asker, commands, job("test", "-e", "/tmp/left", reuse=False))
        assert (fresh.machine == first.machine, fresh.exit_code) == (False, 1)
        # A job that is ended in it takes it along.
        slow = job("sleep", "3600")
        id = await begin(commands, slow)
        await asker.listen(
            commands, lambda: id in asker.heard and asker.heard[id].phase == "running"
        )
        assert asker.heard[id].machine == first.machine
        # Whoever thought it idle does not take it away from the job.
        late = await asker.run(commands, "machine.remove", machine=first.machine, idle=True)
        assert late.state is CommandState.FAILED
        assert "is not idle" in late.reason
        await commands.cancel(id)
        assert (await asker.until_over(commands, id)).state is CommandState.CANCELLED
        while left_behind(home):
            await asyncio.sleep(0.02)
        ready = await asker.run(commands, "machine.start", ready=True, name="ready")
        assert ready.state is CommandState.DONE, ready.reason
        gone = await asker.run(commands, "machine.remove", machine="ready", idle=True)
        assert gone.state is CommandState.DONE, gone.reason
        while left_behind(home):
            await asyncio.sleep(0.02)


async def test_idle_machines_give_way_to_claims(
    home: Home, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asker.agent(home) as commands:
        made = await asker.run(commands, "machine.start", ready=True, memory="128M", cpus=1)
        assert made.state is CommandState.DONE, made.reason
        assert isinstance(made.value, dict)
        assert made.value["idle"] is True
        idle = made.value["id"]
        everything = standing

        def here() -> list[Standing]:
            return [machine for machine in everything() if machine.name == idle]

        space = request().size.memory + 100 * MIB
        total = space + room.RESERVE
        monkeypatch.setattr(room, "standing", here)
        monkeypatch.setattr(
            room, "available_memory", lambda: total - sum(machine.used for machine in here())
        )
        await commands.claim(claim(request()))
        assert left_behind(home) == []
        with pytest.raises(EncampError, match="Not enough memory"):
            await commands.claim(claim(request()))


async def test_what_is_killed_while_its_machine_is_made_has_not_begun(
    home: Home, asker: Asker
) -> None:
    wanted = request("sh", "-c", "echo begun; sleep 3600")
    async with asker.agent(home) as commands:
        id = await begin(commands, wanted)
        while not any(home.machines.iterdir()):
            await asyncio.sleep(0.002)
        child = commands.process_of(id)
        assert child is not None
        os.kill(child, signal.SIGKILL)
        lost = await asker.until_over(commands, id)
        assert lost.state is CommandState.LOST
        assert lost.phase == "start"
        assert commands.claims() == ()
        while left_behind(home):
            await asyncio.sleep(0.02)
        kept = Records(home).find(id)
        assert kept is not None
        assert (kept.kept / "stdout").read_bytes() == b""
