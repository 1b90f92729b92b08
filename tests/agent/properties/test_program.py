"""Properties that programs read: what they print, how they fail, and that nothing stays of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.leftovers import MARK, agent_of, end_leftovers, marked
from encamp.agent.properties.reader import Reader
from encamp.home import Home
from encamp.model.property import LARGEST_VALUE, Value, ValueKind
from tests.agent.properties.reading import defined, error_of, read_once, running, until, value_of


@pytest.fixture
def mark() -> str:
    """A word by which the processes of this test are known: as many seconds as nobody sleeps."""
    return f"{random.randrange(10**8, 10**9)}.5"


def processes(mark: str) -> list[str]:
    """Processes whose command line has the mark, those at their end excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if mark in words:
                found.append(f"{entry.name}: {words}")
    return found


@pytest.mark.parametrize(
    ("kind", "printed", "value"),
    [
        (ValueKind.INT, " 42\n", 42),
        (ValueKind.FLOAT, "2.5\n", 2.5),
        (ValueKind.FLOAT, "3\n", 3.0),
        (ValueKind.STR, "two words\n", "two words"),
        (ValueKind.STR, "", ""),
        (ValueKind.BOOL, "yes\n", True),
        (ValueKind.BOOL, "False\n", False),
        (ValueKind.LIST, '["a", 1, null]\n', ["a", 1, None]),
        (ValueKind.DICT, '{"waiting": {"short": 3}}', {"waiting": {"short": 3}}),
    ],
)
async def test_output_becomes_a_value_of_the_type(
    home: Home, kind: ValueKind, printed: str, value: Value
) -> None:
    found = await value_of(home, "program", "printf", "%s", printed, kind=kind)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "printed", "error"),
    [
        (ValueKind.INT, "abc", "printed 'abc', which is no int"),
        (ValueKind.INT, "", "printed '', which is no int"),
        (ValueKind.BOOL, "perhaps", "printed 'perhaps', which is no bool"),
        (ValueKind.FLOAT, "nan", "returned nan, which is no number"),
        (ValueKind.FLOAT, "-inf", "returned -inf, which is no number"),
        (ValueKind.LIST, "[1, ", "printed '[1,', which is no JSON"),
        (ValueKind.LIST, '{"a": 1}', "returned dict, not list"),
        (ValueKind.INT, "9" * 30, "returned a whole number of 100 bits; 64 are possible"),
        (ValueKind.LIST, "[" * 2000, f"printed '{'[' * 40}...', which is no JSON"),
    ],
)
async def test_output_that_is_not_of_the_type_is_an_error(
    home: Home, kind: ValueKind, printed: str, error: str
) -> None:
    definition = defined("program", "printf", "%s", printed, kind=kind)
    assert await error_of(home, definition) == error


async def test_an_expression_finds_the_value_in_the_output(home: Home) -> None:
    words = ("printf", "cpu 3\nload: 2.75 x\n")
    assert (
        await value_of(home, "program", "--match", "load: ([0-9.]+)", *words, kind=ValueKind.FLOAT)
        == 2.75
    )
    assert (
        await value_of(home, "program", "--match", "^load", "--", *words, kind=ValueKind.STR)
        == "load"
    )
    nothing = defined("program", "--match", "jobs: (.*)", *words)
    assert "in which --match finds nothing" in await error_of(home, nothing)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ((), "'program' takes the program to run"),
        (("--match", "x"), "'program' takes the program to run"),
        (("--match", "(", "true"), "is no expression"),
        (("--match", "(a)(b)", "true"), "has more than one group"),
        (("encamp-no-such-program",), "The program 'encamp-no-such-program' is not installed."),
    ],
)
async def test_program_that_cannot_be_run_is_an_error(
    home: Home, parameters: tuple[str, ...], error: str
) -> None:
    assert error in await error_of(home, defined("program", *parameters))


async def test_no_shell_sees_the_parameters(home: Home) -> None:
    text = "$(id) ; `id` ${HOME} > /x"
    assert await value_of(home, "program", "printf", "%s", text, kind=ValueKind.STR) == text


async def test_failing_program_is_quoted(home: Home) -> None:
    script = "echo 7; echo first >&2; echo no batch system >&2; exit 3"
    error = await error_of(home, defined("program", "sh", "-c", script))
    assert error == "'sh' failed (exit code 3): no batch system"
    killed = await error_of(home, defined("program", "sh", "-c", "kill -9 $$"))
    assert killed == "'sh' was ended by signal 9"


async def test_hanging_program_is_ended_with_all_it_started(home: Home, mark: str) -> None:
    script = f"sleep {mark} & trap '' TERM; sleep {mark}; sleep {mark}"
    definition = defined("program", "sh", "-c", script, timeout=0.4)
    assert await error_of(home, definition) == "'program' has not answered for 0.4 s."
    await until(lambda: processes(mark) == [])


