"""Jobs of a real Grid Engine that no environment is meant for run exactly as they would have."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from encamp.batch.gridengine import cell
from encamp.batch.gridengine.site import GridEngineSite
from tests.batch.gridengine.camping import PATIENCE, Person, a_person
from tests.batch.starter.double import SOURCES, Door

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces"),
]
MODES = ("posix_compliant", "unix_behavior", "script_from_stdin")

SHOW = """\
echo "$# [$1] [$2] $BASH_VERSION"
echo "name $0"
shopt login_shell
umask
ulimit -a
pwd
grep 'Sig[BCI]' /proc/self/status
ls /proc/self/fd
env | sort
head -c 10 | od -c; echo end
"""

JOBS: dict[str, list[str]] = {
    "script": ["show", "a b", ""],
    "shell": ["-S", "/bin/bash", "show", "x"],
    "command": ["-b", "y", "/bin/bash", "show", "$JOB_NAME", "a  b"],
    "no_shell": ["-b", "y", "-shell", "n", "/bin/bash", "show", "$JOB_NAME", "a  b"],
}

CASES = [
    case
    for case in itertools.product(MODES, JOBS)
    # Grid Engine has the shell read the command's own file, which makes sense to nobody.
    if case != ("script_from_stdin", "no_shell")
]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="encamp-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def person(place: Path) -> Iterator[Person]:
    (place / "people").mkdir()
    with a_person(place / "people") as person:
        (person.directory / "show").write_text(f"#!/bin/bash\n{SHOW}")
        (person.directory / "input").write_text("from input\n")
        yield person


@pytest.fixture(scope="module")
def site(place: Path) -> Iterator[GridEngineSite]:
    """With a queue for each way to start a job: as ever, and by the starter."""
    subprocess.run(["make", "-C", SOURCES], check=True, capture_output=True)
    with GridEngineSite(place / "site", hosts=1, slots=20) as site:
        starter = place / "encamp-starter-gridengine"
        shutil.copy(SOURCES.parent / "encamp-starter", starter)
        described = site.run(["qconf", "-sq", "main.q"]).stdout
        for mode, method in itertools.product(MODES, ("NONE", str(starter))):
            name = f"{mode}.{'plain' if method == 'NONE' else 'start'}"
            values = {"qname": name, "shell_start_mode": mode, "starter_method": method}
            values["shell"] = "/bin/bash"  # which can tell whether it is a login shell
            site.tell("-Aq", cell.with_values(described, values))
        yield site


@pytest.fixture(scope="module")
def door(site: GridEngineSite) -> Iterator[Door]:
    """That has an environment for nobody."""
    directory = Path(f"/proc/{site.execds['node1'].pid}/root/run/encamp")
    directory.mkdir(mode=0o755, exist_ok=True)
    door = Door(Path(), directory / "bait")
    door.open()

    def answer() -> None:
        with suppress(OSError):
            while True:
                with door.accept() as visit:
                    visit.answer(b"P")

    answering = threading.Thread(target=answer)
    answering.start()
    yield door
    door.close()
    answering.join()
    door.end()


def submit(site: GridEngineSite, person: Person, queue: str, words: list[str]) -> tuple[str, Path]:
    output = person.directory / f"out-{secrets.token_hex(4)}"
    options = ["-terse", "-N", "job", "-cwd", "-j", "y", "-o", str(output), "-i", "input"]
    done = site.run_as(person.name, ["qsub", *options, "-q", queue, *words])
    return done.stdout.strip(), output


def outcome(id: str, output: Path, queue: str) -> list[str]:
    """What a job has seen, but for what differs between any two jobs."""
    end = time.monotonic() + PATIENCE
    while not (output.exists() and output.read_text().endswith("end\n")):
        assert time.monotonic() < end, output.exists() and output.read_text()
        time.sleep(0.1)
    text = output.read_text().replace(output.name, "OUTPUT")
    text = re.sub(rf"(?m)(JOB_ID=|/){id}(\.1|$)", r"\1ID\2", text.replace(queue, "QUEUE"))
    added = re.compile(r"SGE_STARTER_|_=")
    return [line for line in text.splitlines() if not added.match(line)]


@pytest.mark.usefixtures("door")
def test_jobs_without_an_environment_see_no_difference(
    site: GridEngineSite, person: Person
) -> None:
    submitted = {}
    differing: list[str] = []
    for mode, job in CASES:
        for way in ("plain", "start"):
            queue = f"{mode}.{way}"
            submitted[mode, job, way] = (*submit(site, person, queue, JOBS[job]), queue)
    for mode, job in CASES:
        before = outcome(*submitted[mode, job, "plain"])
        after = outcome(*submitted[mode, job, "start"])
        assert any("SGE_TASK_ID=undefined" in line for line in before)
        if after != before:
            lines = difflib.unified_diff(before, after, n=0, lineterm="")
            differing += [f"{mode} {job}", *lines]
    assert not differing, "\n".join(differing)
