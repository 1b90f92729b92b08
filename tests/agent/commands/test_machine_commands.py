"""Commands about machines and images, with real ones."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.model.command import CommandState
from encamp.model.machine import Machine
from tests.agent.commands.listening import Asker, carrier_of
from tests.conftest import Encamp, left_behind

pytestmark = pytest.mark.site


@pytest.fixture
def home(machine_home: Home) -> Home:
    return machine_home


async def test_a_machine_is_moved_through_all_its_states(home: Home, asker: Asker) -> None:
    async with asker.agent(home) as commands:
        made = await asker.run(commands, "machine.start", name="alpha", cpus=1)
        assert made.state is CommandState.DONE, made.reason
        assert isinstance(made.value, dict)
        assert (made.value["name"], made.value["state"]) == ("alpha", "running")
        id = str(made.value["id"])
        for move, state in {
            "pause": "paused",
            "resume": "running",
            "suspend": "suspended",
            "restore": "running",
            "stop": "stopped",
        }.items():
            moved = await asker.run(commands, f"machine.{move}", machine=id)
            assert moved.state is CommandState.DONE, moved.reason
            assert isinstance(moved.value, dict)
            assert moved.value["state"] == state
        refused = await asker.run(commands, "machine.pause", machine="alpha")
        assert refused.state is CommandState.FAILED
        assert "Cannot pause machine alpha: it is stopped" in refused.reason
        assert (await asker.run(commands, "machine.remove", machine="alpha")).value is None
        unknown = await asker.run(commands, "machine.kill", machine="../../etc")
        assert "You have no machine '../../etc'." in unknown.reason


async def test_a_job_runs_in_a_machine_with_its_output_and_exit_code(
    home: Home, asker: Asker
) -> None:
    words = ["sh", "-c", 'echo "$1 $GREETING"; pwd; echo wrong >&2; exit 3', "sh", "a b"]
    async with asker.agent(home) as commands:
        done = await asker.run(
            commands, "machine.run", arguments=words, variables={"GREETING": "hi"}, workdir="/tmp"
        )
        assert done.last is not None
        assert (done.state, done.last.exit_code) == (CommandState.FAILED, 3)
        assert done.reason == "It ended with exit code 3."
        assert sorted(done.output.splitlines()) == [b"/tmp", b"a b hi", b"wrong"]
        for arguments in ([], [1], ["a\0b"]):
            wrong = await asker.run(commands, "machine.run", arguments=arguments)
            assert wrong.state is CommandState.FAILED
            assert "'arguments'" in wrong.reason


async def test_cancelling_a_job_destroys_its_machine(home: Home, asker: Asker) -> None:
    async with asker.agent(home) as commands:
        words = ["sh", "-c", "echo up; sleep 3600"]
        id = await asker.execute(commands, "machine.run", arguments=words)
        await asker.listen(commands, lambda: id in asker.heard and b"up" in asker.heard[id].output)
        await commands.cancel(id)
        assert (await asker.until_over(commands, id)).state is CommandState.CANCELLED
        while left_behind(home):
            await asyncio.sleep(0.02)


async def test_a_start_that_is_killed_midway_leaves_nothing(home: Home, asker: Asker) -> None:
    async with asker.agent(home) as commands:
        id = await asker.execute(commands, "machine.start")
        while not any(home.machines.iterdir()):
            await asyncio.sleep(0.002)
        os.kill(carrier_of(id), signal.SIGKILL)
        lost = await asker.until_over(commands, id)
        assert lost.state is CommandState.LOST
        while left_behind(home):
            await asyncio.sleep(0.02)


async def test_a_machine_outlives_the_command_that_started_it(
    home: Home, asker: Asker, encamp: Encamp
) -> None:
    async with asker.agent(home) as commands:
        made = await asker.run(commands, "machine.start", name="beta")
    assert isinstance(made.value, dict)
    assert made.value["host"] == os.uname().nodename
    assert Machine.__struct_fields__ == tuple(made.value)
    assert encamp("exec", "beta", "--", "echo", "still here").stdout == b"still here\n"
    async with asker.agent(home) as commands:
        removed = await asker.run(commands, "machine.remove", machine="beta", force=True)
        assert removed.state is CommandState.DONE, removed.reason


async def test_a_machine_is_saved_as_an_image_that_others_are_made_of(
    home: Home, asker: Asker, encamp: Encamp
) -> None:
    async with asker.agent(home) as commands:
        await asker.run(commands, "machine.start", name="epsilon")
        write = ("exec", "epsilon", "--", "sh", "-c", "echo was here > /note")
        await asyncio.to_thread(encamp, *write)
        saved = await asker.run(commands, "machine.save", machine="epsilon", image="kept")
        assert saved.state is CommandState.DONE, saved.reason
        arguments: list[object] = ["cat", "/note"]
        read = await asker.run(commands, "machine.run", arguments=arguments, image="kept")
        assert b"was here\n" in read.output
        await asker.run(commands, "machine.remove", machine="epsilon", force=True)
        removed = await asker.run(commands, "image.remove", image="kept")
        assert removed.state is CommandState.DONE, removed.reason


async def test_an_image_is_pulled_from_a_configured_repository_and_removed(
    home: Home,
    asker: Asker,
    encamp: Encamp,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "repository").mkdir()
    encamp("image", "push", "mini", tmp_path / "repository")
    (tmp_path / "settings.yaml").write_text(f"repositories: [{tmp_path}/repository]\n")
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path))
    other = Home(tmp_path / "home")
    async with asker.agent(other) as commands:
        pulled = await asker.run(commands, "image.pull", image="mini")
        assert pulled.state is CommandState.DONE, pulled.reason
        assert isinstance(pulled.value, dict)
        assert pulled.value["name"] == "mini"
        assert b"mini" in pulled.output
        removed = await asker.run(commands, "image.remove", image="mini")
        assert isinstance(removed.value, list)
        assert removed.value[0] == pulled.value
        failed = await asker.run(commands, "image.pull", image="../x")
        assert failed.state is CommandState.FAILED
