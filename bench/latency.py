"""From request to the command's first output."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

from bench.bare import bare_machine
from bench.ground import Ground
from bench.libvirt import libvirt_machine
from bench.measure import ImpossibleError, Series, ratio, rounds, stopwatch
from bench.report import Figure, Goal, Report
from encamp.agent.run import Control, run_job
from encamp.agent.streams import Silence
from encamp.model.job import Job
from encamp.progress import Silent

TITLE = "from request to the command's first output in a fresh machine"

EXPLANATION = """
*Library*: `run_job` in a Python process that is already running, from the call until the first
byte of `echo`'s output is handed to the caller. *Bare*: the same in the bare script. What the
library does on top is the record on disk, the check for room, the launcher that gives up rights,
the user account inside the machine, and asyncio. Most of the time on both sides is QEMU's: it
starts and restores in about a fifth of it, and under software emulation spends the rest
translating the guest's code, which every clone has to do anew.

*The command `encamp run`* is timed as a process, from start to end, and so contains the start of
Python, the imports (from compiled bytecode, as when it is installed), the parsing of the command
line and the end of the machine; it is compared with the bare script running inside a Python process
that stands already.

*Cold boot* is the library with `boot=True`: the same environment, kernel and devices, not cloned.

*virsh restore* is a machine with the same kernel, first programs, root file system, memory and
number of ports, booted under libvirt, saved with `virsh save` and timed from `virsh restore` to
the output of the same command. libvirt reads the whole memory from the saved file, and asks QEMU
for its capabilities and devices one by one.
"""

WORDS = ("echo", "first")
EXPECTED = b"first\n"


class FirstWrite(Silence):
    """Notes when the first output came."""

    def __init__(self) -> None:
        self.at = 0.0

    async def write(self, data: bytes) -> None:
        if not self.at:
            self.at = time.perf_counter()


async def run_until_output(ground: Ground, job: Job) -> float:
    """Milliseconds from the request until the first output."""
    streams = FirstWrite()
    started = time.perf_counter()
    outcome = await run_job(ground.keeper, job, streams, control=Control(), progress=Silent())
    assert outcome.exit_code == 0, outcome
    return (streams.at - started) * 1000


def measure(ground: Ground, *, quick: bool) -> Report:
    library = Series("library, first output", "ms")
    bare = Series("bare, first output", "ms")
    welcome = Series("bare, guest's first answer", "ms")
    command = Series("encamp run -- true, whole process", "ms")
    boot = Series("library, cold boot", "ms")
    restore = Series("virsh restore, first output", "ms")
    report = Report()
    job = ground.job(*WORDS)
    cold = msgspec.structs.replace(job, machine=msgspec.structs.replace(job.machine, boot=True))
    encamp_run = partial(_run_command, _as_installed(ground))
    encamp_run()
    count = 3 if quick else 30
    with asyncio.Runner() as runner:
        for number in rounds("latency", count):
            library.add(runner.run(run_until_output(ground, job)))
            with bare_machine(ground) as machine:
                machine.wake()
                machine.run(WORDS, EXPECTED)
                bare.add(machine.age())
            with stopwatch(command):
                encamp_run()
            with bare_machine(ground) as machine:
                machine.wake()
                machine.greet()
                welcome.add(machine.age())
            if number % 6 == 0:
                boot.add(runner.run(run_until_output(ground, cold)))
    try:
        with libvirt_machine(ground) as saved:
            beside = Series(bare.name, "ms")
            for _ in rounds("latency, virsh", 2 if quick else 10):
                restore.add(saved.restore(WORDS, EXPECTED))
                beside.add(runner_once(ground, job))
            report.figures.append(
                Figure("library / virsh restore", ratio(beside, restore), goal=_at_most(1 / 3))
            )
    except ImpossibleError as reason:
        report.remarks.append(f"Not compared with `virsh restore`: {reason}")
    report.figures[:0] = [
        Figure("library / bare script", ratio(library, bare), goal=_at_most(1.15)),
        Figure("library / bare script, until the guest's first answer", ratio(library, welcome)),
        Figure("encamp run / bare script", ratio(command, bare), goal=_at_most(2)),
        Figure("library / cold boot", ratio(library, boot), goal=_at_most(0.1)),
    ]
    shown = (library, bare, welcome, command, boot, restore)
    report.background += [series for series in shown if series.values]
    return report


def _as_installed(ground: Ground) -> dict[str, str]:
    """Variables with which the command finds its bytecode compiled, as an installed one does."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return variables | {"PYTHONPYCACHEPREFIX": str(ground.scratch / "bytecode")}


def _run_command(variables: dict[str, str]) -> None:
    program = Path(sys.executable).with_name("encamp")
    subprocess.run([program, "run", "--", "true"], env=variables, check=True)


def runner_once(ground: Ground, job: Job) -> float:
    return asyncio.run(run_until_output(ground, job))


def _at_most(bound: float) -> tuple[Goal, float]:
    return Goal.AT_MOST, bound
