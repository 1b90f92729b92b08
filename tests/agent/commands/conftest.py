"""A package with plug-ins, installed as any other; and a host of the test's own."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from encamp.agent.commands.family import MARK
from encamp.home import Home
from tests.agent.commands.listening import Asker

ROOT = Path(__file__).parent.parent.parent.parent

GOOD = (
    "everything",
    "count",
    "talk",
    "flood",
    "refuse",
    "stumble",
    "fill",
    "boast",
    "lie",
    "vanish",
)
PLUGINS = {
    **{f"test.{name}": name for name in (*GOOD, "wait", "deaf", "copy")},
    "test.unannotated": "unannotated",
    "test.missing": "nothing_of_that_name",
    "test.leaving": "leave.at_once",
    "Test.Name": "count",
    "agent.ping": "count",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A directory that is on Python's path, with a distribution and its entry points in it."""
    information = tmp_path / "packages" / "plugins_of_others-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plugins-of-others\nVersion: 1.0\n"
    )
    entries = "".join(
        f"{name} = tests.agent.commands.plugins:{at}\n" for name, at in PLUGINS.items()
    )
    (information / "entry_points.txt").write_text(f"[encamp.commands]\n{entries}")
    return information.parent


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """The directory of the host's administrator."""
    made = tmp_path / "etc"
    made.mkdir()
    return made


@pytest.fixture
def host(
    tmp_path: Path, package: Path, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Home]:
    """The home of an agent; after the test, no process of its commands is left."""
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{ROOT}")
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(configuration))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(configuration))
    home = Home(tmp_path / "home").prepare()
    yield home
    reap()
    # One that has just told how its command ended is about to end.
    patience = time.monotonic() + 30
    while processes(home) and time.monotonic() < patience:
        time.sleep(0.02)
        reap()
    assert processes(home) == []


@pytest.fixture
def machine_home(
    site_home: Home,
    encamp_environment: dict[str, str],
    nothing_left: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Home]:
    """The suite's home of machines, with an agent of this test."""
    for name, value in encamp_environment.items():
        monkeypatch.setenv(name, value)
    yield site_home
    for name in ("commands", "claims"):
        shutil.rmtree(site_home.root / name, ignore_errors=True)


@pytest.fixture
def asker() -> Asker:
    return Asker()


def reap() -> None:
    """Children of agents that this process was."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def processes(home: Home) -> list[str]:
    """Processes of a home's commands that are still there."""
    found = []
    where = f"ENCAMP_HOME={home.root}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            variables = (
                (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            )
            if where in variables and any(v.startswith(MARK.encode()) for v in variables):
                found.append((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
    return found
