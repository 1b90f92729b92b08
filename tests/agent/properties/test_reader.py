"""The reader: who is read when, what is told, and that nobody waits for a plug-in that hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from textwrap import dedent

import pytest

from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.reader import Reader, same
from encamp.agent.properties.threads import NAME, THREADS
from encamp.home import Home
from encamp.model.property import LARGEST_VALUE, PropertyDefinition, Reading, Value, ValueKind
from tests.agent.properties.conftest import MODULE, PLUGINS, SOURCE, Site
from tests.agent.properties.installing import install
from tests.agent.properties.reading import defined, error_of, running, until


class Told:
    """What a reader told, in order."""

    def __init__(self, home: Home, *definitions: PropertyDefinition) -> None:
        self.readings: list[tuple[str, Reading]] = []
        self.reader = Reader(definitions, Plugins(), changed=self.changed, home=home)

    def changed(self, readings: dict[str, Reading]) -> None:
        self.readings += readings.items()

    def values(self, name: str = "tested") -> list[Value]:
        return [reading.value for told, reading in self.readings if told == name]

    def errors(self, name: str = "tested") -> list[str]:
        return [reading.error for told, reading in self.readings if told == name]


async def several_calls(site: Site) -> None:
    calls = site.calls
    await until(lambda: site.calls >= calls + 3)


# ── what is told ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["given", "given_at_once"])
async def test_only_changes_are_told(home: Home, site: Site, command: str) -> None:
    told = Told(home, defined(command, ticks=0.01))
    async with running(told.reader):
        await several_calls(site)
        assert told.values() == [1]
        site.value = 2
        await several_calls(site)
        assert told.values() == [1, 2]
        assert told.reader.current()["tested"].value == 2


async def test_number_within_its_tolerance_has_not_changed(home: Home, site: Site) -> None:
    told = Told(home, defined("given", ticks=0.01, tolerance=10))
    async with running(told.reader):
        await until(lambda: told.values() == [1])
        # Step by step it would go anywhere: what counts is what was told.
        for site.value in (6, 11, 12):
            await several_calls(site)
        assert told.values() == [1, 12]


async def test_errors_are_told_when_they_change(home: Home, site: Site) -> None:
    told = Told(home, defined("given", ticks=0.01))
    async with running(told.reader):
        for site.value in (1, OSError(5, "Input/output error", "/x"), ValueError("no"), 1):
            await several_calls(site)
    assert told.values() == [1, None, None, 1]
    assert told.errors() == ["", "/x: Input/output error", "ValueError: no", ""]


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "expected"),
    [
        (1, 1.0, 0.0, True),
        (1.0, 1.5, 0.5, True),
        (1.0, 1.6, 0.5, False),
        (True, 1, 5.0, False),
        ("1", 1, 5.0, False),
        ([1, {"a": 2}], [1, {"a": 2}], 0.0, True),
        ([1], [2], 5.0, False),
        (None, None, 0.0, True),
    ],
)
def test_values_are_the_same_as_far_as_anybody_wants_to_know(
    one: Value, other: Value, tolerance: float, expected: bool
) -> None:
    assert same(one, other, tolerance) is expected


async def test_a_query_reads_now_and_counts_as_told(home: Home, site: Site) -> None:
    told = Told(home, defined("given", ticks=0.05))
    before = time.time()
    first = (await told.reader.read(["tested"]))["tested"]
    assert first.value == 1
    assert before <= first.at <= time.time()
    async with running(told.reader):
        await several_calls(site)
        assert told.values() == []
        site.value = 2
        await until(lambda: told.values() == [2])
        again = (await told.reader.read())["tested"]
        assert (again.value, again.at >= first.at) == (2, True)


async def test_unknown_property_is_an_error_beside_those_that_are_known(
    home: Home, site: Site
) -> None:
    readings = await Told(home, defined("given")).reader.read(["tested", "unheard_of"])
    assert readings["tested"].value == 1
    assert readings["unheard_of"].error == "There is no such property on this host."


async def test_property_without_ticks_is_read_only_when_asked(home: Home, site: Site) -> None:
    other = defined("counting", kind=ValueKind.LIST, name="other", ticks=0.01)
    told = Told(home, defined("given", ticks=0), other)
    async with running(told.reader):
        await until(lambda: len(told.errors("other")) >= 3)
        assert site.calls == 0
        assert (await told.reader.read())["tested"].value == 1


async def test_two_who_ask_at_once_share_one_reading(home: Home, site: Site) -> None:
    reader = Told(home, defined("hang")).reader
    both = asyncio.gather(reader.read(), reader.read())
    await until(lambda: site.calls == 1)
    site.hanging.set()
    one, other = await both
    assert one == other
    assert site.calls == 1


async def test_plugin_keeps_what_it_wants_from_one_reading_to_the_next(
    home: Home, site: Site
) -> None:
    first = defined("counting", "a", "b c", kind=ValueKind.LIST, name="first")
    second = defined("counting", kind=ValueKind.LIST, name="second")
    reader = Told(home, first, second).reader
    await reader.read()
    readings = await reader.read()
    assert readings["first"].value == ["a", "b c", "2", "first"]
    assert readings["second"].value == ["2", "second"]


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("abc", "returned str 'abc', not int"),
        (None, "returned nothing (None), not int"),
        (True, "returned bool True, not int"),
        (RuntimeError("broken\n  twice"), "RuntimeError: broken twice"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(), "StopIteration"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
@pytest.mark.parametrize("command", ["given", "given_at_once"])
async def test_failing_plugin_is_an_error_with_its_reason(
    home: Home, site: Site, command: str, value: Value, error: str
) -> None:
    site.value = value
    assert (await error_of(home, defined(command))).endswith(error)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("unheard_of", "No plug-in 'unheard_of' for properties is installed."),
        ("broken", "ModuleNotFoundError: No module named 'encamp_no_such_module'"),
        ("absent", "has no attribute 'nothing_of_that_name'"),
        ("number", "is no function"),
    ],
)
async def test_plugin_that_cannot_be_loaded_is_an_error(
    home: Home, site: Site, command: str, error: str
) -> None:
    assert error in await error_of(home, defined(command))


async def test_hanging_plugin_delays_nobody_and_is_not_called_again(home: Home, site: Site) -> None:
    told = Told(
        home,
        *(defined("hang", name=f"hang{n}", ticks=0.02, timeout=0.1) for n in range(5)),
        defined("given", ticks=0.01),
    )
    silent = ["'hang' has not answered for 0.1 s."]
    async with running(told.reader):
        await until(lambda: told.values() == [1])
        await until(lambda: all(told.errors(f"hang{n}") == silent for n in range(5)))
        for site.value in (2, 3):
            await until(lambda: told.values()[-1] == site.value)
        await several_calls(site)
        readings = await told.reader.read()
        assert [readings["hang0"].error] == silent
        hung = [thread for thread in threading.enumerate() if thread.name == NAME]
        assert len(hung) == len(THREADS) >= 5
        site.hanging.set()
        await until(lambda: all(told.values(f"hang{n}")[-1] == 1 for n in range(5)))


@pytest.mark.parametrize("command", ["hang_at_once", "refuse_to_end"])
async def test_hanging_async_plugin_delays_nobody(home: Home, site: Site, command: str) -> None:
    told = Told(
        home,
        defined(command, name="hangs", ticks=0.05, timeout=0.1),
        defined("given", ticks=0.01),
    )
    async with running(told.reader):
        # Whichever is told first: on a host that stands still for a moment, time is up at once.
        await until(lambda: told.values() == [1])
        await until(lambda: told.errors("hangs") == [f"'{command}' has not answered for 0.1 s."])
        site.value = 2
        await until(lambda: told.values() == [1, 2])
        site.hanging.set()


async def test_property_of_100_megabytes_is_refused_without_a_copy(home: Home, site: Site) -> None:
    tracemalloc.start()
    try:
        error = await error_of(home, defined("huge", kind=ValueKind.STR))
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    most = f"{LARGEST_VALUE:,}"
    assert error == f"returned a text of 100,000,000 bytes; a property has at most {most}"
    assert peak < 150_000_000
    assert now < 10_000_000, "it is still held"


def test_hung_thread_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    install(tmp_path, MODULE, SOURCE, PLUGINS)
    script = """
    import asyncio, sys
    sys.path.insert(0, sys.argv[1])
    from encamp.agent.properties.finding import Plugins
    from encamp.agent.properties.reader import Reader
    from encamp.model.property import PropertyDefinition
    definition = PropertyDefinition(name="hung", command="hang", timeout=0.1)
    reader = Reader([definition], Plugins(), changed=print)
    print(asyncio.run(reader.read())["hung"].error)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "'hang' has not answered for 0.1 s.\n"
    assert done.stderr == ""


