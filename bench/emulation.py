"""What the emulated processor that machines are given is good for."""

from __future__ import annotations

import asyncio

import msgspec

from bench.ground import ENVIRONMENT, Ground
from bench.measure import Series, paired_ratio, rounds
from bench.report import Figure, Report
from encamp.agent.run import Control, run_job
from encamp.agent.streams import Silence
from encamp.describe.environments import find_environment
from encamp.model.driver import DriverName
from encamp.model.environment import Environment
from encamp.model.machine import Phase
from encamp.progress import Silent

TITLE = "copying in a machine under software emulation"

EXPLANATION = """
The same commands in clones of `mini` and of a `mini` with QEMU's own processor `max`, in turns; the
figures are medians of the ratios of neighbouring rounds. `max` says of itself that it is quick with
strings of bytes (ERMS), so kernels and C libraries copy and clear memory byte by byte. Emulated, a
byte takes as long as a word of eight. Encamp's processor is `max` without saying that. *Clearing*
has the kernel clear 300 MiB, *reading* has it copy 100 MiB out of files, *starting* has 100 shells
started one after the other: all of that is what it takes inside, and not the making of the machine.
"""

WORK = {
    "clearing": "dd if=/dev/zero of=/dev/null bs=1M count=300 2>/dev/null",
    "reading": "dd if=/dev/zero of=/tmp/x bs=1M count=20 2>/dev/null;"
    " for i in 1 2 3 4 5; do dd if=/tmp/x of=/dev/null bs=64k 2>/dev/null; done",
    "starting": "i=0; while [ $i -lt 100 ]; do /bin/sh -c :; i=$((i + 1)); done",
}


def measure(ground: Ground, *, quick: bool) -> Report:
    if ground.plan.hardware.driver is DriverName.KVM:
        return Report(remarks=["Not measured: machines have the host's processor here."])
    ours = find_environment(ENVIRONMENT)
    plain = msgspec.structs.replace(ours, qemu=("-cpu", "max"))
    report = Report()
    with asyncio.Runner() as runner:
        for name, script in WORK.items():
            series = {each: Series(f"{name}, {each}", "ms") for each in ("Encamp's", "max")}
            for _ in rounds(f"emulation, {name}", 2 if quick else 10):
                for each, environment in (("Encamp's", ours), ("max", plain)):
                    series[each].add(runner.run(_inside(ground, environment, script)))
            one, other = series.values()
            figure = Figure(f"{name}: Encamp's processor / max", paired_ratio(one, other))
            report.figures.append(figure)
            report.background += [one, other]
    return report


async def _inside(ground: Ground, environment: Environment, script: str) -> float:
    """Milliseconds that the command takes."""
    job = ground.job("/bin/sh", "-c", script)
    outcome = await run_job(
        ground.keeper,
        job,
        Silence(),
        control=Control(),
        progress=Silent(),
        environment=environment,
    )
    assert outcome.exit_code == 0, outcome
    return 1000 * next(done.seconds for done in outcome.phases if done.phase is Phase.COMMAND)
