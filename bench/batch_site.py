"""A private site of a batch system to measure on, and what its jobs' files tell afterwards."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.ground import Ground
from encamp.batch.trial.gridengine import GridEngineTrial
from encamp.batch.trial.site import Trial
from encamp.batch.trial.slurm import SlurmTrial

SYSTEMS: tuple[type[Trial], ...] = (SlurmTrial, GridEngineTrial)

CLASSES = ("one", "two", "three")
ENVIRONMENTS = "".join(f"{name}: {{extends: mini}}\n" for name in CLASSES)

PATIENCE, LOOK = 60.0, 0.01

ARRIVAL = """\
#!/bin/sh
: > {arrived}/${{SLURM_JOB_ID:-$JOB_ID}}
"""


@contextmanager
def site(kind: type[Trial], ground: Ground, *, nodes: int, slots: int = 1) -> Iterator[Trial]:
    """Ready for jobs, with templates of all environments on all hosts."""
    with tempfile.TemporaryDirectory(prefix="encamp-bench-") as name:
        place = Path(name)
        place.chmod(0o755)
        arrived = place / "arrived"
        arrived.mkdir()
        arrived.chmod(0o1777)
        trial = kind(
            place / "site",
            images=ground.keeper.home,
            environments=ENVIRONMENTS,
            nodes=nodes,
            slots=slots,
            arrival=ARRIVAL.format(arrived=arrived),
        )
        with trial:
            for host in trial.hosts:
                jobs = [trial.submit(each, ["/bin/true"], node=host.name) for each in CLASSES]
                trial.wait(jobs)
            yield trial


def arrival(trial: Trial, id: str) -> float:
    """When a job came to its host."""
    return (trial.directory.parent / "arrived" / id).stat().st_mtime


def until_first_line(trial: Trial, id: str) -> None:
    """Wait without asking the batch system, which would take processor time from what is
    measured."""
    path, until = trial.output(id), time.monotonic() + PATIENCE
    while not (path.exists() and path.stat().st_size) and time.monotonic() < until:
        time.sleep(LOOK)


def first_line(trial: Trial, id: str) -> float:
    """When a job that prints one line printed it."""
    path = trial.output(id)
    assert path.stat().st_size > 0, f"job {id} has printed nothing"
    return path.stat().st_mtime


def makespan(trial: Trial, jobs: Sequence[tuple[str | None, str]], command: Sequence[str]) -> float:
    """Seconds from the first submission until the last job has ended; jobs are environments and
    hosts."""
    began = time.monotonic()
    trial.wait([trial.submit(environment, command, node=node) for environment, node in jobs])
    return time.monotonic() - began
