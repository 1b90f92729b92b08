"""Whatever a command's standard streams are: what it says arrives, or it is said why not."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from encamp.cli import main
from encamp.model.errors import Code
from tests.cli.driving import on_terminal
from tests.cli.sample_manager import Answering, answered
from tests.cli.sample_site import Site
from tests.conftest import ENCAMP

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Those by which a command finds a manager with a host that is called in no ASCII."""
    site = Site(time.time())
    site.hosts[0] = msgspec.structs.replace(site.hosts[0], groups=("größer",))
    with answered(tmp_path / "door.sock", Answering(site)):
        yield {
            **os.environ,
            "ENCAMP_DOOR": str(tmp_path / "door.sock"),
            "ENCAMP_SITE_CONFIG": str(tmp_path / "etc"),
        }


@pytest.fixture
def shell(variables: dict[str, str]) -> Run:
    def run(line: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", f"'{ENCAMP}' {line}"],
            env={**variables, **more},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_letters_that_cannot_be_written_are_spelled_out(shell: Run) -> None:
    done = shell("hosts", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xf6\\xdfer" in done.stdout


def test_json_is_json_whatever_can_be_written(shell: Run) -> None:
    done = shell("hosts --json", PYTHONIOENCODING="ascii")
    assert done.stdout.isascii()
    assert json.loads(done.stdout)[0]["groups"] == ["größer"]


@pytest.mark.parametrize("line", ["hosts", "events", "hosts --json"])
def test_reader_that_has_gone_is_no_failure(variables: dict[str, str], line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [ENCAMP, *line.split()],
            env=variables,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=100,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("line", ["hosts", "status", "hosts --json"])
def test_full_disk_is_told(shell: Run, line: str) -> None:
    done = shell(f"{line} > /dev/full")
    assert done.returncode == Code.DISK_FULL.value
    assert "could not be written: No space left on device" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_stream_that_is_closed_is_no_failure(shell: Run, closed: str) -> None:
    assert shell(f"hosts {closed}").returncode == 0
    assert shell(f"hosts nobody {closed}").returncode == Code.USAGE.value


def test_lists_on_a_tiny_terminal_can_be_read(variables: dict[str, str]) -> None:
    with on_terminal({**variables, "NO_COLOR": "1"}, "hosts", rows=5, columns=10) as terminal:
        terminal.wait_for(b"node01")
        terminal.wait_for(b"joined")


def test_what_may_not_be_used_is_named_and_nobody_speaks_of_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def use(name: str) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", "/home/of/another")

    monkeypatch.setattr(main, "application", use)
    monkeypatch.delenv("ENCAMP_DEBUG", raising=False)
    assert main.run_command(["ps"]) == Code.NOT_PERMITTED.value
    said = capsys.readouterr().err
    assert "You may not use /home/of/another: Permission denied." in said
    assert "ENCAMP_HOME" in said
