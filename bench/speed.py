"""The same work on the host and in machines of each driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.ground import Ground
from bench.measure import Series, ratio, rounds, stopwatch
from bench.report import Figure, Goal, Report

TITLE = "what machines are made of: the same work under each driver"

EXPLANATION = """
Two programs do the same on the host and in machines of Debian 12 with one processor, one after the
other in each round: one in C, compiled once, static; and a script that runs Debian's Python, gcc,
/bin/true and SQLite. Files are in the machine's memory, on the host in /dev/shm. *usermode* is
user-mode Linux as it is chosen by itself (isolation `kernel`), *usermode, namespace* the same where
the isolation `namespace` is enough. *First output* is the time of a whole `encamp run -- true` with
`mini`; emulated machines are cloned from a template, the others boot.
"""

WORK = Path(__file__).with_name("speed_work.c")
PROGRAMS = Path(__file__).with_name("speed_programs.sh")
ENCAMP = Path(sys.executable).with_name("encamp")
ENVIRONMENT = """
bench-speed:
  extends: debian12
  memory: 768M
  image: {packages+: [gcc, libc6-dev, python3-minimal, libpython3-stdlib]}
"""
SIDES = {
    "usermode": ["--driver", "usermode", "--isolation", "kernel"],
    "usermode, namespace": ["--driver", "usermode", "--isolation", "namespace"],
    "emulation": ["--driver", "emulation"],
}
GOALS = {
    "integers in C": {"usermode": 1.05},
    "floating point in C": {"usermode": 1.05},
    "three gcc -O2": {"usermode": 7.0, "usermode, namespace": 4.0},
}
"""Times as long as on the host, at most."""

FIRST = "first output"


def measure(ground: Ground, *, quick: bool) -> Report:
    report = Report()
    work = Path(tempfile.mkdtemp(prefix="speed-", dir=ground.scratch))
    (work / "environments.yaml").write_text(ENVIRONMENT)
    worker = work / "worker"
    subprocess.run(["gcc", "-O2", "-static", "-o", worker, WORK], check=True)
    worker.chmod(0o755)
    sides: dict[str, dict[str, Series]] = {}
    for _ in rounds("speed", 1 if quick else 5):
        for side, options in {"host": [], **SIDES}.items():
            taken = sides.setdefault(side, {})
            printed = _on_host(worker) if side == "host" else _inside(work, worker, options)
            for line in printed.splitlines():
                step, _, milliseconds = line.partition("\t")
                taken.setdefault(step, Series(f"{side}: {step}", "ms")).add(float(milliseconds))
            if side != "host":
                series = taken.setdefault(FIRST, Series(f"{side}: {FIRST}", "ms"))
                with stopwatch(series):
                    subprocess.run([ENCAMP, "run", *options, "--", "true"], check=True)
    for step, on_host in sides["host"].items():
        for side in SIDES:
            limit = GOALS.get(step, {}).get(side)
            goal = None if limit is None else (Goal.AT_MOST, limit)
            report.figures.append(
                Figure(f"{step}: {side} / host", ratio(sides[side][step], on_host), goal=goal)
            )
    first = ratio(sides["usermode"][FIRST], sides["emulation"][FIRST])
    report.figures.append(Figure("first output: usermode / emulation", first))
    for taken in sides.values():
        report.background += taken.values()
    return report


def _on_host(worker: Path) -> str:
    place = tempfile.mkdtemp(dir="/dev/shm")
    try:
        return _output([worker], place) + _output([PROGRAMS], place)
    finally:
        shutil.rmtree(place)


def _inside(work: Path, worker: Path, options: list[str]) -> str:
    words = ["run", "-e", "bench-speed", *options, "--in", f"{worker}:/work"]
    words += ["--in", f"{PROGRAMS}:/programs", "--", "sh", "-c"]
    return _output([ENCAMP, *words, "mkdir /tmp/place; cd /tmp/place; /work; /programs"], work)


def _output(words: list[str | Path], directory: str | Path) -> str:
    return subprocess.run(
        words,
        cwd=directory,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": "/tmp"},
    ).stdout
