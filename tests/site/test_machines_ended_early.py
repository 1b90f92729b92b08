"""Machines that somebody ends while they are still being made."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from encamp.agent.keeper import Keeper
from encamp.agent.live import Live
from encamp.agent.phases import Phases
from encamp.cli.options import caller
from encamp.describe.environments import find_environment
from encamp.home import Home
from encamp.machines.engine import FILE_LIMIT
from encamp.model.errors import Code, EncampError
from encamp.model.job import MachineRequest
from encamp.model.size import MIB
from encamp.progress import Silent
from tests.conftest import Encamp, left_behind, machine_processes
from tests.site.siting import root_only

pytestmark = pytest.mark.site

PREPARING = "encamp.agent.making.Maker._prepare"
"""Journaled, without a process."""
WAKING = "encamp.agent.making.wake"
"""With a process that is not awake."""
READY = "encamp.agent.live.Live.activate"
"""Just about to become a machine like others."""


def kill_at(point: str, encamp: Encamp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the machine killed by its owner, from another terminal, when it has come this far."""
    function = resolve_name(point)

    async def later(*args: Any, **options: Any) -> Any:
        encamp("kill", "a")
        return await function(*args, **options)

    def now(*args: Any, **options: Any) -> Any:
        encamp("kill", "a")
        return function(*args, **options)

    monkeypatch.setattr(point, later if inspect.iscoroutinefunction(function) else now)


async def make(home: Home, *, tied: bool) -> Live:
    keeper = Keeper.open(home)
    request = MachineRequest(environment="mini", owner=caller(), name="a")
    return await keeper.maker.make(
        request,
        find_environment("mini"),
        tied=tied,
        outlives=not tied,
        phases=Phases(),
        progress=Silent(),
    )


@pytest.mark.parametrize("point", [PREPARING, WAKING, READY])
async def test_machine_killed_while_it_is_made_is_not_made_and_keeps_its_record(
    encamp: Encamp, site_home: Home, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    kill_at(point, encamp, monkeypatch)
    with pytest.raises(EncampError, match="ended while it was being made: killed on") as raised:
        await make(site_home, tied=False)
    assert raised.value.code is Code.MACHINE_LOST
    (machine,) = json.loads(encamp("ps", "--json").stdout)
    assert (machine["name"], machine["state"]) == ("a", "stopped")
    assert machine["reason"] == "killed on request"
    assert machine_processes(site_home) == []
    files = {path.name for path in site_home.machines.rglob("*") if not path.is_dir()}
    assert files <= {"machine.json", "console", "qemu.log", "lock", "client", "moving"}
    encamp("rm", "a")


@pytest.mark.parametrize("point", [PREPARING, WAKING, READY])
async def test_machine_of_a_job_killed_while_it_is_made_is_not_made_again(
    encamp: Encamp, site_home: Home, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    kill_at(point, encamp, monkeypatch)
    with pytest.raises(EncampError, match="ended while it was being made: killed on"):
        await make(site_home, tied=True)
    assert left_behind(site_home) == []


STOPS = """
stops:
  extends: mini
  qemu:
    - -drive
    - if=none,id=extra,file={file},format=raw,file.locking=off,werror=stop
    - -device
    - virtio-blk-pci,drive=extra
"""


@root_only
@pytest.mark.parametrize("command", ["run", "exec"])
def test_job_ends_with_a_reason_when_qemu_has_stopped_its_machine(
    encamp: Encamp, site_home: Home, tmp_path: Path, command: str
) -> None:
    """Of a disk that can hold less than the guest writes to it."""
    for directory in tmp_path.parents[:-2]:
        directory.chmod(directory.stat().st_mode | 0o711)
    tmp_path.chmod(0o711)
    file = tmp_path / "extra"
    file.touch()
    file.chmod(0o666)
    os.truncate(file, 4 * FILE_LIMIT)
    site = tmp_path / "site"
    site.mkdir(mode=0o700)
    (site / "environments.yaml").write_text(STOPS.format(file=file))
    variables = {"ENCAMP_SITE_CONFIG": str(site)}
    seek = FILE_LIMIT // MIB
    script = f"dd if=/dev/zero of=/dev/vdb bs=1M seek={seek} count=1 conv=fsync; sleep 86400"
    words: tuple[str, ...] = ("run", "--boot", "-e", "stops")
    if command == "exec":
        encamp("start", "--boot", "-e", "stops", "--name", "a", variables=variables)
        words = ("exec", "a")
    done = encamp(*words, "--", "sh", "-c", script, check=False, variables=variables)
    assert done.returncode == Code.MACHINE_LOST.value
    assert b"a drive of it could not be read or written (io-error)" in done.stderr
    assert machine_processes(site_home) == []
    if command == "exec":
        assert json.loads(encamp("show", "--json", "a").stdout)["state"] == "failed"
        encamp("rm", "a")