def test_a_plugin_that_will_not_be_cancelled_does_not_either(tmp_path: Path) -> None:
    stubborn = """
    import asyncio

    async def stay(asked):
        while True:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                pass
    """
    install(tmp_path, "stubborn", dedent(stubborn), {"stay": "stubborn:stay"})
    script = """
    import asyncio, sys
    sys.path.insert(0, sys.argv[1])
    from encamp.agent.properties.finding import Plugins
    from encamp.agent.properties.reader import Reader
    from encamp.model.property import PropertyDefinition

    async def main():
        definition = PropertyDefinition(name="stays", command="stay", timeout=0.1)
        reader = Reader([definition], Plugins(), changed=print)
        print((await reader.read())["stays"].error)
        await reader.close()

    asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "'stay' has not answered for 0.1 s.\n"


async def test_only_those_that_tick_are_read_unasked(home: Home, site: Site) -> None:
    told = Told(home, defined("given", name="ticks", ticks=3600), defined("given", name="asked"))
    assert told.reader.ticking == ("ticks",)


async def test_plugins_that_answer_share_few_threads(home: Home, site: Site) -> None:
    before = len(THREADS)
    definitions = [defined("given", name=f"p{n}") for n in range(300)]
    readings = await Told(home, *definitions).reader.read()
    assert {reading.value for reading in readings.values()} == {1}
    assert len(THREADS) <= before + 300 / 3


# ── other definitions ────────────────────────────────────────────────────────────────────────────


async def test_definitions_can_be_replaced_while_it_runs(home: Home, site: Site) -> None:
    stays = defined("counting", kind=ValueKind.LIST, name="stays", ticks=3600)
    told = Told(home, stays, defined("given", name="goes", ticks=0.01))
    async with running(told.reader):
        await until(lambda: len(told.readings) == 2)
        told.reader.replace([stays, defined("given", name="comes", ticks=0.01)])
        await until(lambda: told.values("comes") == [1])
        site.value = 2
        await until(lambda: told.values("comes") == [1, 2])
        assert told.values("goes") == [1]
        assert told.values("stays") == [["1", "stays"]], "what has not changed is not read anew"
        assert set(told.reader.current()) == {"stays", "comes"}


async def test_changed_definition_is_read_and_told_anew(home: Home, site: Site) -> None:
    told = Told(home, defined("given", ticks=3600))
    async with running(told.reader):
        await until(lambda: told.values() == [1])
        told.reader.replace([defined("given", ticks=3600, kind=ValueKind.STR)])
        await until(lambda: told.errors() == ["", "returned int 1, not str"])


async def test_query_under_way_gets_an_answer_when_definitions_are_replaced(
    home: Home, site: Site
) -> None:
    reader = Told(home, defined("hang")).reader
    query = asyncio.create_task(reader.read())
    await until(lambda: site.calls == 1)
    reader.replace([])
    assert (await query)["tested"].error == "'hang' was interrupted."


async def test_new_definition_does_not_add_a_thread_to_one_that_hangs(
    home: Home, site: Site
) -> None:
    reader = Told(home, defined("hang", timeout=0.1)).reader
    while not site.calls:  # Finding it may take longer than that.
        await reader.read()
    for timeout in (0.2, 0.3):
        reader.replace([defined("hang", timeout=timeout)])
        assert "has not answered" in (await reader.read())["tested"].error
    assert site.calls == 1


async def test_first_readings_are_not_all_at_once(home: Home, site: Site) -> None:
    definitions = [defined("given", name=f"p{n}", ticks=3600) for n in range(10)]
    told = Told(home, *definitions)
    async with running(told.reader):
        await until(lambda: len(told.readings) >= 1)
        assert len(told.readings) < 10
        await until(lambda: len(told.readings) == 10)
    assert [name for name, _ in told.readings] == [f"p{n}" for n in range(10)]


async def test_reader_leaves_no_task_behind(home: Home, site: Site) -> None:
    told = Told(home, defined("hang", ticks=0.01), defined("hang_at_once", name="b", ticks=0.01))
    async with running(told.reader):
        await until(lambda: site.calls == 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}
