"""A bait is open as long as its agent runs: without a site, and before its bus answers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from encamp.agent.bait import serving
from encamp.agent.bait.serving import Serving
from encamp.agent.commands.supervising import Commands
from encamp.agent.daemon import Agent
from encamp.agent.properties.finding import Plugins
from encamp.batch.system import BatchSystem
from encamp.home import Home
from encamp.model.batch import BatchSettings
from tests.agent.bait.hosting import PATIENCE, Host, Person
from tests.agent.bait.pretended import Pretended
from tests.conftest import ENCAMP
from tests.site.siting import free_port, root_only

pytestmark = pytest.mark.site


def test_bait_works_though_the_bus_does_not_answer(host: Host, alice: Person) -> None:
    host.stop_agent()
    site = host.configuration / "site.yaml"
    site.write_text(f"bus: [nats://127.0.0.1:{free_port()}]\n")
    try:
        host.start_agent("--name", "node1")
        assert host.run(alice, "/bin/sh", "-c", "exit 3").returncode == 3
    finally:
        host.stop_agent()
        site.unlink()
        host.start_agent()


def test_environment_that_is_not_offered_to_jobs_is_refused(host: Host, alice: Person) -> None:
    host.stop_agent()
    host.describe("environments: [mini, patient]\n")
    try:
        host.start_agent()
        done = host.run(alice, "/bin/true", environment="again")
        assert (done.returncode, b"mini, patient" in done.stderr) == (77, True)
        assert host.run(alice, "/bin/true").returncode == 0
    finally:
        host.stop_agent()
        host.describe()
        host.start_agent()


def test_settings_are_read_anew_for_jobs_that_come_afterwards(host: Host, alice: Person) -> None:
    host.describe()
    early = host.start(alice, "/bin/sh", "-c", "echo up; read line; exit 5", stdin=-1)
    assert early.process.stdout is not None
    assert early.process.stdout.readline() == b"up\n"
    try:
        reloaded(host, "environments: [patient]\n", "has read its settings")
        assert host.run(alice, "/bin/true").returncode == 77
        assert not (host.notes / "closed").exists()
        reloaded(host, "environments: [mini]\nmachines: 1\n", "has read its settings")
        # One is there already.
        host.wait_for("a closed bait", lambda: (host.notes / "closed").exists())
        reloaded(host, "", "has read its settings")
        host.wait_for("an open bait", lambda: not (host.notes / "closed").exists())
        early.process.communicate(b"go\n", timeout=PATIENCE)
        assert early.process.returncode == 5
    finally:
        restarted(host)


def test_mistake_in_new_settings_leaves_the_old_ones_in_force(host: Host, alice: Person) -> None:
    try:
        reloaded(host, "environments: [patient]\n", "has read its settings")
        reloaded(host, "trise: 4\n", "goes on as before")
        assert host.run(alice, "/bin/true").returncode == 77
        reloaded(host, "", "has read its settings")
        assert host.run(alice, "/bin/true").returncode == 0
    finally:
        restarted(host)


def test_bait_goes_and_comes_with_its_settings(host: Host, alice: Person) -> None:
    job = host.start(alice, "/bin/sh", "-c", "echo up; read line; exit 5", stdin=-1)
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == b"up\n"
    try:
        (host.configuration / "batch.yaml").unlink()
        hung_up(host, "no batch system to work with any more")
        assert (host.notes / "closed").exists()
        assert not host.is_open()
        # Of what runs, the end is seen nevertheless.
        job.process.communicate(b"go\n", timeout=PATIENCE)
        assert job.process.returncode == 5
        host.nothing_left()
        reloaded(host, "", "is open at")
        host.wait_for("an open bait", lambda: not (host.notes / "closed").exists())
        assert host.run(alice, "/bin/sh", "-c", "exit 3").returncode == 3
    finally:
        restarted(host)


def reloaded(host: Host, settings: str, sentence: str) -> None:
    host.describe(settings)
    hung_up(host, sentence)


def hung_up(host: Host, sentence: str) -> None:
    """It has read its files anew, and says so."""
    assert host.agent is not None
    said = len(host.said())
    host.agent.send_signal(signal.SIGHUP)
    host.wait_for(f"'{sentence}'", lambda: sentence in host.said()[said:])


def restarted(host: Host) -> None:
    host.describe()
    host.stop_agent()
    host.start_agent()


def test_stopped_agent_leaves_its_jobs_alone_and_says_that_no_more_should_come(
    host: Host, alice: Person
) -> None:
    job = host.start(alice, "/bin/sh", "-c", "echo up; read line; exit 5", stdin=-1)
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == b"up\n"
    before = len(host.said())
    host.stop_agent()
    assert "Told to stop, by SIGTERM." in host.said()[before:]
    assert (host.notes / "closed").exists()
    assert not Path(f"/proc/{host.namespace}/root/run/encamp/bait").exists()
    job.process.communicate(b"go\n", timeout=90)
    assert job.process.returncode == 5
    host.start_agent()
    host.wait_for("an open bait", lambda: not (host.notes / "closed").exists())


def test_job_that_comes_while_no_agent_is_there_waits_for_it(host: Host, alice: Person) -> None:
    host.stop_agent()
    job = host.start(alice, "/bin/sh", "-c", "exit 4")
    assert job.starter
    host.start_agent()
    assert job.end().returncode == 4


def test_second_agent_of_a_host_says_that_there_is_one(host: Host) -> None:
    other = host.root / "other-home"
    tried = subprocess.run(
        host.inside(ENCAMP, "agent", "--alone"),
        env={**host.variables, "ENCAMP_HOME": str(other)},
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert tried.returncode != 0
    assert b"already" in tried.stderr


@root_only
async def test_mistake_in_the_settings_is_a_trouble_of_the_agent_until_it_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path))
    agent = Agent(Home(tmp_path / "home").prepare(), "node1", (), None, (), Plugins())
    (tmp_path / "batch.yaml").write_text("system: slurm\ntrise: 4\n")
    await agent.reload(None)
    (trouble,) = agent.hello().troubles
    assert trouble.startswith("This host has no bait: ")
    assert "batch.yaml:2:1" in trouble
    (tmp_path / "batch.yaml").unlink()
    await agent.reload(None)
    assert agent.hello().troubles == ()


@root_only
def test_agent_alone_needs_a_batch_system(tmp_path: Path) -> None:
    tried = _alone(tmp_path, "")
    assert (tried.returncode, b"batch.yaml is missing" in tried.stderr) == (78, True)


@root_only
def test_mistake_in_the_settings_is_told_with_its_place(tmp_path: Path) -> None:
    tried = _alone(tmp_path, "system: slurm\ntrise: 4\n")
    assert tried.returncode == 78
    assert b"batch.yaml:2:1" in tried.stderr


def _alone(directory: Path, settings: str) -> subprocess.CompletedProcess[bytes]:
    if settings:
        (directory / "batch.yaml").write_text(settings)
    return subprocess.run(
        [ENCAMP, "agent", "--alone"],
        env={
            **os.environ,
            "ENCAMP_HOME": str(directory / "home"),
            "ENCAMP_SITE_CONFIG": str(directory),
        },
        capture_output=True,
        timeout=90,
        check=False,
    )


async def test_batch_system_is_opened_anew_only_if_the_settings_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It remembers jobs whose starters may still be killed."""
    opened: list[BatchSettings] = []
    told: list[int] = []

    def open_batch_system(settings: BatchSettings) -> BatchSystem:
        opened.append(settings)
        return Pretended()

    @asynccontextmanager
    async def bait(*given: object) -> AsyncIterator[Callable[..., None]]:
        yield lambda system, settings: told.append(id(system))

    monkeypatch.setattr("encamp.batch.adapters.open_batch_system", open_batch_system)
    monkeypatch.setattr(serving, "_open", bait)
    async with Serving(Home(tmp_path), cast("Commands", None), "node1") as served:
        settings = BatchSettings(system="pretended")
        await served.change(settings)
        await served.change(BatchSettings(system="pretended"))
        assert (len(opened), len(told)) == (1, 1)
        await served.change(BatchSettings(system="pretended", tries=7))
        assert (len(opened), len(set(told))) == (2, 2)
        # Another one altogether, and the first again.
        await served.change(BatchSettings(system="pretended", programs={"conf": "/x"}))
        await served.change(None)
        assert served.settings is None
        await served.change(settings)
    assert (len(opened), len(told)) == (4, 2)


async def test_part_of_the_bait_that_fails_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "ANEW", 0.0)
    begun = 0

    async def watch() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise RuntimeError("can't start new thread")
        if begun > 2:
            await asyncio.Event().wait()

    task = asyncio.create_task(serving._lasting(watch))
    async with asyncio.timeout(PATIENCE):
        while begun < 3:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert ["has failed" in said or "has ended" in said for said in caplog.messages] == [True] * 2
