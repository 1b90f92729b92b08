"""One home for all tests against real machines: its images and templates serve every run of the
suite, and after each test nothing else may be left in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from encamp.describe.shipped import DEBIAN12, MINI
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.errors import EncampError
from tests.builds import Told, built_once, give_images, stock

ROOT = Path(__file__).parent.parent
ENCAMP = Path(sys.executable).with_name("encamp")

# The suite starts the command line thousands of times, which would compile itself each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# How large the terminal of whoever runs the suite is has nothing to do with what it tests.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Whoever runs the suite in the background has it ignore these, and all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)

Encamp = Callable[..., "subprocess.CompletedProcess[bytes]"]
"""Runs `encamp` with these words: `encamp("run", "--", "true", input=b"", check=False)`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """When tests are spread over processes, those that share what images are built from stay in one
    of them; so do the tests of each file, which may share a server. What takes longest comes first,
    so that nobody is left alone with it at the end."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            file = item.nodeid.partition("::")[0]
            group = "images" if file.startswith("tests/images/") else file
            item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        items.sort(key=_patience, reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a program said before it failed is part of an error, but not of its sentence."""
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    while error is not None:
        if isinstance(error, EncampError) and error.detail:
            report.sections.append((f"detail of: {error.sentence}", error.detail))
        error = error.__cause__
    return report


def _patience(item: pytest.Item) -> float:
    """Seconds that a test may take, if it says so."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests of one file that are spread would each start the servers that the file shares."""
    spread = hasattr(session.config, "workerinput") and session.items
    if spread and "@" not in session.items[0].nodeid.rpartition("::")[2]:
        raise pytest.UsageError("Spread tests with --dist=loadgroup, as 'make test' does.")


@pytest.fixture(scope="session")
def first_build() -> Told:
    """The progress of the session's first build of `mini`."""
    return Told()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, first_build: Told) -> Home:
    """A home where `mini` was built from nothing. For reading only."""

    def build(home: Home) -> None:
        ImageStore(home, shared=None).ensure(MINI, first_build)

    return built_once(tmp_path_factory, "built", first_build, build)


@pytest.fixture(scope="session")
def debian_build() -> Told:
    """The progress of the session's first build of `debian12`."""
    return Told()


@pytest.fixture(scope="session")
def debian_home(built: Home, debian_build: Told, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home where `debian12` was built, too. For reading only."""

    def build(home: Home) -> None:
        stock(home, built)
        ImageStore(home, shared=None).ensure(DEBIAN12, debian_build)

    return built_once(tmp_path_factory, "debian", debian_build, build)


@pytest.fixture(scope="session")
def site_home(request: pytest.FixtureRequest) -> Home:
    """The home of the suite's machines, where `mini` is ready to be cloned. Processes that share
    the work have one each: what others do there would look like something left behind."""
    chosen = Path(os.environ.get("ENCAMP_TEST_HOME", ROOT / ".cache" / "test-home"))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    home = Home(chosen.with_name(f"{chosen.name}{worker}")).prepare()
    images = ImageStore(home, shared=None)
    if images.find(MINI.name, MINI.digest()) is None:
        built: Home = request.getfixturevalue("built")
        stock(home, built)
        give_images(home, built)
    images.ensure(MINI)
    # Makes the template, so that no test sees it being made unless it wants to.
    environment = {**os.environ, "ENCAMP_HOME": str(home.root)}
    subprocess.run([ENCAMP, "run", "--", "true"], env=environment, check=True, timeout=120)
    return home


@pytest.fixture(scope="session")
def debian12(site_home: Home, request: pytest.FixtureRequest) -> str:
    """The name of the environment `debian12`, with its image in the home of the machines."""
    images = ImageStore(site_home, shared=None)
    if images.find(DEBIAN12.name, DEBIAN12.digest()) is None:
        give_images(site_home, request.getfixturevalue("debian_home"))
    images.ensure(DEBIAN12)
    return "debian12"


@pytest.fixture(scope="session")
def encamp_environment(site_home: Home) -> dict[str, str]:
    """The variables that make `encamp` work in the suite's home."""
    nowhere = str(site_home.root / "no-descriptions")
    return {
        "ENCAMP_HOME": str(site_home.root),
        "ENCAMP_DEBUG": "1",
        "ENCAMP_QUIET": "1",
        # What the host's site and user describe is not the suite's business.
        "ENCAMP_SITE_CONFIG": nowhere,
        "ENCAMP_USER_CONFIG": nowhere,
    }


@pytest.fixture
def encamp(encamp_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> Encamp:
    """Runs the command line in a directory of the test's own."""

    def run(
        *words: str | Path,
        input: bytes = b"",
        check: bool = True,
        timeout: float = 120,
        variables: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [ENCAMP, *words],
            input=input,
            capture_output=True,
            timeout=timeout,
            cwd=tmp_path,
            env={**os.environ, **encamp_environment, **(variables or {})},
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr.decode()}"
        return done

    return run


@pytest.fixture
def nothing_left(site_home: Home) -> Iterator[None]:
    """Fails the test after which a process, machine or half-done work is left in the home."""
    yield
    left = left_behind(site_home)
    # One test's leavings are not to fail the next.
    for pid in machine_processes(site_home):
        with suppress(ProcessLookupError):  # It has just ended.
            os.kill(pid, 9)
    for directory in site_home.machines.iterdir():
        shutil.rmtree(directory, ignore_errors=True)
    assert left == [], f"left behind: {left}"


def left_behind(home: Home) -> list[str]:
    """Everything in a home that belongs to a machine or to half-done work."""
    processes = [f"process {pid}" for pid in machine_processes(home) + share_servers(home)]
    machines = [f"machine {path.name}" for path in home.machines.iterdir()]
    kept = ("apt-", "kernels", "environments", "steps")
    work = [path.name for path in home.cache.iterdir() if not path.name.startswith(kept)]
    mounts = [
        line.split()[4]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.split()[4].startswith(f"{home.root}/")
    ]
    return processes + machines + work + mounts


def machine_processes(home: Home) -> list[int]:
    """Processes that work in one of the home's directories: machines, dying ones excepted."""
    return [pid for pid, serves in _at_work(home) if not serves]


def share_servers(home: Home) -> list[int]:
    """Those that serve the shares of such machines."""
    return [pid for pid, serves in _at_work(home) if serves]


def _at_work(home: Home) -> list[tuple[int, bool]]:
    """Each with whether it serves shares."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            where = (entry / "cwd").readlink()
            serves = b"/encamp-shares\0" in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if where.is_relative_to(home.root) and where != home.root:
            found.append((int(entry.name), serves))
    return found
