"""Every console example of the documents does what the document shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console_examples import read_examples, results, script

ROOT = Path(__file__).parent.parent
DOCUMENTS = {
    path.name: path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if read_examples(path.read_text())
}


@pytest.mark.site
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in DOCUMENTS]
)
def test_examples_do_what_the_document_shows(
    name: str,
    tmp_path: Path,
    encamp_environment: dict[str, str],
    request: pytest.FixtureRequest,
) -> None:
    commands = read_examples(DOCUMENTS[name].read_text())
    if any("debian12" in command.text for command in commands):
        # Here as everywhere else, it is built once.
        request.getfixturevalue("debian12")
    environment = {**os.environ, **encamp_environment}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script(commands)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=880,
        check=False,
    )
    outcomes = results(done.stdout)
    assert len(outcomes) == len(commands), f"{name}: the shell ended early\n{done.stdout}"
    following = [command.text for command in commands[1:]] + [""]
    for command, (printed, code), next_text in zip(commands, outcomes, following, strict=True):
        where = f"{name}, line {command.line}: {command.text}"
        assert command.matches(printed), f"{where}\nprinted:\n{printed}"
        if next_text != "echo $?":
            assert code == 0, f"{where}\nended with exit code {code}:\n{printed}"
