"""Many jobs in a row in mixed environments, against the same without environments."""

from __future__ import annotations

from bench.batch_site import CLASSES, SYSTEMS, makespan, site
from bench.ground import Ground
from bench.report import Figure, Report
from encamp.batch.trial.site import Trial

TITLE = "200 jobs in three mixed environments"

EXPLANATION = """
A private site with two hosts of one slot each. Jobs (`echo`) are submitted one after the other,
first without environments, then with three in turns; the makespan is from the first submission
until the last has ended. Jobs as short as these show the cost of a machine each at its largest:
without one they take as long as the batch system needs to start them. Afterwards no job may be
missing, and no machine may be left.
"""


def measure(ground: Ground, *, quick: bool) -> Report:
    count = 12 if quick else 200
    report = Report()
    for kind in SYSTEMS:
        with site(kind, ground, nodes=2) as trial:
            plain = makespan(trial, [(None, "")] * count, ["/bin/echo", "x"])
            before = set(trial.work.glob("*.out"))
            mixed = [(CLASSES[number % len(CLASSES)], "") for number in range(count)]
            inside = makespan(trial, mixed, ["/bin/echo", "x"])
            printed = [path.stat().st_size for path in set(trial.work.glob("*.out")) - before]
            lost = count - sum(size > 0 for size in printed)
            left = machines_left(trial)
        name = trial.system
        report.figures += [
            Figure(f"{name}: makespan with environments / without", inside / plain),
            Figure(f"{name}: makespan with environments", inside, "s"),
            Figure(f"{name}: makespan without", plain, "s"),
            Figure(f"{name}: jobs lost", lost, "jobs"),
            Figure(f"{name}: machines left", left, "machines"),
        ]
    return report


def machines_left(trial: Trial) -> int:
    return sum(len(list(trial.home(host).root.glob("**/machines/*"))) for host in trial.hosts)
