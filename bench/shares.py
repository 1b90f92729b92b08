"""Files of the host in a machine: a share beside a disk of the machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.ground import Ground
from bench.measure import Series, ratio, rounds
from bench.report import Figure, Goal, Report

TITLE = "files of the host in a machine"

EXPLANATION = """
The same program works in a share, on the machine's own disk (in its memory) and, for scale, on the
host. What is done first is done after the machine's kernel was told to forget all files. If
`ENCAMP_EARLIER` names the command of an earlier release, its share is measured in the same rounds.
"""

WORKER = Path(__file__).with_name("shares_worker.c")
ENCAMP = Path(sys.executable).with_name("encamp")
GOALS = {
    "write 64 MiB": (Goal.AT_MOST, 1.5),
    "read 64 MiB": (Goal.AT_MOST, 1.5),
    "create 300 files": (Goal.AT_MOST, 1.0),
    "delete 300 files": (Goal.AT_MOST, 1.0),
    "stat 300 files": (Goal.AT_MOST, 0.5),
    "walk over 3,030": (Goal.AT_MOST, 0.5),
}
"""Times as long as in a share of the release before, which was 9p."""


def measure(ground: Ground, *, quick: bool) -> Report:
    report = Report()
    earlier = os.environ.get("ENCAMP_EARLIER")
    work = Path(tempfile.mkdtemp(prefix="shares-", dir=ground.scratch))
    worker = work / "worker"
    subprocess.run(["gcc", "-O2", "-static", "-o", worker, WORKER], check=True)
    worker.chmod(0o755)
    sides: dict[str, dict[str, Series]] = {}
    for _ in rounds("shares", 1 if quick else 5):
        _take(sides, "share", _machine(ENCAMP, work, "/share"))
        _take(sides, "own disk", _machine(ENCAMP, work, "/tmp"))
        if earlier is not None:
            _take(sides, "earlier share", _machine(Path(earlier), work, "/share"))
        if os.geteuid() == 0:
            _take(sides, "host", _host(work))
    for step, series in sides["share"].items():
        report.figures.append(
            Figure(f"{step}: share / own disk", ratio(series, sides["own disk"][step]))
        )
        if earlier is not None:
            figure = ratio(series, sides["earlier share"][step])
            report.figures.append(Figure(f"{step}: share / earlier", figure, "x", GOALS.get(step)))
    for side in sides.values():
        report.background += side.values()
    return report


def _take(sides: dict[str, dict[str, Series]], side: str, printed: str) -> None:
    for line in printed.splitlines():
        step, _, milliseconds = line.partition("\t")
        series = sides.setdefault(side, {}).setdefault(step, Series(f"{side}: {step}", "ms"))
        series.add(float(milliseconds))


def _machine(encamp: Path, work: Path, where: str) -> str:
    share = work / "share"
    share.mkdir()
    words = [
        "run",
        "--memory",
        "512M",
        "--share",
        f"{share}:/share",
        "--in",
        f"{work / 'worker'}:/worker",
    ]
    words += ["--", "sh", "-c", f"mkdir -p {where}/work; /worker {where}/work"]
    try:
        return subprocess.run(
            [encamp, *words], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    finally:
        shutil.rmtree(share)


def _host(work: Path) -> str:
    place = work / "host"
    place.mkdir()
    try:
        words = [work / "worker", place]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    finally:
        shutil.rmtree(place)
