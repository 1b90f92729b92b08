"""Slurm takes jobs for environments of which there is no node yet, as long as they are offered."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from encamp.batch.slurm.site import SlurmSite
from encamp.model.errors import Code
from tests.batch.enrol.conftest import Host, wait_until
from tests.batch.enrol.test_slurm_nodes import known, state, submit
from tests.conftest import ENCAMP
from tests.site.siting import root_only

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(300)]


def test_jobs_are_taken_before_there_is_a_node_for_them(
    slurm_host: Host, slurm: SlurmSite, site_directory: Path
) -> None:
    description = site_directory / "environments.yaml"
    before = description.read_text()

    def described(memory: str) -> None:
        text = f"{before}new-slurm: {{extends: tiny-slurm, memory: {memory}}}\n"
        description.write_text(text)

    described("256M")
    refused = slurm.run(["sbatch", "-C", "new-slurm", "--wrap", "true"], check=False)
    assert "Invalid feature" in refused.stderr
    # What is offered again may have changed; and a kernel keeps some of a machine's memory.
    for memory, offered in (("256M", 197), ("192M", 136)):
        described(memory)
        slurm_host.encamp("batch", "offer", "new-slurm")
        shown = slurm.run(["scontrol", "--future", "show", "nodes"]).stdout
        assert f" RealMemory={offered} " in shown
    job = submit(slurm, "hostname >/tmp/said", "-C", "new-slurm")
    assert state(slurm, job) == "PENDING"
    name = slurm_host.encamp("batch", "start", "new-slurm").strip()
    has = re.search(r" RealMemory=(\d+) ", slurm.run(["scontrol", "show", "node", name]).stdout)
    assert has is not None
    assert int(has[1]) >= offered
    wait_until(lambda: state(slurm, job) == "COMPLETED", "the job")
    assert slurm_host.encamp("exec", name, "--", "cat", "/tmp/said") == f"{name}\n"
    slurm_host.encamp("batch", "leave", name, "--wait")
    assert known(slurm) == []
    slurm_host.encamp("batch", "offer", "--withdraw", "new-slurm")
    shown = slurm.run(["scontrol", "--future", "show", "nodes"], check=False).stdout
    assert "encamp-offers" not in shown


def test_what_was_offered_of_an_environment_that_is_gone_is_told_and_withdrawn(
    slurm_host: Host, slurm: SlurmSite, site_directory: Path
) -> None:
    def offer(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ENCAMP, "batch", "offer", *words], capture_output=True, text=True)

    description = site_directory / "environments.yaml"
    before = description.read_text()
    description.write_text(f"{before}old-slurm: {{extends: tiny-slurm}}\n")
    assert offer("old-slurm", "tiny-slurm").stderr == ""
    assert offer().stdout == "old-slurm\ntiny-slurm\n"
    description.write_text(before)
    again = offer("tiny-slurm")
    assert (again.returncode, again.stdout) == (0, "")
    assert "'encamp batch offer --withdraw old-slurm' takes it back" in again.stderr
    gone = offer("--withdraw", "old-slurm", "tiny-slurm")
    assert (gone.returncode, gone.stdout, gone.stderr) == (0, "", "")
    assert offer().stdout == ""
    refused = offer("--withdraw", "old-slurm")
    assert refused.returncode == Code.INPUT_MISSING.value
    assert "'old-slurm' is not offered" in refused.stderr
    assert offer("--withdraw").returncode == Code.USAGE.value
    # Slurm knows the feature for as long as it has not read its configuration again.
    slurm.run(["scontrol", "reconfigure"])
    job = slurm.run(["sbatch", "-C", "old-slurm", "--wrap", "true"], check=False)
    assert "Invalid feature" in job.stderr


def test_environments_are_offered_where_jobs_come_by_commands_of_pbs(
    slurm_host: Host, slurm: SlurmSite, site_directory: Path
) -> None:
    settings = site_directory / "batch.yaml"
    settings.write_text(settings.read_text().replace("system: slurm", "system: pbs"))
    for words in (("tiny-slurm",), (), ("--withdraw", "tiny-slurm")):
        done = subprocess.run([ENCAMP, "batch", "offer", *words], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == ("" if words else "tiny-slurm\n")
    shown = slurm.run(["scontrol", "--future", "show", "nodes"], check=False).stdout
    assert "encamp-offers" not in shown
