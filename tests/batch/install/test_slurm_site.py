"""`encamp batch install slurm` on a real Slurm: what jobs become, and that nothing stays of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from encamp.batch.slurm.site import SlurmSite
from tests.batch.install.conftest import Entry, snapshot
from tests.conftest import ENCAMP

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="a private Slurm needs root"),
]

NOBODY = 65534
PATIENCE = 60.0
OWN_SCRIPT = """\
function slurm_job_submit(job, partitions, uid)
   if job.name == "forbidden" then
      slurm.log_user("The site forbids this name.")
      return slurm.ERROR
   end
   return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


class Site:
    """A private Slurm, and where Encamp's files go that are installed for it."""

    def __init__(self, slurm: SlurmSite, directory: Path) -> None:
        self.slurm = slurm
        self.etc = slurm.conf.parent
        self.configuration = directory / "etc"
        self.prefix = directory / "lib"
        self.configuration.mkdir()

    def snapshot(self) -> dict[str, Entry]:
        return snapshot(self.etc, self.configuration.parent)

    def encamp(self, *words: str, check: bool = True) -> CompletedProcess[str]:
        variables = {"ENCAMP_SITE_CONFIG": str(self.configuration)}
        return self.slurm.run([ENCAMP, "batch", *words], variables=variables, check=check)

    def install(self, *words: str, system: str = "slurm") -> str:
        prefix = f"--prefix={self.prefix}"
        done = self.encamp("install", system, prefix, "--yes", *words)
        self.take_over()
        return done.stdout + done.stderr

    def uninstall(self) -> None:
        self.encamp("uninstall", "--yes")
        self.take_over()

    def take_over(self) -> None:
        """What an administrator is told to do."""
        wanted = "lua" in self.slurm.conf.read_text().partition("JobSubmitPlugins=")[2]
        self.slurm.reconfigure()

        def taken() -> bool:
            said = self.slurm.run(["scontrol", "show", "config"]).stdout
            line = next(each for each in said.splitlines() if each.startswith("JobSubmitPlugins"))
            return ("lua" in line) is wanted

        wait_until(taken)

    def submitted(self, *words: str) -> str:
        """The script of a job as Slurm keeps it; the job waits for ever and is taken out again."""
        done = self.submit(*words)
        assert done.returncode == 0, done.stderr
        number = done.stdout.strip()
        try:
            return self.slurm.run(["scontrol", "write", "batch_script", number, "-"]).stdout
        finally:
            self.slurm.run(["scancel", number])

    def submit(self, *words: str) -> CompletedProcess[str]:
        command = ["sbatch", "--parsable", "--hold", *words]
        return self.slurm.run_as(
            NOBODY,
            NOBODY,
            command,
            input="#!/bin/sh\nexit 7\n",
            directory=Path("/tmp"),
            check=False,
        )


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmSite]:
    directory = Path(tempfile.mkdtemp(prefix="encamp-install-"))
    directory.chmod(0o755)
    try:
        with SlurmSite(directory / "slurm", nodes=1) as site:
            yield site
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def site(slurm: SlurmSite) -> Iterator[Site]:
    directory = Path(tempfile.mkdtemp(prefix="encamp-"))
    directory.chmod(0o755)
    before = snapshot(slurm.conf.parent)
    made = Site(slurm, directory)
    try:
        yield made
    finally:
        left = snapshot(slurm.conf.parent)
        if any(made.configuration.glob("batch-installed/*")):  # The test has failed.
            made.encamp("uninstall", "--yes", "--forget", check=False)
        shutil.rmtree(directory)
    assert left == before, "a test leaves the site as it was"


PLAIN = "#!/bin/sh\nexit 7\n"


def test_jobs_that_name_an_environment_get_the_starter_until_it_is_undone(site: Site) -> None:
    before = site.snapshot()
    assert site.submitted("--comment=env:mini") == PLAIN
    said = site.install()
    assert "+JobSubmitPlugins=lua" in said
    assert f"SLURM_CONF={site.slurm.conf} scontrol reconfigure" in said
    starter = site.prefix / "encamp-starter"
    assert os.access(starter, os.X_OK)
    assert site.submitted("--comment=env:mini") == f"#!{starter} slurm:mini\n{PLAIN}"
    assert site.submitted() == PLAIN, "a job that names none is left alone"
    assert (
        "There is no environment 'maxi' on this site." in site.submit("--comment=env:maxi").stderr
    )
    site.uninstall()
    assert site.submitted("--comment=env:mini") == PLAIN
    assert site.snapshot() == before


