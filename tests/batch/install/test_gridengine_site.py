"""`encamp batch install gridengine` on a real Grid Engine: what jobs become, and that nothing stays
of it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from encamp.batch.gridengine.cell import with_values
from encamp.batch.gridengine.site import GridEngineSite
from encamp.batch.install.gridengine import COMPLEXES, FORMER
from encamp.batch.install.objects import ask, attributes, complex_line
from encamp.model.errors import EncampError
from tests.batch.install.conftest import snapshot
from tests.conftest import ENCAMP

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="a private Grid Engine needs root"),
]

LOOKS = (("-sc",), ("-sconf",), ("-sq", "main.q"), ("-sh",), ("-ss",), ("-ssconf",))


class Site:
    """A private Grid Engine, and where Encamp's files go that are installed for it."""

    def __init__(self, gridengine: GridEngineSite, directory: Path) -> None:
        self.gridengine = gridengine
        self.directory = directory
        self.configuration = directory / "etc"
        self.prefix = directory / "lib"
        self.configuration.mkdir()

    def looks(self) -> list[object]:
        """Everything that could be changed."""
        said = [self.qconf(*words).stdout for words in LOOKS]
        return [*said, self.qconf("-scall", check=False).stdout, snapshot(self.directory)]

    def qconf(self, *words: str, check: bool = True) -> CompletedProcess[str]:
        return self.gridengine.run(["qconf", *words], check=check)

    def encamp(self, *words: str, check: bool = True) -> CompletedProcess[str]:
        variables = {"ENCAMP_SITE_CONFIG": str(self.configuration)}
        return self.gridengine.run([ENCAMP, "batch", *words], variables=variables, check=check)

    def install(self) -> str:
        done = self.encamp("install", "gridengine", f"--prefix={self.prefix}", "--yes")
        return done.stdout + done.stderr

    def variables_of(self, *words: str) -> str:
        """What a job is told by variables; it waits for ever and is taken out again."""
        command = ["qsub", "-terse", "-h", "-b", "y", *words, "/bin/true"]
        done = self.gridengine.run_as("nobody", command, directory="/tmp")
        number = done.stdout.split()[-1]
        try:
            said = self.gridengine.run(["qstat", "-j", number]).stdout
        finally:
            self.gridengine.run(["qdel", number])
        return next((line for line in said.splitlines() if line.startswith("env_list")), "")


@pytest.fixture(scope="module")
def gridengine() -> Iterator[GridEngineSite]:
    directory = Path(tempfile.mkdtemp(prefix="encamp-install-"))
    directory.chmod(0o755)
    try:
        with GridEngineSite(directory, hosts=2) as site:
            yield site
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def site(gridengine: GridEngineSite) -> Iterator[Site]:
    directory = Path(tempfile.mkdtemp(prefix="encamp-"))
    directory.chmod(0o755)
    made = Site(gridengine, directory)
    try:
        yield made
    finally:
        if any(made.configuration.glob("batch-installed/*")):  # The test has failed.
            made.encamp("uninstall", "--yes", "--forget", check=False)
        shutil.rmtree(directory)


def test_jobs_that_name_an_environment_get_the_variable_until_it_is_undone(site: Site) -> None:
    site.qconf("-ds", "node2")
    before = site.looks()
    site.install()
    queue = site.qconf("-sq", "main.q").stdout
    assert f"{site.prefix}/encamp-starter" in queue
    assert "node2" in site.qconf("-ss").stdout.split()
    assert "ENCAMP_ENVIRONMENT=mini" in site.variables_of("-l", "env=mini")
    assert "ENCAMP_ENVIRONMENT=mini" not in site.variables_of()
    command = ["qsub", "-h", "-l", "env=maxi", "-b", "y", "/bin/true"]
    refused = site.gridengine.run_as("nobody", command, directory="/tmp", check=False)
    assert "There is no environment 'maxi' here." in refused.stdout + refused.stderr
    assert site.install().startswith("Nothing to change")
    # Hosts that are closed at the time are opened, since nobody would do so afterwards.
    site.qconf("-mattr", "queue", "calendar", "encamp", "main.q@node1")
    site.qconf("-mattr", "exechost", "complex_values", "bait=full", "node2")
    installed = site.looks()
    assert "undo: " in site.encamp("uninstall", "--dry-run").stdout
    assert site.looks() == installed
    site.encamp("uninstall", "--yes")
    assert site.looks() == before
    assert "ENCAMP_ENVIRONMENT" not in site.variables_of()
    site.qconf("-as", "node2")


