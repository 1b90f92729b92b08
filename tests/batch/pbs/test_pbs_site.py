"""PBS' commands over a real Slurm: `qsub` takes jobs that name environments; hosts close, open."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from encamp.batch.adapters import open_batch_system
from encamp.batch.pbs.adapter import Pbs
from encamp.batch.slurm.site import SlurmSite
from encamp.model.batch import BaitState, BatchSettings, Task
from encamp.model.errors import Code, EncampError
from tests.batch.pbs.packages import Commands
from tests.conftest import ENCAMP

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="a private Slurm needs root"),
]

NOBODY = 65534
PATIENCE = 60.0
PLAIN = "#!/bin/sh\nexec sleep 1000\n"


class Site:
    """A private Slurm with PBS' commands, and Encamp installed for them."""

    def __init__(self, directory: Path, slurm: SlurmSite) -> None:
        self.directory = directory
        self.slurm = slurm
        self.work = directory / "work"
        self.work.mkdir()
        os.chown(self.work, NOBODY, NOBODY)
        self.script = self.work / "job.sh"
        self.script.write_text(PLAIN)
        self.commands = Commands(directory / "usr")
        self.variables = {
            **self.commands.variables,
            "ENCAMP_SITE_CONFIG": str(directory / "etc"),
            "HOME": str(self.work),
        }

    def encamp(self, *words: str) -> CompletedProcess[str]:
        return self.slurm.run([ENCAMP, "batch", *words], variables=self.variables)

    def pbs(self, name: str, *words: str) -> CompletedProcess[str]:
        """As an ordinary user."""
        return self.slurm.run_as(
            *(NOBODY, NOBODY, [name, *words]),
            directory=self.work,
            variables=self.variables,
            check=False,
        )

    def submit(self, *words: str) -> str:
        done = self.pbs("qsub", *words, "job.sh")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def script_of(self, job: str) -> str:
        return self.slurm.run(["scontrol", "write", "batch_script", job, "-"]).stdout

    def settings(self) -> BatchSettings:
        return BatchSettings(
            system="pbs",
            programs={
                "conf": str(self.slurm.conf),
                "pbs": str(self.commands.directory),
                "node": "n1",
            },
        )


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    directory = Path(tempfile.mkdtemp(prefix="encamp-pbs-"))
    directory.chmod(0o755)
    (directory / "etc").mkdir()
    try:
        with SlurmSite(directory / "slurm", nodes=1) as slurm:
            made = Site(directory, slurm)
            made.encamp("install", "pbs", "--yes", f"--prefix={directory}/lib")
            slurm.reconfigure()
            wait_until(lambda: "lua" in slurm.run(["scontrol", "show", "config"]).stdout)
            yield made
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def pbs(site: Site, monkeypatch: pytest.MonkeyPatch) -> Pbs:
    monkeypatch.setenv("PERL5LIB", site.variables["PERL5LIB"])
    made = open_batch_system(site.settings())
    assert isinstance(made, Pbs)
    return made


def running(site: Site, job: str) -> bool:
    return "job_state = R" in site.pbs("qstat", "-f", job).stdout


def test_job_that_names_an_environment_gets_the_starter(site: Site) -> None:
    job = site.submit("-h", "-v", "ENCAMP_ENVIRONMENT=mini", "-l", "nodes=1:ppn=1")
    assert site.script_of(job) == f"#!{site.directory}/lib/encamp-starter pbs:mini\n{PLAIN}"
    assert site.pbs("qdel", job).returncode == 0


def test_job_that_names_none_is_left_alone(site: Site) -> None:
    job = site.submit("-h")
    assert site.script_of(job) == PLAIN
    assert site.pbs("qdel", job).returncode == 0


def test_job_that_runs_is_described(site: Site, pbs: Pbs) -> None:
    job = site.submit("-N", "sleeper", "-l", "nodes=1:ppn=2,mem=100mb")
    wait_until(lambda: running(site, job))
    described = pbs.describe(job)
    assert (described.system, described.id, described.uid) == ("pbs", job, NOBODY)
    assert (described.name, described.queue, described.cpus) == ("sleeper", "main", 2)
    assert described.memory == 100 << 20
    assert described.hosts == ("n1",)
    assert (described.restarts, described.requeue) == (0, True)
    site.pbs("qdel", job)
    wait_until(lambda: not running(site, job))
    with pytest.raises(EncampError):
        pbs.describe(job)


def test_process_of_a_job_is_known_by_its_ancestors(site: Site, pbs: Pbs) -> None:
    job = site.submit()
    wait_until(lambda: running(site, job))
    wait_until(lambda: [pid for pid in site.slurm.members() if pbs.job_of(pid) == job])
    assert pbs.job_of(os.getpid()) is None
    site.pbs("qdel", job)


def test_job_that_is_given_back_is_queued_again_with_the_reason(site: Site, pbs: Pbs) -> None:
    job = site.submit()
    wait_until(lambda: running(site, job))
    described = pbs.describe(job)
    pbs.give_back(described, Task(), "the machine was lost", hold=True)

    def held() -> bool:
        standing = pbs.standing(job)
        return standing is not None and standing.held and standing.waits

    wait_until(held)
    standing = pbs.standing(job)
    assert standing is not None
    assert standing.state == "queued"
    assert "the machine was lost" in standing.reason
    site.pbs("qdel", job)


def test_host_is_closed_and_opened(pbs: Pbs) -> None:
    assert pbs.bait().state is BaitState.OPEN
    pbs.close("1 GiB of memory free, 2 GiB wanted")
    assert pbs.bait().state is BaitState.FULL
    assert pbs.bait().reason == "1 GiB of memory free, 2 GiB wanted"
    pbs.open()
    assert pbs.bait().state is BaitState.OPEN


def test_what_an_administrator_has_closed_stays_closed(site: Site, pbs: Pbs) -> None:
    site.slurm.run(["pbsnodes", "-o", "-N", "new disk", "n1"], variables=site.variables)
    assert pbs.bait().state is BaitState.CLOSED
    assert pbs.bait().reason == "new disk"
    pbs.open()
    pbs.close("full")
    assert pbs.bait().reason == "new disk"
    pbs.open_for_good()
    assert pbs.bait().state is BaitState.OPEN


def test_jobs_that_wait_are_counted_by_the_environment_they_want(site: Site, pbs: Pbs) -> None:
    site.slurm.run(["scontrol", "update", "NodeName=n1", "State=drain", "Reason=test"])
    jobs = [
        site.submit("-v", "ENCAMP_ENVIRONMENT=mini"),
        site.submit("-v", "ENCAMP_ENVIRONMENT=mini", "-t", "1-3"),
        site.submit(),
    ]
    assert {found.environment: found.jobs for found in pbs.waiting()} == {"": 1, "mini": 4}
    for job in jobs:
        site.pbs("qdel", job)
    site.slurm.run(["scontrol", "update", "NodeName=n1", "State=resume"])
    assert pbs.waiting() == ()


def test_a_name_that_pretends_to_be_more_is_not_believed(site: Site, pbs: Pbs) -> None:
    command = ["sbatch", "--parsable", "-J", "x\n\teuser = root(0)\n\tqueue = other", "job.sh"]
    job = site.slurm.run_as(NOBODY, NOBODY, command, directory=site.work).stdout.strip()
    wait_until(
        lambda: "JobState=RUNNING" in site.slurm.run(["scontrol", "show", "job", job]).stdout
    )
    with pytest.raises(EncampError) as caught:
        pbs.describe(job)
    assert caught.value.code is Code.PROTOCOL
    site.pbs("qdel", job)
