"""Static classes of hosts against environments on demand, on simulated sites."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from bench.ground import Ground
from bench.report import Figure, Goal, Plot, Report, Table
from encamp.cli.simulated import OF_CLASS, OVERALL
from encamp.sim.drawing import draw
from encamp.sim.measures import Course
from encamp.sim.simulation import Simulation
from encamp.sim.site import Sharing, SimulatedSite
from encamp.sim.site_file import read_site
from encamp.sim.trace import read_trace
from encamp.sim.workload import SimulatedJob, jobs_of_trace, made_up

TITLE = "static classes of hosts against environments on demand"

EXPLANATION = """
The use case with which the paper on dynamic environments opens, and which it leaves as future work
(Servoli, Mariotti, Cefalà: *A Proposal to Dynamically Manage Virtual Environments in Heterogeneous
Computing Facilities*): hosts belong to classes, one class has too many jobs, and the hosts of the
others are idle. `encamp simulate` runs the core that managers run, under a virtual clock, with the
sites of `examples/simulation/`. All that comes to `encamp simulate` is in
[Simulation](simulation.md).

*Static*: each class owns hosts on which its environment is installed, so that a job begins there at
once, for nothing. *Equal parts* gives each class as many hosts; *by demand* as many as all of its
jobs will need, which nobody knows beforehand. *On demand*: any class on any host, in machines made
for each job, which costs what was measured: copying an image to a host that does not have it,
making a template there once, and then a clone for each job.

`classes` is made up: three classes, of which one has most of the jobs, every six hours another
one. `wagap` replays 17,898 jobs of two clusters in 2013 (two more have no run time in the trace),
whose environments are the properties they asked their nodes for; ten ask for more than all hosts
have, and are refused whatever the policy. `nasa` replays 18,239 jobs of an
iPSC/860 in 1993 whose users are dealt to three classes; each class has a machine of the size of
the iPSC's own, and three times as many jobs come as did. The first trace is from the data sets of
the Alea simulator, the second from the Parallel Workloads Archive. They are no part of Encamp: the
directory they are in is given by `ENCAMP_TRACES`.
"""

EXAMPLES = Path(__file__).parent.parent / "examples" / "simulation"
TRACES = "ENCAMP_TRACES"
REPLAYED = {
    "wagap": "wagap-2013.swf",
    "nasa": "NASA-iPSC-1993-3.1-cln.swf.gz",
}
"""Sites, and the traces that go with them."""
QUICK = 500
"""Jobs of each, only to see it work."""
SECONDS = 60.0
"""Of the processor's time that a trace may take."""
SHOWN = (
    *("jobs done", "waiting, mean", "waiting, median", "waiting, 95 % below"),
    *("bounded slowdown, mean", "processors used", "jobs done an hour"),
    *("machines made", "templates made", "images copied"),
)


def measure(ground: Ground, *, quick: bool) -> Report:
    report = Report()
    _add(report, "classes", None, quick)
    directory = os.environ.get(TRACES)
    if directory is None:
        report.remarks.append(f"No traces were replayed: {TRACES} does not say where they are.")
        return report
    for name, trace in REPLAYED.items():
        _add(report, name, Path(directory) / trace, quick)
    return report


def _add(report: Report, name: str, trace: Path | None, quick: bool) -> None:
    site = read_site(EXAMPLES / f"{name}.yaml")
    jobs = made_up(site, 0) if trace is None else jobs_of_trace(site, read_trace(trace))
    courses, seconds = _simulated(site, jobs[:QUICK] if quick else jobs)
    [shared] = [one for one in courses if one.measured.sharing is Sharing.ON_DEMAND]
    for course in courses:
        if course is not shared:
            what = f"{name}: waiting on demand / {course.measured.policy}, mean"
            ratio = shared.measured.waiting.mean / course.measured.waiting.mean
            report.figures.append(Figure(what, ratio, goal=(Goal.AT_MOST, 1.0)))
    report.figures.append(
        Figure(
            f"{name}: {len(jobs):,} jobs on demand",
            seconds,
            "s of CPU",
            (Goal.AT_MOST, SECONDS),
        )
    )
    report.tables.append(_table(name, courses))
    shows = f"Waiting and use of the hosts, on the site '{name}'"
    report.plots.append(Plot(f"simulation-{name}", shows, draw(courses, name).decode()))


def _simulated(site: SimulatedSite, jobs: list[SimulatedJob]) -> tuple[list[Course], float]:
    """Each policy's course, and the processor's time that the one on demand took."""
    courses = []
    taken = 0.0
    for compared in site.policies:
        begin = time.process_time()
        courses.append(Simulation(site, jobs, compared).run())
        if compared.sharing is Sharing.ON_DEMAND:
            taken = time.process_time() - begin
    return courses, taken


def _table(name: str, courses: Sequence[Course]) -> Table:
    found = [course.measured for course in courses]
    rows = [(what, *(OVERALL[what](one) for one in found)) for what in SHOWN]
    for one in sorted(found[0].by_class):
        what = "waiting, mean"
        cells = [OF_CLASS[what](measured.by_class[one]) for measured in found]
        rows.append((f"{one}: {what}", *cells))
    return Table((name, *(one.policy for one in found)), rows)