@pytest.mark.parametrize("there", ["", "root", "root/default/common"])
@pytest.mark.parametrize("place", ["near", "far" * 40])
def test_host_that_knows_no_master_is_told_so(tmp_path: Path, place: str, there: str) -> None:
    (tmp_path / place / there).mkdir(parents=True, exist_ok=True)
    with pytest.raises(EncampError, match="master does not answer") as raised:
        ask({"SGE_ROOT": str(tmp_path / place / "root"), "SGE_CELL": "default"}, "-sel")
    assert "SGE_ROOT and SGE_CELL say where" in raised.value.hint


def test_a_host_that_is_not_the_master_is_refused_unless_that_sees_the_script(site: Site) -> None:
    before = site.looks()
    node, front = site.gridengine.hosts[0], site.gridengine.master
    variables = {"ENCAMP_SITE_CONFIG": str(site.configuration)}
    install = ("batch", "install", "gridengine", f"--prefix={site.prefix}", "--yes")
    words: list[str | Path] = [ENCAMP, *install]
    refused = node.run(words, variables=variables, check=False)
    assert refused.returncode == 79
    assert f"not the master of Grid Engine, which is {front.name}" in refused.stderr
    assert site.looks() == before
    node.run([*words, "--shared"], variables=variables)
    assert "ENCAMP_ENVIRONMENT=mini" in site.variables_of("-l", "env=mini")
    site.encamp("uninstall", "--yes")
    assert site.looks() == before


def test_the_master_is_known_by_its_other_names_and_shadows_are_told(site: Site) -> None:
    common, own = site.gridengine.common, "act_qmaster"
    before = (common / own).read_text()
    (common / "shadow_masters").write_text(f"{before}node2\n")
    try:
        for name in (f"{before.strip()}.example.org", site.gridengine.master.address):
            with also_known(site, name):
                (common / own).write_text(f"{name}\n")
                said = site.install()
                site.encamp("uninstall", "--yes")
                assert "A shadow master that takes over" in said
    finally:
        (common / own).write_text(before)
        (common / "shadow_masters").unlink()


@contextmanager
def also_known(site: Site, name: str) -> Iterator[None]:
    """Under a name that others know the master by."""
    hosts = site.gridengine.directory / "hosts"
    before = hosts.read_text()
    hosts.write_text(f"{before}{site.gridengine.master.address} {name}\n")
    try:
        yield
    finally:
        hosts.write_text(before)


def test_environments_are_offered_on_hosts_with_lists_of_their_own_until_it_is_undone(
    site: Site,
) -> None:
    complexes = site.qconf("-sc").stdout
    site.gridengine.tell("-Mc", f"{complexes}gpu gpu INT <= YES YES 0 0\n")
    site.qconf("-rattr", "queue", "complex_values", "NONE,[node2=gpu=4]", "main.q")
    before = site.looks()
    try:
        site.install()
        offers = attributes(site.qconf("-sq", "main.q").stdout)["complex_values"]
        assert offers == "env=any,[node2=env=any,gpu=4]"
        assert "ENCAMP_ENVIRONMENT=mini" in site.variables_of("-l", "env=mini,gpu=1")
        chosen = site.gridengine.run(["qselect", "-l", "env=mini,gpu=1"]).stdout.split()
        assert chosen == ["main.q@node2"]
        site.encamp("uninstall", "--yes")
        assert site.looks() == before
    finally:
        site.qconf("-purge", "queue", "complex_values", "main.q@node2")
        site.gridengine.tell("-Mc", complexes)


def test_complex_as_it_was_described_before_is_brought_up_to_date(site: Site) -> None:
    """Also where hosts offer it."""
    complexes = site.qconf("-sc").stdout
    site.gridengine.tell("-Mc", f"{complexes}{FORMER[0]}\n")
    site.qconf("-rattr", "queue", "complex_values", "env=any", "main.q")
    before = site.looks()
    try:
        site.install()
        assert complex_line(site.qconf("-sc").stdout, "env") == COMPLEXES[0]
        assert "ENCAMP_ENVIRONMENT=mini" in site.variables_of("-w", "e", "-l", "env=mini")
        site.encamp("uninstall", "--yes")
        assert site.looks() == before
    finally:
        site.qconf("-rattr", "queue", "complex_values", "NONE", "main.q")
        site.gridengine.tell("-Mc", complexes)


