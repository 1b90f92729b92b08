"""Files of the host in a machine: a share beside a disk of the machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.ground import Ground
from bench.measure import KIB, Series, memory_of, ratio, rounds, stopwatch
from bench.report import Figure, Goal, Report
from encamp.machines.process import Process

TITLE = "files of the host in a machine"

EXPLANATION = """
The same program works in a share, on the machine's own disk (in its memory) and, for scale, on the
host. What is done first is done after the machine's kernel was told to forget all files. If
`ENCAMP_EARLIER` names the command of an earlier release, its share is measured in the same rounds.

The steps from *git* on are programs that nobody here wrote, in Debian 12: git (60 files, four
commits, a clone, a check), Python's import of 60 modules, tar and diff (a tree of 10,000 files).
*First output* is the time of a whole `encamp run -- true`, beside one without a share.
"""

WORKER = Path(__file__).with_name("shares_worker.c")
PROGRAMS = Path(__file__).with_name("shares_programs.sh")
ENVIRONMENT = """
workshop:
  extends: debian12
  memory: 768M
  image: {packages+: [git, python3-minimal, diffutils]}
"""
CROWD = 100
"""Machines with a share at once."""
ENCAMP = Path(sys.executable).with_name("encamp")
GOALS = {
    "write 64 MiB": (Goal.AT_MOST, 1.5),
    "read 64 MiB": (Goal.AT_MOST, 1.5),
    "create 300 files": (Goal.AT_MOST, 1.0),
    "delete 300 files": (Goal.AT_MOST, 1.0),
    "stat 300 files": (Goal.AT_MOST, 0.5),
    "walk over 3,030": (Goal.AT_MOST, 0.5),
    "git": (Goal.AT_MOST, 0.5),
    "import 60 modules": (Goal.AT_MOST, 0.5),
}
"""Times as long as in a share of the release before, which was 9p."""


def measure(ground: Ground, *, quick: bool) -> Report:
    report = Report()
    earlier = os.environ.get("ENCAMP_EARLIER")
    work = Path(tempfile.mkdtemp(prefix="shares-", dir=ground.scratch))
    worker = work / "worker"
    subprocess.run(["gcc", "-O2", "-static", "-o", worker, WORKER], check=True)
    worker.chmod(0o755)
    (work / "environments.yaml").write_text(ENVIRONMENT)
    commands = {"share": ENCAMP}
    if earlier is not None:
        commands["earlier share"] = Path(earlier)
    sides: dict[str, dict[str, Series]] = {}
    for _ in rounds("shares", 1 if quick else 5):
        for side, encamp in commands.items():
            _take(sides, side, _machine(encamp, work, "mini", "/share", worker))
            _take(sides, side, _first_output(encamp, work))
        _take(sides, "own disk", _machine(ENCAMP, work, "mini", "/tmp", worker))
        _take(sides, "own disk", _first_output(ENCAMP, work, share=False))
        if os.geteuid() == 0:
            _take(sides, "host", _host(worker, work))
    for _ in rounds("programs on shares", 1 if quick else 3):
        for side, encamp in commands.items():
            _take(sides, side, _machine(encamp, work, "workshop", "/share", PROGRAMS))
        _take(sides, "own disk", _machine(ENCAMP, work, "workshop", "/tmp", PROGRAMS))
    for step, series in sides["share"].items():
        report.figures.append(
            Figure(f"{step}: share / own disk", ratio(series, sides["own disk"][step]))
        )
        if earlier is not None:
            figure = ratio(series, sides["earlier share"][step])
            report.figures.append(Figure(f"{step}: share / earlier", figure, "x", GOALS.get(step)))
    for taken in sides.values():
        report.background += taken.values()
    report.background += [_memory(ground, work, count, 5 if quick else CROWD) for count in (1, 2)]
    return report


def _take(sides: dict[str, dict[str, Series]], side: str, printed: str) -> None:
    for line in printed.splitlines():
        step, _, milliseconds = line.partition("\t")
        series = sides.setdefault(side, {}).setdefault(step, Series(f"{side}: {step}", "ms"))
        series.add(float(milliseconds))


@contextmanager
def _shared(work: Path) -> Iterator[Path]:
    share = work / "share"
    share.mkdir()
    try:
        yield share
    finally:
        shutil.rmtree(share)


def _machine(encamp: Path, work: Path, environment: str, where: str, worker: Path) -> str:
    with _shared(work) as share:
        words = ["run", "--environment", environment, "--share", f"{share}:/share"]
        if environment == "mini":
            words += ["--memory", "512M"]
        words += ["--in", f"{worker}:/worker", "--", "sh", "-c"]
        words += [f"mkdir -p {where}/work; /worker {where}/work"]
        return _output([encamp, *words], work)


def _first_output(encamp: Path, work: Path, *, share: bool = True) -> str:
    series = Series("", "")
    with _shared(work) as directory:
        words: list[Path | str] = [encamp, "run"]
        words += ["--share", f"{directory}:/share"] if share else []
        words += ["--", "true"]
        # Its template may be there no more: the other release has the same home.
        _output(words, work)
        with stopwatch(series):
            _output(words, work)
    return f"first output\t{series.median}"


def _host(worker: Path, work: Path) -> str:
    with _shared(work) as directory:
        return _output([worker, directory], work)


def _output(words: list[Path | str], directory: Path) -> str:
    return subprocess.run(
        words, cwd=directory, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _memory(ground: Ground, work: Path, shares: int, count: int) -> Series:
    """Of a share server, of `count` machines at once with so many shares each."""
    series = Series(f"own memory of a server, {count} machines, shares of each: {shares}", "KiB")
    names = [f"shares{number}" for number in range(count)]
    journal = ground.keeper.journal
    with _shared(work) as share:
        try:
            for name in names:
                words: list[Path | str] = [ENCAMP, "start", "--name", name]
                for number in range(shares):
                    words += ["--share", f"{share}:/share{number}"]
                _output(words, work)
                _output([ENCAMP, "exec", name, "--", "ls", "/share0"], work)
            for name in names:
                directory = journal.directory(journal.find(name).id)
                server = Process.holding(directory.shares_lock)
                assert server is not None, f"{name} has no share server"
                server.close()
                series.add(memory_of(server.pid).own / KIB)
        finally:
            subprocess.run([ENCAMP, "rm", "--force", *names], check=False)
    return series
