"""A private site runs jobs of an ordinary user, says which cannot be run, and leaves nothing, not
even if whoever has opened it is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from encamp.batch.trial.gridengine import GridEngineTrial
from encamp.batch.trial.site import Trial
from encamp.batch.trial.slurm import SlurmTrial
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from tests.conftest import ENCAMP
from tests.site.siting import root_only

pytestmark = [pytest.mark.site, pytest.mark.timeout(300), root_only]

PATIENCE = 90.0
KINDS = [SlurmTrial, GridEngineTrial]

OPENED = """
import sys, time
from pathlib import Path
from {module} import {kind}
from encamp.home import Home

with {kind}(Path(sys.argv[1]), images=Home(Path(sys.argv[2])), nodes=1) as site:
    job = site.submit("mini", ["sleep", "600"])
    while not list(site.home(site.hosts[0]).owners.glob("*/machines/*")):
        time.sleep(0.1)
    print("ready", flush=True)
    time.sleep(600)
"""


@contextmanager
def private_place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="encamp-trial-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "site"


@pytest.fixture
def place() -> Iterator[Path]:
    with private_place() as made:
        yield made


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest, site_home: Home) -> Iterator[Trial]:
    """One for all that is tried as its user."""
    with private_place() as place:
        with request.param(place, images=site_home, nodes=1) as site:
            yield site
        assert not place.exists()


def typed(site: Trial, line: str) -> str:
    """What the site's user is told who types this line at its shell."""
    words, variables = site.as_user(["/bin/bash", "--norc", "-c", line])
    done = subprocess.run(
        words, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.stdout + done.stderr


def test_jobs_run(site: Trial) -> None:
    machine, host = (site.submit(name, ["uname", "-n"]) for name in ("mini", None))
    left: list[int] = []
    site.wait([machine, host], on_left=left.append)
    assert site.output(machine).read_text().startswith("mini-")
    assert site.output(host).read_text() == f"{site.hosts[0].name}\n"
    assert left


def test_its_user_finds_encamp_and_a_manager_that_answers(site: Trial) -> None:
    job = site.submit("mini", ["true"])
    site.wait([job])
    name = site.hosts[0].name
    assert "Usage" in typed(site, "encamp --help")
    assert re.search(
        rf"{site.system}:{job} .*mini .*done", typed(site, "encamp jobs --batch --all")
    )
    assert "it ended in machine" in typed(site, f"encamp why {site.system}:{job}")
    status = typed(site, "encamp batch status")
    assert "open: jobs may come" in status
    assert "an agent answers" in status
    assert name in typed(site, "encamp hosts")
    assert name in typed(site, "encamp top --once")
    assert typed(site, "encamp run -- uname -n").startswith("mini-")


def test_its_user_is_told_why_a_job_waits(site: Trial) -> None:
    commands = {
        "slurm": "sbatch --parsable --hold --comment env:mini --wrap true",
        "gridengine": "echo true | qsub -terse -h -cwd -S /bin/sh -l env=mini",
    }
    job = typed(site, commands[site.system]).strip()
    told = typed(site, f"encamp why {site.system}:{job}")
    assert "held" in told
    assert "the batch system says" in told
    typed(site, f"{'scancel' if site.system == 'slurm' else 'qdel'} {job}")


def test_its_user_is_told_where_its_files_are_and_what_to_try(site: Trial) -> None:
    site.wait([site.submit("mini", ["true"])])
    for line in site.tries:
        done = f"{line.command} &>/dev/null && echo done"
        # What Grid Engine writes down of a job is there after a second.
        wait_for(partial(typed, site, done))
    for path in site.files:
        assert typed(site, f"test -s {path} || test {path.name} = environments.yaml") == ""
        assert typed(site, f"cat {path} >/dev/null") == ""


def test_interactive_jobs_and_steps_are_in_machines(site: Trial) -> None:
    if site.system == "gridengine":
        assert typed(site, "qrsh -cwd -l env=mini uname -n").startswith("mini-")
        return
    assert typed(site, "srun --vmenv=mini uname -n").startswith("mini-")
    assert typed(site, "srun --comment env:mini uname -n").startswith("mini-")
    waited = "sbatch --vmenv=mini -W -o step.out --wrap 'srun uname -n' && cat step.out"
    assert re.search(r"^mini-", typed(site, waited), re.MULTILINE)


def test_batch_systems_own_accounting_tells_of_jobs_in_machines(site: Trial) -> None:
    job = site.submit("mini", ["sh", "-c", "exit 7"])
    site.wait([job])
    asked, told = {
        "slurm": (f"sacct -X -n -P -j {job} -o User,State,ExitCode", r"\|FAILED\|7:0$"),
        "gridengine": (f"qacct -j {job}", r"^exit_status +7\b"),
    }[site.system]
    # Neither has it the moment the job ends.
    wait_for(lambda: re.search(told, typed(site, asked), re.MULTILINE))


def test_environment_that_nobody_describes_is_refused_at_once(site: Trial) -> None:
    with pytest.raises(EncampError) as raised:
        site.submit("nosuch", ["true"])
    assert "There is no environment 'nosuch'" in f"{raised.value.hint}{raised.value.detail}"


def test_jobs_that_cannot_be_run_are_told(site: Trial) -> None:
    """Which environments there are is not known here when jobs are submitted."""
    descriptions = site.settings / "environments.yaml"
    text = descriptions.read_text()
    descriptions.unlink()
    try:
        held = site.submit("nosuch", ["true"])
        with pytest.raises(EncampError, match=rf"holds 1 of the jobs.*: {held}\.") as raised:
            site.wait([held])
        assert "There is no environment 'nosuch'" in raised.value.detail
    finally:
        descriptions.write_text(text)


def processes_in(place: Path) -> list[str]:
    """Command lines of those that work there, or see it as a file system of their own."""
    found = []
    for directory in Path("/proc").iterdir():
        with suppress(OSError):
            if directory.name.isdecimal() and (
                os.fsencode(place) in (directory / "cmdline").read_bytes()
                or (directory / "cwd").readlink().is_relative_to(place)
            ):
                found.append((directory / "cmdline").read_text().replace("\0", " "))
    return found


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_a_site_whose_opener_is_killed(
    kind: type[Trial], place: Path, site_home: Home
) -> None:
    script = OPENED.format(module=kind.__module__, kind=kind.__name__)
    words = [sys.executable, "-c", script, str(place), str(site_home.root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as opener:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
        assert len(processes_in(place)) > 3
        opener.send_signal(signal.SIGKILL)
    wait_for(lambda: not place.exists())
    wait_for(lambda: not processes_in(place))


def test_site_is_taken_down_by_a_signal(place: Path, site_home: Home) -> None:
    place.mkdir()
    variables = os.environ | {"ENCAMP_HOME": str(site_home.root), "TMPDIR": str(place)}
    words = [str(ENCAMP), "batch", "try", "slurm", "--jobs", "1", "--shell"]
    with subprocess.Popen(
        words, env=variables, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as trying:
        assert trying.stderr is not None
        said = next((line for line in trying.stderr if "private site" in line), "")
        assert said
        trying.terminate()
        assert trying.wait(PATIENCE) == 128 + signal.SIGTERM
    assert list(place.iterdir()) == []
    wait_for(lambda: not processes_in(place))


def test_place_that_others_cannot_read_is_told_before_anything_is_begun(
    place: Path, site_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = place.with_name("closed")
    closed.mkdir(mode=0o700)
    (closed / "probe").touch()
    monkeypatch.setattr("encamp.own_files.PROBE", closed / "probe")
    with pytest.raises(EncampError, match="where nobody cannot read it") as raised:
        SlurmTrial(place, images=site_home)
    assert raised.value.code is Code.CONFIGURATION
    closed.chmod(0o711)
    SlurmTrial(place, images=site_home)