def test_worker_nodes_and_their_queue_are_left_alone(site: Site) -> None:
    """They may be there when it is run once more, with other rules."""
    queue = site.gridengine.run(["qconf", "-sq"]).stdout
    values = {"qname": "encamp.q", "hostlist": "@encamp", "pe_list": "NONE"}
    site.gridengine.tell("-Ahgrp", "group_name @encamp\nhostlist node2\n")
    site.gridengine.tell("-Aq", with_values(queue, values))
    site.qconf("-ds", "node2")
    try:
        site.install()
        shown = attributes(site.gridengine.run(["qconf", "-sq", "encamp.q"]).stdout)
        assert (shown["starter_method"], shown["complex_values"]) == ("NONE", "NONE")
        assert "node2" not in site.gridengine.run(["qconf", "-ss"]).stdout.split()
        site.encamp("uninstall", "--yes")
    finally:
        site.qconf("-as", "node2")
        site.qconf("-dq", "encamp.q")
        site.qconf("-dhgrp", "@encamp")


def test_rules_give_jobs_an_environment(site: Site) -> None:
    settings = site.configuration / "batch.yaml"
    settings.write_text(
        "system: gridengine\nrules: [{user: nobody, environment: mini}]\nenvironments: [mini]\n"
    )
    site.install()
    assert "ENCAMP_ENVIRONMENT=mini" in site.variables_of()
    command = ["qsub", "-h", "-l", "env=maxi", "-b", "y", "/bin/true"]
    refused = site.gridengine.run_as("nobody", command, directory="/tmp", check=False)
    assert refused.returncode != 0
    assert "maxi" in refused.stdout + refused.stderr
    site.encamp("uninstall", "--yes")


def test_users_go_on_changing_jobs_that_wait(site: Site) -> None:
    """With a verifier, Grid Engine forbids most of that of its own accord."""
    site.install()
    command = ["qsub", "-terse", "-h", "-b", "y", "/bin/true"]
    number = site.gridengine.run_as("nobody", command, directory="/tmp").stdout.strip()

    def refused(*words: str) -> str:
        alter = ["qalter", *words, number]
        done = site.gridengine.run_as("nobody", alter, directory="/tmp", check=False)
        return done.stdout + done.stderr if done.returncode else ""

    for words in (
        *(("-a", "203001010000"), ("-ac", "x=1"), ("-A", "mine"), ("-m", "e"), ("-p", "-5")),
        *(("-hold_jid", number), ("-r", "y"), ("-R", "y"), ("-S", "/bin/bash"), ("-wd", "/tmp")),
        *(("-h", "U"), ("-N", "name"), ("-dl", "203001010000"), ("-soft", "-q", "main.q")),
    ):
        assert "jsv_allowed_mod" not in refused(*words), words
    for words in (("-l", "env=mini"), ("-v", "X=1"), ("-q", "main.q"), ("-P", "x")):
        assert "jsv_allowed_mod" in refused(*words), words
    site.gridengine.run(["qdel", number])
    site.encamp("uninstall", "--yes")


CUT_SHORT = """
import os, signal, sys
from encamp.batch.install import planning, recording

def tell(change):
    if change.key.startswith("object configuration"):
        os.kill(os.getpid(), signal.SIGKILL)

plan = planning.plan(planning.Asked(system="gridengine", prefix=sys.argv[1]))
recording.install(plan, tell)
"""


def test_an_installation_that_was_killed_is_undone(site: Site) -> None:
    before = site.looks()
    done = site.gridengine.run(
        [sys.executable, "-c", CUT_SHORT, site.prefix],
        variables={"ENCAMP_SITE_CONFIG": str(site.configuration)},
        check=False,
    )
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    assert "RESTRING" in site.qconf("-sc").stdout.partition("\nenv ")[2], "half of it is done"
    site.encamp("uninstall", "--yes")
    assert site.looks() == before


def test_a_queue_that_others_have_changed_since_is_left_and_told(site: Site) -> None:
    site.install()
    site.qconf("-rattr", "queue", "starter_method", "/opt/theirs", "main.q")
    done = site.encamp("uninstall", "--yes", check=False)
    assert done.returncode == 79
    assert "starter_method of Grid Engine's queue 'main.q'" in done.stderr
    assert "/opt/theirs" in site.qconf("-sq", "main.q").stdout
    site.qconf("-rattr", "queue", "starter_method", "NONE", "main.q")
    site.encamp("uninstall", "--yes")
    assert not any(site.configuration.iterdir()), "nothing is known of it any more"