def test_a_rule_that_is_added_later_takes_effect_with_the_next_installation(site: Site) -> None:
    site.install()
    assert site.submitted() == PLAIN
    settings = site.configuration / "batch.yaml"
    settings.write_text(settings.read_text() + "\nrules: [{queue: main, environment: mini}]\n")
    said = site.encamp("install", "slurm", f"--prefix={site.prefix}", "--yes").stdout
    assert '+      { environment = "mini", queue = "main" },' in said
    assert site.submitted().startswith(f"#!{site.prefix}/encamp-starter slurm:mini\n")
    assert site.submitted("--comment=env:none") == PLAIN
    site.uninstall()
    assert "rules" in settings.read_text(), "what an administrator has written stays"


def test_environments_that_are_not_listed_are_refused_when_a_job_is_submitted(site: Site) -> None:
    settings = site.configuration / "batch.yaml"
    settings.write_text(
        f"system: slurm\nenvironments: [mini]\nprograms: {{conf: {site.slurm.conf}}}\n"
    )
    site.install()
    refused = site.submit("--comment=env:maxi")
    assert refused.returncode != 0
    assert "There is no environment 'maxi' on this site." in refused.stderr
    assert site.submitted("--comment=env:mini").startswith("#!")
    site.uninstall()
    assert settings.exists(), "what was there before stays"


def test_environments_that_are_described_later_are_known_at_once(site: Site) -> None:
    site.install()
    described = site.configuration / "environments.yaml"
    assert site.submit("--comment=env:maxi").returncode != 0
    described.write_text("maxi: {extends: mini}\n")
    assert site.submitted("--comment=env:maxi").startswith("#!")
    described.unlink()
    assert site.submitted("--comment=env:micro").startswith("#!"), "nobody knows here"
    described.write_text("maxi: {extends: mini}\n")
    site.uninstall()
    assert described.exists(), "what an administrator has written stays"


@pytest.mark.parametrize("place", ["", "../run/submit.lua"], ids=["a file", "a link"])
def test_a_sites_own_script_goes_on_being_called(site: Site, place: str) -> None:
    conf = site.slurm.conf.read_bytes()
    own = site.etc / "job_submit.lua"
    if place:
        own.symlink_to(place)
    own.write_text(OWN_SCRIPT)
    later = time.time() + 10
    os.utime(own, (later, later))  # than what was there before: Slurm reads only what is newer
    site.slurm.conf.write_bytes(conf + b"JobSubmitPlugins=lua\n")
    site.take_over()
    before = site.snapshot()
    assert "The site forbids this name." in site.submit("--job-name=forbidden").stderr
    site.install()
    assert "The site forbids this name." in site.submit("--job-name=forbidden").stderr
    assert site.submitted("--comment=env:mini").startswith("#!")
    assert (site.etc / "job_submit_site.lua").read_text() == OWN_SCRIPT
    site.uninstall()
    assert site.snapshot() == before
    assert own.read_text() == OWN_SCRIPT
    assert "The site forbids this name." in site.submit("--job-name=forbidden").stderr
    assert site.submitted("--comment=env:mini") == PLAIN
    own.resolve().unlink()
    own.unlink(missing_ok=True)
    site.slurm.conf.write_bytes(conf)
    site.take_over()


def test_a_configuration_that_is_a_link_is_set_up_where_slurm_looks(site: Site) -> None:
    real = site.slurm.directory / "run" / "slurm.conf"
    site.slurm.conf.rename(real)
    site.slurm.conf.symlink_to(real)
    before = site.snapshot()
    site.install()
    assert site.submitted("--comment=env:mini").startswith(f"#!{site.prefix}/encamp-starter ")
    site.uninstall()
    assert site.snapshot() == before
    real.replace(site.slurm.conf)


