"""Traces of workloads in the Standard Workload Format: one job a line, eighteen numbers each.

-1 stands for what is not known. Some traces add to each line what the format has no field for: the
nodes that were used, the queue, and the request as it was written, `2:ppn=8:x86_64`. These are
read where they are there.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path

import msgspec

from encamp.describe.nodes import Mistakes
from encamp.describe.sources import Level, Source
from encamp.model.errors import Code, EncampError

FIELDS = 18
USED = 15
"""Fields of a line that must be there; some traces leave out the last ones."""

LARGEST = 1 << 30
"""Bytes of a trace, unpacked."""

NODES = re.compile(r"\d+")
MOST = 10_000_000
"""Processors of one job."""


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace; None is what it does not say."""

    line: int
    number: int
    submitted: float
    run: float
    cpus: int
    memory: float | None
    user: str
    user_group: str
    program: str
    queue: str
    properties: tuple[str, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()
    """What it asks for, if it says so: so many nodes with so many processors each."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    jobs: tuple[TraceJob, ...]
    """In the order in which they were submitted."""
    left_out: int = 0
    """Jobs that never ran, or of which it is not known for how long or on what."""
    unsorted: int = 0
    """The first line that is earlier than the one before it; 0 if there is none."""


def read_trace(path: Path) -> Trace:
    """Read a trace, plain or packed by gzip; all of its mistakes at once, if there are any."""
    shown = str(path)
    source = Source(shown, Level.HERE, 0, str(path.parent), shown)
    mistakes = Mistakes()
    jobs: list[TraceJob] = []
    left_out = unsorted = 0
    latest = -math.inf
    for line, text in enumerate(_text(path).split("\n"), 1):
        if not text.strip() or text.lstrip().startswith(";"):
            continue
        job = _job(text, line, source, mistakes)
        if job is None:
            continue
        if job.submitted < latest and not unsorted:
            unsorted = line
        latest = job.submitted
        if job.run < 0 or job.cpus <= 0 or job.submitted < 0:
            left_out += 1
        else:
            jobs.append(job)
    mistakes.raise_any()
    if not jobs:
        raise EncampError(
            Code.CONFIGURATION,
            f"There is no job in {shown} that has run.",
            "A trace has one job a line: its number, when it was submitted, how long it waited and"
            " ran, on how many processors ..., and comments after ';'.",
        )
    jobs.sort(key=lambda job: job.submitted)
    return Trace(path=shown, jobs=tuple(jobs), left_out=left_out, unsorted=unsorted)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EncampError(
            Code.INPUT_MISSING, f"The trace {path} cannot be read: {error.strerror}."
        ) from error
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as file:
                data = file.read(LARGEST + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise EncampError(
                Code.CORRUPT, f"The trace {path} cannot be unpacked: {error}."
            ) from error
    if len(data) > LARGEST:
        raise EncampError(Code.CONFIGURATION, f"The trace {path} is larger than 1 GiB.")
    return data.decode(errors="replace")


def _job(text: str, line: int, source: Source, mistakes: Mistakes) -> TraceJob | None:
    words = text.split(maxsplit=FIELDS + 2)
    if len(words) < USED:
        mistakes.add(
            source,
            line,
            1,
            f"a job has {FIELDS} fields, and this line has {len(words)}; comments begin with ';'",
        )
        return None
    numbers: list[float] = []
    for place, word in enumerate(words[:FIELDS]):
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            column = text.index(word) + 1
            mistakes.add(
                source,
                line,
                column,
                f"field {place + 1} ({NAMES[place]}) must be a number, -1 if it is not known, not"
                f" {word[:40]!r}",
            )
            return None
        numbers.append(number)
    # What was given to it; or what it asked for, where that is not known.
    cpus = numbers[4] if numbers[4] > 0 else numbers[7]
    if cpus > MOST:
        mistakes.add(source, line, 1, f"a job of {cpus:.0f} processors makes no sense")
        return None
    nodes, properties = _request(words[FIELDS + 2]) if len(words) > FIELDS + 2 else ((), ())
    queue = words[FIELDS + 1] if len(words) > FIELDS + 1 else _name(numbers[14])
    return TraceJob(
        line=line,
        number=int(numbers[0]),
        submitted=numbers[1],
        run=numbers[3],
        cpus=int(cpus),
        memory=numbers[9] if numbers[9] > 0 else None,
        user=_name(numbers[11]),
        user_group=_name(numbers[12]),
        program=_name(numbers[13]),
        queue=queue,
        properties=properties,
        nodes=nodes,
    )


NAMES = (
    *("job number", "submit time", "wait time", "run time", "processors used", "CPU time used"),
    *("memory used", "processors requested", "time requested", "memory requested", "status"),
    *("user", "group", "program", "queue", "partition", "preceding job", "think time"),
)
"""What the fields are called in the format's definition, more or less."""


def _name(number: float) -> str:
    return "" if number < 0 else f"{number:.0f}"


def _request(text: str) -> tuple[tuple[tuple[int, int], ...], tuple[str, ...]]:
    """`1:ppn=1+3:ppn=2:x86_64`: three nodes of two processors and one of one, with a property."""
    nodes: list[tuple[int, int]] = []
    properties: dict[str, None] = {}
    for part in text.strip().split("+"):
        count, cpus = 1, 1
        for place, word in enumerate(part.split(":")):
            name, equals, value = word.partition("=")
            if place == 0 and NODES.fullmatch(word):
                count = int(word)
            elif name == "ppn" and NODES.fullmatch(value):
                cpus = int(value)
            elif not equals and word:
                properties[word.partition("#")[0]] = None
        nodes.append((count, cpus))
    return tuple(nodes), tuple(properties)
