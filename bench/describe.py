"""How long it takes to read ten thousand environments, and to find one of them again."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from bench.ground import Ground
from bench.measure import Series, ratio, rounds, stopwatch
from bench.report import Figure, Goal, Report
from encamp.describe.environments import find_environment, shipped_library
from encamp.describe.sources import Level, Source

TITLE = "reading ten thousand environments"

EXPLANATION = """
Two files of 10,000 environments each are read and every environment is resolved, in one process,
by the processor's time. One has two lines per environment. The other has nine: environments that
extend one another twenty deep, with labels, variables and references. PyYAML's own loader, with the
same C parser, reads the second file beside it: it only makes dictionaries, and knows nothing of
inheritance, references, checks, or where anything was written.

A job does not wait for any of that. What was found is remembered until a file changes, and the
second part takes the time of finding an environment of that file again, and of a new Python that
does nothing but import what is needed and find it, compared with one that parses YAML to do so.
"""

COUNT = 10_000


def short_file() -> str:
    return "".join(f"short{number}:\n  extends: mini\n" for number in range(COUNT))


def long_file() -> str:
    return "".join(
        f"long{number}:\n"
        f"  extends: {'mini' if number % 20 == 0 else f'long{number - 1}'}\n"
        f"  summary: Number {number}\n"
        f"  memory: {512 + number % 100}M\n"
        f"  labels: {{rack: r{number % 7}}}\n"
        "  context:\n"
        "    variables:\n"
        f'      INDEX: "{number}"\n'
        "      SIZE: ${memory}\n"
        for number in range(COUNT)
    )


def measure(ground: Ground, *, quick: bool) -> Report:
    short = Series("two lines each", "ms of CPU")
    long = Series("nine lines each", "ms of CPU")
    parsed = Series("PyYAML's loader, nine lines each", "ms of CPU")
    short_data, long_data = short_file().encode(), long_file().encode()
    for _ in rounds("describe, reading", 2 if quick else 7):
        with processor_time(short):
            resolve(short_data)
        with processor_time(long):
            resolve(long_data)
        with processor_time(parsed):
            yaml.load(long_data, Loader=yaml.CSafeLoader)
    directory = ground.scratch / "described"
    directory.mkdir()
    (directory / "environments.yaml").write_text(long_file())
    again, fresh, reading = _finding(directory, 3 if quick else 15)
    return Report(
        figures=[
            Figure("10,000 of nine lines", long.median / 1000, "s of CPU", (Goal.AT_MOST, 1.0)),
            Figure("10,000 of two lines", short.median / 1000, "s of CPU", (Goal.AT_MOST, 1.0)),
            Figure("all of it / PyYAML's loader alone", ratio(long, parsed)),
            Figure("a new process that remembers / one that reads", ratio(fresh, reading)),
        ],
        background=[short, long, parsed, again, fresh, reading],
    )


@contextmanager
def processor_time(series: Series) -> Iterator[None]:
    """Add what the block takes of the processor, in milliseconds."""
    gc.collect()
    started = time.process_time()
    yield
    series.add((time.process_time() - started) * 1000)


def resolve(data: bytes) -> None:
    library = shipped_library()
    library.add(Source("many.yaml", Level.USER, 1, "/"), data)
    found = library.all()
    library.mistakes.raise_any()
    assert len(found) > COUNT


FIND = "from encamp.describe.environments import find_environment; find_environment('long9999')"


def _finding(directory: Path, count: int) -> tuple[Series, Series, Series]:
    """Finding one of them again: in this process, in a new one, and in one that cannot remember."""
    again = Series("found again", "ms")
    fresh = Series("new process, remembered", "ms")
    reading = Series("new process, read", "ms")
    before = Path.cwd()
    os.chdir(directory)
    try:
        # What has only just been written is not remembered yet.
        time.sleep(0.1)
        find_environment("long9999")
        for _ in rounds("describe, finding", count):
            with stopwatch(again):
                find_environment("long9999")
            with stopwatch(fresh):
                subprocess.run([sys.executable, "-c", FIND], check=True)
            # A home that is not there remembers nothing.
            nowhere = {**os.environ, "ENCAMP_HOME": str(directory / "nowhere")}
            with stopwatch(reading):
                subprocess.run([sys.executable, "-c", FIND], check=True, env=nowhere)
    finally:
        os.chdir(before)
    return again, fresh, reading
