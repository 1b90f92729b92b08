"""Writing the state of a real QEMU: whichever side fails, nobody waits for the other."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest

from encamp.machines import qemu
from encamp.machines.directory import MachineDirectory
from encamp.machines.process import Process
from encamp.machines.qemu import MONITOR, PROGRAM, Qemu
from encamp.model.errors import Code, EncampError

PATIENCE = 60


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Qemu]]:
    """Starts a machine without any system. Its state does not fit into a pipe."""
    processes: list[Process] = []

    def start(*words: str) -> Qemu:
        place = tmp_path / "machine"
        place.mkdir()
        control = f"unix:{place / MONITOR},server=on,wait=off"
        machine = ("-machine", "q35,accel=tcg", "-m", "128", "-nodefaults", "-display", "none")
        child = subprocess.Popen(
            [PROGRAM, *machine, "-daemonize", "-pidfile", place / "pid", *words, "-qmp", control]
        )
        assert child.wait() == 0
        processes.append(Process(int((place / "pid").read_text()), None))
        return Qemu(MachineDirectory(place), processes[-1])

    yield start
    for process in processes:
        asyncio.run(process.kill())
        process.close()


async def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def full_disk(source: FileIO, target: Path) -> None:
    """It does not even stop reading."""
    target.write_bytes(source.read(1000))
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("place", "name", "fails", "code", "words"),
    [
        (asyncio, "to_thread", no_thread, Code.NO_ROOM, "can't start new thread"),
        (qemu, "_copy_to_file", full_disk, Code.DISK_FULL, "No space left on device"),
    ],
)
async def test_machine_goes_on_if_nobody_writes_what_is_saved(
    start: Callable[..., Qemu],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: object,
    name: str,
    fails: object,
    code: Code,
    words: str,
) -> None:
    engine, target = start(), tmp_path / "state"
    open_before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as failing:
        failing.setattr(place, name, fails)
        with pytest.raises(EncampError, match=words) as raised:
            async with asyncio.timeout(PATIENCE):
                await engine.save(target, memory_is_mapped=False)
    assert raised.value.code is code
    assert not target.exists()
    assert len(os.listdir("/proc/self/fd")) == len(open_before)
    assert await engine.status() == "running"
    await engine.save(target, memory_is_mapped=False)
    assert target.stat().st_size > 1 << 16
    assert await engine.status() == "postmigrate"


async def test_save_that_qemu_refuses_ends(start: Callable[..., Qemu], tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    engine = start("-drive", f"file=fat:rw:{shown},format=raw,if=none")
    with pytest.raises(EncampError, match="does not support live migration"):
        async with asyncio.timeout(PATIENCE):
            await engine.save(tmp_path / "state", memory_is_mapped=False)
    assert not (tmp_path / "state").exists()
    assert await engine.status() == "running"


async def test_save_that_nobody_waits_for_any_more_leaves_the_machine_running(
    start: Callable[..., Qemu], tmp_path: Path
) -> None:
    engine = start()
    saving = asyncio.create_task(engine.save(tmp_path / "state", memory_is_mapped=False))
    async with asyncio.timeout(PATIENCE):
        while not (tmp_path / "state").exists() or not (tmp_path / "state").stat().st_size:
            await asyncio.sleep(0)
        saving.cancel()
        await asyncio.wait({saving})
    assert saving.cancelled()
    assert not (tmp_path / "state").exists()
    assert await engine.status() == "running"
