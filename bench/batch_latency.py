"""How long a job of a batch system waits for its machine."""

from __future__ import annotations

import json

from bench.batch_site import CLASSES, SYSTEMS, arrival, first_line, site, until_first_line
from bench.batch_starter import measure_starter
from bench.ground import Ground
from bench.measure import Series, rounds
from bench.report import Figure, Goal, Report
from encamp.batch.trial.site import Trial

TITLE = "a job of a batch system, in a machine and without one"

EXPLANATION = """
A private site of each batch system with one host: real daemons, a real agent, an ordinary user.
The same job (`echo`) is submitted with an environment and without one, in turns. Measured is the
time from when the batch system has the job on its host (its prolog runs) until the first line is
in the job's output file. *Waiting for the machine* is the difference of the medians. *Clone* is
what `encamp run` tells about the same environment on the same host: making the machine, and its
guest's first answer. The guest sends that after it has begun to start the command, which is
therefore in it for some 15 ms: without that a clone took 103 to 113 ms, and jobs waited 2.3 times
as long. A job's command is made ready in its machine while everybody is told that it begins, by a
process that is there already. The figure is close to its goal: 35 runs gave 1.81 to 2.14 (Slurm)
and 1.79 to 2.12 (Grid Engine), around 1.95, and seven of them missed it. What is spared in both a
clone and a job makes it no smaller. Beside the clone, the first
command of a fresh machine is some 0.5 of one under software emulation, whose translated code no
clone inherits; each shared directory 0.1; asking the batch system 0.1; and what is written down and
started around the machine 0.15.
*Starter* is a script whose first line calls `encamp-starter`, from its start to its end: it reads
the script, has a guard, hands the job over at a door, and learns there at once that the job has
begun and ended. The same script by its own shell is what a batch system would start without it.
"""


def measure(ground: Ground, *, quick: bool) -> Report:
    report = Report()
    for kind in SYSTEMS:
        with site(kind, ground, nodes=1) as trial:
            _measure_one(trial, report, 2 if quick else 20)
    report.background += measure_starter(20 if quick else 200)
    return report


def _measure_one(trial: Trial, report: Report, count: int) -> None:
    plain = Series(f"{trial.system}: first line without an environment", "ms")
    inside = Series(f"{trial.system}: first line in a machine", "ms")
    clone = Series(f"{trial.system}: clone", "ms")
    _clone(trial, needed=False)  # Whoever measures needs a template, too.
    for _ in rounds(f"batch_latency {trial.system}", count):
        for environment, series in ((None, plain), (CLASSES[0], inside)):
            job = trial.submit(environment, ["/bin/echo", "x"])
            until_first_line(trial, job)
            trial.wait([job])
            series.add((first_line(trial, job) - arrival(trial, job)) * 1000)
        clone.add(_clone(trial))
    wait = inside.median - plain.median
    what = f"{trial.system}: waiting for the machine / clone"
    report.figures.append(Figure(what, wait / clone.median, goal=(Goal.AT_MOST, 2.0)))
    report.figures.append(Figure(f"{trial.system}: waiting for the machine", wait, "ms"))
    report.background += [plain, inside, clone]


def _clone(trial: Trial, *, needed: bool = True) -> float:
    """Milliseconds until a machine's guest answers."""
    words = ("run", "--local", "--json", "--environment", CLASSES[0], "--", "true")
    # Its standard output is the job's.
    told = json.loads(trial.encamp(trial.hosts[0], *words).stderr.splitlines()[-1])
    phases = {phase["phase"]: phase for phase in told["phases"]}
    if needed and "cloned" not in phases["start"]["how"]:
        raise RuntimeError(f"the machine was not cloned, but {phases['start']['how']}")
    return 1000 * float(phases["start"]["seconds"] + phases["activation"]["seconds"])
