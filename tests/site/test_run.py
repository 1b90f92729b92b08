"""`encamp run` as a user types it, in real machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Encamp

pytestmark = pytest.mark.site


def test_output_and_exit_code_are_the_commands_own(encamp: Encamp) -> None:
    done = encamp("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_every_phase_is_timed(encamp: Encamp) -> None:
    done = encamp("run", "--json", "--", "true")
    outcome = json.loads(done.stderr.splitlines()[-1])
    assert [phase["phase"] for phase in outcome["phases"]] == [
        "check",
        "start",
        "activation",
        "input",
        "command",
        "output",
        "end",
    ]
    assert outcome["exit_code"] == 0


def test_files_go_in_and_come_out(encamp: Encamp, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("hello")
    encamp("run", "--in", "word", "--out", "answer", "--", "sh", "-c", "tr a-z A-Z <word >answer")
    assert (tmp_path / "answer").read_text() == "HELLO"
