"""Programs of the host: those that its administrator has listed, as listed, and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from tests.agent.commands.listening import Asker

LIST = """
say:
  run: [/usr/bin/printf, "%s|", "{first}", "{rest}", "{number}"]
  parameters:
    first: {}
    rest: {type: list, default: "[]"}
    number: {type: int, default: 7}
whoami:
  run: [/bin/sh, -c, "id -un; env | sort; echo oops >&2"]
  user: nobody
  returns: str
  directory: /tmp
table: {run: [/bin/echo, '{"a": [1, 2]}'], returns: dict}
wrong: {run: [/bin/echo, many], returns: int}
fails: {run: [/bin/sh, -c, "echo before; exit 3"]}
dies: {run: [/bin/sh, -c, "kill -SEGV $$"]}
missing: {run: /nowhere/at/all}
stranger: {run: /bin/true, user: nobody-of-that-name}
slow: {run: [/bin/sh, -c, "echo up; setsid sleep 3600 & sleep 3600"], timeout: 1h}
daemon: {run: [/bin/sh, -c, "sleep 1 & echo left"]}
"""


@pytest.fixture(autouse=True)
def listed(configuration: Path) -> Path:
    file = configuration / "commands.yaml"
    file.write_text(LIST)
    return file


async def test_arguments_reach_a_program_as_they_are(host: Home, asker: Asker) -> None:
    hostile = "a b; touch /tmp/x $(id) `id` ' \" \n*"
    async with asker.agent(host) as commands:
        done = await asker.run(commands, "program.say", first=hostile, rest=["", "two", 3])
    assert done.output.decode() == f"{hostile}||two|3|7|"
    assert done.last is not None
    assert (done.state, done.last.exit_code) == (CommandState.DONE, 0)


async def test_a_program_runs_as_its_user_and_finds_nothing_of_the_agents(
    host: Home, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    async with asker.agent(host) as commands:
        done = await asker.run(commands, "program.whoami")
    assert isinstance(done.value, str)
    user, *variables = done.value.splitlines()
    assert user == "nobody"
    found = dict(line.split("=", 1) for line in variables)
    assert found["ENCAMP_ISSUER"] == "alice"
    assert (found["USER"], found["PWD"]) == ("nobody", "/tmp")
    assert set(found) <= {
        *("ENCAMP_COMMAND", "ENCAMP_ISSUER", "HOME", "USER", "LOGNAME", "LANG", "PATH"),
        *("PWD", "OLDPWD", "SHLVL", "_"),
    }
    # What it complains about is output, but no part of its value.
    assert b"oops" in done.output


@pytest.mark.parametrize(
    ("name", "state", "exit_code", "reason"),
    [
        ("fails", CommandState.FAILED, 3, "It ended with exit code 3."),
        ("dies", CommandState.FAILED, 139, "It was killed by signal 11 (Segmentation fault)."),
        ("missing", CommandState.FAILED, None, "'/nowhere/at/all' cannot be run: No such file"),
        ("stranger", CommandState.FAILED, None, "who is unknown here"),
        ("wrong", CommandState.FAILED, None, "is to return int, but printed 'many'"),
        ("table", CommandState.DONE, 0, ""),
    ],
)
async def test_how_a_program_ended_is_told(
    host: Home, asker: Asker, name: str, state: CommandState, exit_code: int | None, reason: str
) -> None:
    async with asker.agent(host) as commands:
        ended = await asker.run(commands, f"program.{name}")
    assert ended.last is not None
    assert (ended.state, ended.last.exit_code) == (state, exit_code)
    assert reason in ended.reason
    assert ended.value == ({"a": [1, 2]} if name == "table" else None)


async def test_cancelling_ends_a_program_with_its_children(host: Home, asker: Asker) -> None:
    async with asker.agent(host) as commands:
        id = await asker.execute(commands, "program.slow")
        await asker.listen(commands, lambda: id in asker.heard and bool(asker.heard[id].output))
        await commands.cancel(id)
        assert (await asker.until_over(commands, id)).state is CommandState.CANCELLED
    # The fixture sees whether a process is left.


async def test_what_a_program_leaves_in_the_background_does_not_hold_up_its_end(
    host: Home, asker: Asker
) -> None:
    async with asker.agent(host) as commands:
        done = await asker.run(commands, "program.daemon")
    assert done.output == b"left\n"
    await asyncio.sleep(1.1)


async def test_only_what_is_listed_is_run(host: Home, asker: Asker, listed: Path) -> None:
    async with asker.agent(host) as commands:
        for name in ("program.ls", "program./bin/ls", "program.run", "program."):
            with pytest.raises(EncampError, match="There is no command"):
                await asker.execute(commands, name)
        # The list counts as it is when a command comes.
        listed.write_text("new: {run: [/bin/echo, new]}")
        assert (await asker.run(commands, "program.new")).output == b"new\n"
        with pytest.raises(EncampError, match=r"no command 'program\.say'"):
            await asker.execute(commands, "program.say", first="a")
        # One with a mistake changes nothing.
        listed.write_text("new: {rn: [/bin/echo, newer]}")
        assert (await asker.run(commands, "program.new")).output == b"new\n"


async def test_a_host_takes_only_what_its_administrator_wants(
    host: Home, asker: Asker, listed: Path
) -> None:
    listed.write_text("commands: {accept: 'agent.*, image.pull'}\n")
    async with asker.agent(host) as commands:
        assert [one.name for one in commands.definitions] == ["agent.ping", "image.pull"]
        with pytest.raises(EncampError, match="does not take the command") as refused:
            await asker.execute(commands, "machine.start")
        assert refused.value.code is Code.NOT_PERMITTED


async def test_an_agent_that_cannot_know_what_is_wanted_takes_nothing(
    host: Home, asker: Asker, listed: Path
) -> None:
    listed.write_text("commands: {acept: 'agent.*'}\n")
    async with asker.agent(host) as commands:
        assert [one.name for one in commands.definitions] == ["agent.ping"]
        with pytest.raises(EncampError, match="list of commands cannot be used") as refused:
            await asker.execute(commands, "machine.start")
        assert "1:12: there is no attribute 'acept'" in refused.value.sentence
    listed.write_text("")
    listed.chmod(0o666)
    async with asker.agent(host) as commands:
        with pytest.raises(EncampError, match="can be written to by others"):
            await asker.execute(commands, "machine.start")
