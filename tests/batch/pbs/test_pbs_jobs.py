"""Jobs that `qsub` takes run in machines, with a real agent on the node."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from encamp.batch.trial.site import Node
from encamp.batch.trial.slurm import SlurmTrial
from encamp.home import Home
from tests.batch.pbs.packages import Commands

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="a private Slurm needs root"),
    pytest.mark.timeout(600),
]

MINI = ("-v", "ENCAMP_ENVIRONMENT=mini")
PATIENCE = 120.0


class PbsTrial(SlurmTrial):
    """A private site whose users know nothing but PBS' commands."""

    system = "pbs"
    commands: Commands

    def bring_up(self, held: ExitStack) -> None:
        self.commands = Commands(self.directory / "usr")
        super().bring_up(held)

    def variables(self, host: Node) -> dict[str, str]:
        return {**super().variables(host), **self.commands.variables}

    def call(self, *words: str) -> str:
        """A command of the user's."""
        done = self.slurm.run_as(
            *(self.user.pw_uid, self.user.pw_gid, words),
            directory=self.work,
            variables={**self.variables(self.front), "HOME": str(self.work)},
        )
        return str(done.stdout).strip()

    def begin(self, script: str, *words: str) -> str:
        (self.work / "job.sh").write_text(script)
        return self.call("qsub", "-j", "oe", "-o", "output", *words, "job.sh", "one", "two")

    def qsub(self, script: str, *words: str) -> str:
        """The output of a job, when it has ended."""
        self.wait([self.begin(script, *words)])
        return (self.work / "output").read_text()

    def exit_code(self, job: str) -> str:
        said = self.slurm.run(["scontrol", "show", "job", job]).stdout
        return str(said).partition("ExitCode=")[2].split()[0]


@pytest.fixture(scope="module")
def site(site_home: Home) -> Iterator[PbsTrial]:
    directory = Path(tempfile.mkdtemp(prefix="encamp-pbs-"))
    directory.chmod(0o755)
    try:
        with PbsTrial(directory / "site", images=site_home, nodes=1) as made:
            yield made
    finally:
        shutil.rmtree(directory)


def wait_until(site: PbsTrial, true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, site.said()
        time.sleep(0.05)


def test_job_runs_in_a_machine_of_the_environment_it_names(site: PbsTrial) -> None:
    script = "#!/bin/sh\n#PBS -N named\nuname -n\nid -u\npwd\necho $SLURM_JOB_NAME $@\nexit 7\n"
    around = [str(site.user.pw_uid), str(site.work), "named one two"]
    inside = site.qsub(script, *MINI).splitlines()
    assert inside[0].startswith("mini-"), site.said()
    assert inside[1:] == around
    assert site.exit_code("1") == "7:0"
    assert site.qsub(script).splitlines() == ["n1", *around], "as ever"
    assert site.exit_code("2") == "7:0"


def test_job_asks_and_submits_from_its_machine_and_its_user_beside_it(site: PbsTrial) -> None:
    asking = "#!/bin/sh\nqstat -f $SLURM_JOB_ID | grep -e job_state -e Job_Name\n"
    names = f"ENCAMP_ENVIRONMENT=mini,PERL5LIB={site.commands.variables['PERL5LIB']}"
    inside = site.qsub(asking, "-N", "asker", "-v", names).split()
    assert inside == ["Job_Name", "=", "asker", "job_state", "=", "R"]
    words, variables = site.as_user(["/bin/sh", "-c", "id -u; pwd; sbatch -W --wrap true"])
    said = subprocess.run(words, env=variables, capture_output=True, text=True, check=True)
    assert said.stdout.split()[:2] == [str(site.user.pw_uid), str(site.work)], "a shell of its own"
    assert "Submitted batch job" in said.stdout


def machines(site: PbsTrial) -> list[psutil.Process]:
    return of_site(site, lambda each: each.name().startswith("qemu"))


def of_site(site: PbsTrial, wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    found = []
    for pid in site.slurm.members():
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if wanted(process):
                found.append(process)
    return found


@pytest.mark.parametrize("what", ["starter", "machine"])
def test_job_of_which_something_is_killed_runs_again(site: PbsTrial, what: str) -> None:
    story = site.work / f"story-{what}"
    count = "$SLURM_RESTART_COUNT"
    script = f"#!/bin/sh\necho run {count} >>{story}\n[ {count} ] || sleep 600\n"
    job = site.begin(script, *MINI)
    wait_until(site, story.exists)
    if what == "starter":
        is_it = lambda each: each.name() == "slurm_script" and "starter" in each.exe()  # noqa: E731
        [victim] = of_site(site, is_it)
    else:
        [victim] = machines(site)
    victim.kill()
    site.wait([job])
    assert story.read_text() == "run\nrun 1\n"
    assert site.exit_code(job) == "0:0"


def test_job_that_is_deleted_takes_its_machine_along(site: PbsTrial) -> None:
    begun = site.work / "begun"
    job = site.begin(f"#!/bin/sh\ntouch {begun}\nsleep 600\n", *MINI)
    wait_until(site, begun.exists)
    site.call("qdel", job)
    site.wait([job])
    wait_until(site, lambda: not machines(site))


def test_array_runs_in_machines_after_it_was_held(site: PbsTrial) -> None:
    said = site.work / "array"
    said.touch(mode=0o666)
    said.chmod(0o666)
    script = f"#!/bin/sh\necho $SLURM_ARRAY_TASK_ID $(uname -n) >>{said}\n"
    site.call("qrls", site.begin(script, *MINI, "-h", "-t", "1-2"))
    wait_until(site, lambda: said.read_text().count("\n") == 2)
    lines = sorted(said.read_text().split())
    assert lines[:2] == ["1", "2"]
    assert all(name.startswith("mini-") for name in lines[2:])
    assert len({*lines[2:]}) == 2