def test_plugins_of_the_site_and_what_it_notes_beside_them_stay(site: Site) -> None:
    conf = site.slurm.conf.read_bytes()
    lines = b"# of the site \\\nJobSubmitPlugins=all_partitions,\\\nrequire_timelimit  # ask Bob\n"
    site.slurm.conf.write_bytes(conf + lines)
    before = site.snapshot()
    site.install()
    said = site.slurm.run(["scontrol", "show", "config"]).stdout
    assert "= all_partitions,require_timelimit,lua\n" in said
    assert b"require_timelimit,lua  # ask Bob\n" in site.slurm.conf.read_bytes()
    assert site.submitted("--time=1", "--comment=env:mini").startswith("#!")
    site.uninstall()
    assert site.snapshot() == before
    site.slurm.conf.write_bytes(conf)
    site.take_over()


def test_nothing_is_changed_by_a_dry_run_or_without_an_answer(site: Site) -> None:
    before = site.snapshot()
    prefix = f"--prefix={site.prefix}"
    shown = json.loads(site.encamp("install", "slurm", prefix, "--dry-run", "--json").stdout)
    assert f"line in {site.slurm.conf}" in [change["what"] for change in shown["changes"]]
    refused = site.encamp("install", "slurm", prefix, check=False)
    assert refused.returncode == 64
    assert "Nobody is there to be asked, and nothing was changed." in refused.stderr
    assert site.snapshot() == before


def test_a_node_gets_only_what_it_needs(site: Site) -> None:
    before = site.snapshot()
    site.encamp("install", "slurm", f"--prefix={site.prefix}", "--node", "--yes")
    assert {path for path in site.snapshot() if path not in before} == {
        str(site.prefix),
        f"{site.prefix}/encamp-starter",
        f"{site.configuration}/batch.yaml",
        f"{site.configuration}/batch-installed",
        f"{site.configuration}/batch-installed/slurm.json",
    }
    site.encamp("uninstall", "--yes")
    assert site.snapshot() == before


def test_an_administrator_closes_and_opens_a_host(site: Site) -> None:
    settings = site.configuration / "batch.yaml"
    settings.write_text(f"system: slurm\nprograms: {{conf: {site.slurm.conf}}}\n")
    variables = {
        "ENCAMP_SITE_CONFIG": str(site.configuration),
        "ENCAMP_HOME": str(site.prefix),
    }

    def encamp(*words: str) -> str:
        node = site.slurm.nodes[0]
        return node.run([ENCAMP, "batch", *words], variables=variables).stdout

    assert json.loads(encamp("status", "--json"))["state"] == "open"
    encamp("close", "a", "new", "disk")
    standing = json.loads(encamp("status", "--json"))
    assert (standing["state"], standing["reason"]) == ("closed", "a new disk")
    assert "drain" in site.slurm.nodes[0].state()
    encamp("open")
    assert "open: jobs may come" in encamp("status")
    assert "drain" not in site.slurm.nodes[0].state()


def test_the_option_of_the_plugin_is_there_until_it_is_undone(site: Site) -> None:
    before = site.snapshot()
    site.install("--spank")
    assert "--vmenv" in site.slurm.run(["sbatch", "--help"]).stdout
    script = site.submitted("--vmenv=mini")
    assert script == f"#!{site.prefix}/encamp-starter slurm:mini\n{PLAIN}"
    assert site.submitted("--vmenv=mini", "--comment=env:mini") == script
    assert site.submitted("--vmenv=none") == PLAIN
    refused = site.submit("--vmenv=mini", "--comment=env:debian12")
    assert (refused.returncode, "names two environments" in refused.stderr) == (1, True)
    assert site.encamp("install", "slurm", f"--prefix={site.prefix}", "--spank").stdout.startswith(
        "Nothing to change"
    )
    # Who installs again, after a change of rules, need not name it.
    assert site.encamp("install", "slurm", f"--prefix={site.prefix}").stdout.startswith(
        "Nothing to change"
    )
    site.uninstall()
    assert "--vmenv" not in site.slurm.run(["sbatch", "--help"]).stdout
    assert site.snapshot() == before