async def test_program_is_read_again_after_it_hung(
    home: Home, tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encamp.agent.properties.reader.GRACE", 60.0)
    script = f"test -e {tmp_path}/well && echo 5 || sleep {mark}"
    hasty, patient = (defined("program", "sh", "-c", script, timeout=time) for time in (0.4, 60.0))
    reader = Reader([hasty], Plugins(), changed=lambda _: None, home=home)
    assert "has not answered" in (await reader.read())["tested"].error
    (tmp_path / "well").touch()
    reader.replace([patient])
    assert (await reader.read())["tested"].value == 5


async def test_what_a_program_hides_from_its_group_is_ended_soon(
    home: Home, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encamp.agent.properties.leftovers.SOON", 0.05)
    script = f"setsid sleep {mark} >/dev/null 2>&1 & echo 1"
    slow = "setsid -w sh -c 'sleep 0.5; echo 2'"
    hidden, going_on = await asyncio.gather(
        *(value_of(home, "program", "sh", "-c", one, kind=ValueKind.INT) for one in (script, slow))
    )
    # One that is still wanted is left alone meanwhile.
    assert (hidden, going_on) == (1, 2)
    await until(lambda: processes(mark) == [])


async def test_what_an_agent_that_was_killed_has_left_is_ended_by_the_next(
    home: Home, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encamp.agent.properties.leftovers.SOON", 0.05)
    dead, alive = f"{mark}1", f"{mark}2"
    killed = await asyncio.create_subprocess_exec("sleep", "60")
    of_killed = agent_of(killed.pid)
    killed.kill()
    await killed.wait()
    left = [
        await asyncio.create_subprocess_exec("sleep", word, env={MARK: f"{agent}-1"})
        for word, agent in ((dead, of_killed), (alive, agent_of(os.getppid())))
    ]
    try:
        assert await value_of(home, "program", "echo", "1") == 1
        await until(lambda: processes(dead) == [])
        # That of an agent that lives is left to it.
        assert processes(alive) != []
    finally:
        for process in left:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def test_what_runs_is_no_leftover_whenever_it_began(mark: str) -> None:
    with marked() as run:
        looking = asyncio.create_task(asyncio.to_thread(end_leftovers))
        process = await asyncio.create_subprocess_exec("sleep", mark, env={MARK: run})
        await looking
        await asyncio.to_thread(end_leftovers)
        assert process.returncode is None
        process.kill()
        assert await process.wait() == -signal.SIGKILL


async def test_no_output_keeps_a_pattern_busy(home: Home) -> None:
    words = ("--match", r"^(a+)+$", "sh", "-c", r"head -c 500000 /dev/zero | tr '\0' a; echo b")
    assert "finds nothing" in await error_of(home, defined("program", *words))


async def test_what_a_program_leaves_behind_is_ended(home: Home, mark: str) -> None:
    script = f"sleep {mark} & echo 1"
    assert await value_of(home, "program", "sh", "-c", script) == 1
    await until(lambda: processes(mark) == [])


async def test_program_ends_with_the_reader(home: Home, mark: str) -> None:
    definition = defined("program", "sleep", mark, ticks=1.0)
    reader = Reader([definition], Plugins(), changed=lambda _: None, home=home)
    async with running(reader):
        await until(lambda: processes(mark) != [])
    assert processes(mark) == []


async def test_endless_output_is_refused_and_not_kept(home: Home, mark: str) -> None:
    definition = defined("program", "sh", "-c", f"yes {mark}", kind=ValueKind.STR)
    tracemalloc.start()
    try:
        error = await error_of(home, definition)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    most = f"{LARGEST_VALUE:,} bytes"
    assert error == f"'sh' printed more than {most}, which is the most a property has"
    assert peak < 8 * LARGEST_VALUE
    await until(lambda: processes(mark) == [])


async def test_endless_complaints_are_not_kept(home: Home) -> None:
    script = "head -c 3000000 /dev/zero >&2; echo >&2; echo the end >&2; exit 1"
    error = await error_of(home, defined("program", "sh", "-c", script))
    assert error == "'sh' failed (exit code 1): the end"


async def test_output_as_large_as_a_value_may_be_arrives_whole(home: Home) -> None:
    script = f"head -c {LARGEST_VALUE - 8} /dev/zero | tr '\\0' x"
    reading = await read_once(home, defined("program", "sh", "-c", script, kind=ValueKind.STR))
    assert reading.error == ""
    assert reading.value == "x" * (LARGEST_VALUE - 8)


async def test_many_programs_run_at_once(home: Home) -> None:
    definitions = [defined("program", "echo", str(n), name=f"p{n}") for n in range(20)]
    reader = Reader(definitions, Plugins(), changed=lambda _: None, home=home)
    readings = await reader.read()
    assert [readings[f"p{n}"].value for n in range(20)] == list(range(20))


async def test_program_gets_no_input_and_the_agents_environment(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_TESTED", "here")
    script = 'cat; echo "$ENCAMP_TESTED $LC_ALL $PWD"'
    value = await value_of(home, "program", "sh", "-c", script, kind=ValueKind.STR)
    assert value == "here C.UTF-8 /"
