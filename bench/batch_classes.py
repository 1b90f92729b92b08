"""Three classes of jobs in imbalance: hosts split by class, against baits on all of them."""

from __future__ import annotations

import statistics
import time

from bench.batch_site import CLASSES, SYSTEMS, first_line, site
from bench.ground import Ground
from bench.report import Figure, Report, Table
from encamp.batch.trial.site import Trial

TITLE = "three classes of jobs in imbalance"

EXPLANATION = """
Three hosts with one slot each, and three classes of jobs in a ratio of 10 : 1 : 1, which arrive
all at once and mixed. *Split*: each class has a host of its own, where its jobs run without a
machine, since the host is what they need. *Baits*: every host takes every job, in a machine of its
class. A job prints a line and sleeps for a second. It has waited until that line is there, so that
making machines counts as waiting.
"""

SECONDS = "1"
SHARE = (10, 1, 1)


def measure(ground: Ground, *, quick: bool) -> Report:
    report = Report()
    rows = []
    for kind in SYSTEMS[:1] if quick else SYSTEMS:
        with site(kind, ground, nodes=3) as trial:
            order = _order(1 if quick else 4)
            names = [host.name for host in trial.hosts]
            split = _run(trial, [(None, names[number]) for number in order], order)
            baits = _run(trial, [(CLASSES[number], "") for number in order], order)
        name = trial.system
        report.figures += [
            Figure(f"{name}: makespan with baits / split", baits[0] / split[0]),
            Figure(f"{name}: mean wait with baits / split", baits[1] / split[1]),
        ]
        for what, (span, mean, waits) in (("split", split), ("baits", baits)):
            shown = [f"{wait:.1f} s" for wait in (span, mean, *waits)]
            rows.append((name, what, *shown))
    head = ("batch system", "hosts", "makespan", "mean wait", *(f"class {n}" for n in CLASSES))
    report.tables.append(Table(head, rows))
    return report


def _order(times: int) -> list[int]:
    """Classes of jobs as they come."""
    rare = [number for number, share in enumerate(SHARE) for _ in range(share) if number]
    usual = [0] * (SHARE[0] // len(rare))
    return [number for _ in range(times) for each in rare for number in (*usual, each)]


def _run(
    trial: Trial, jobs: list[tuple[str | None, str]], order: list[int]
) -> tuple[float, float, list[float]]:
    """Makespan, mean wait, and the mean wait of each class."""
    command = ["/bin/sh", "-c", f"echo x; sleep {SECONDS}"]
    began, monotonic = time.time(), time.monotonic()
    submitted = []
    for environment, node in jobs:
        at = time.time()
        submitted.append((trial.submit(environment, command, node=node), at))
    trial.wait([id for id, _ in submitted])
    span = time.monotonic() - monotonic
    waits = [max(0.0, first_line(trial, id) - at) for id, at in submitted]
    assert all(first_line(trial, id) >= began - 1 for id, _ in submitted)
    each = [
        statistics.mean(wait for wait, number in zip(waits, order, strict=True) if number == one)
        for one in range(len(SHARE))
    ]
    return span, statistics.mean(waits), each
