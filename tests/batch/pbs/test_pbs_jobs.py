"""Jobs that `qsub` takes run in machines, with a real agent on the node."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from encamp.batch.trial.site import Node
from encamp.batch.trial.slurm import SlurmTrial
from encamp.home import Home
from tests.batch.pbs.packages import Commands

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="a private Slurm needs root"),
]


class PbsTrial(SlurmTrial):
    """A private site whose users know nothing but PBS' commands."""

    system = "pbs"
    commands: Commands

    def bring_up(self, held: ExitStack) -> None:
        self.commands = Commands(self.directory / "usr")
        super().bring_up(held)

    def variables(self, host: Node) -> dict[str, str]:
        return {**super().variables(host), **self.commands.variables}

    def qsub(self, script: str, *words: str) -> str:
        """The output of a job, when it has ended."""
        (self.work / "job.sh").write_text(script)
        done = self.slurm.run_as(
            self.user.pw_uid,
            self.user.pw_gid,
            ["qsub", "-j", "oe", "-o", "output", *words, "job.sh", "one", "two"],
            directory=self.work,
            variables={**self.variables(self.front), "HOME": str(self.work)},
        )
        self.wait([done.stdout.strip()])
        return (self.work / "output").read_text()

    def exit_code(self, job: str) -> str:
        said = self.slurm.run(["scontrol", "show", "job", job]).stdout
        return str(said).partition("ExitCode=")[2].split()[0]


@pytest.mark.timeout(600)
def test_job_runs_in_a_machine_of_the_environment_it_names(site_home: Home) -> None:
    directory = Path(tempfile.mkdtemp(prefix="encamp-pbs-"))
    directory.chmod(0o755)
    script = "#!/bin/sh\n#PBS -N named\nuname -n\nid -u\npwd\necho $SLURM_JOB_NAME $@\nexit 7\n"
    try:
        with PbsTrial(directory / "site", images=site_home, nodes=1) as site:
            around = [str(site.user.pw_uid), str(site.work), "named one two"]
            inside = site.qsub(script, "-v", "ENCAMP_ENVIRONMENT=mini").splitlines()
            assert inside[0].startswith("mini-"), site.said()
            assert inside[1:] == around
            assert site.exit_code("1") == "7:0"
            assert site.qsub(script).splitlines() == ["n1", *around], "as ever"
            assert site.exit_code("2") == "7:0"
            asking = "#!/bin/sh\nqstat -f $SLURM_JOB_ID | grep -e job_state -e Job_Name\n"
            names = f"ENCAMP_ENVIRONMENT=mini,PERL5LIB={site.commands.variables['PERL5LIB']}"
            inside = site.qsub(asking, "-N", "asker", "-v", names).split()
            assert inside == ["Job_Name", "=", "asker", "job_state", "=", "R"]
            words, variables = site.as_user(["/bin/sh", "-c", "id -u; pwd; sbatch -W --wrap true"])
            said = subprocess.run(words, env=variables, capture_output=True, text=True, check=True)
            assert said.stdout.split()[:2] == around[:2], "a shell of the user's own"
            assert "Submitted batch job 4" in said.stdout
    finally:
        shutil.rmtree(directory)
