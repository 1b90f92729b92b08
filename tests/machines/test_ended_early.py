"""Machines whose process is gone before they were ready: was it killed?"""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import Engine, MachineKilledError
from encamp.machines.process import Process
from encamp.model.errors import Code, EncampError


def started(script: str) -> Process:
    """One that does this once it is known by its number."""
    child = subprocess.Popen(["/bin/sh", "-c", f"read line; {script}"], stdin=subprocess.PIPE)
    process = Process(child.pid, child)
    assert child.stdin is not None
    child.stdin.close()
    return process


@pytest.mark.parametrize(
    ("script", "killed"), [("kill -9 $$", True), ("kill -11 $$", True), ("exit 1", False)]
)
async def test_process_that_was_killed_is_told_from_one_that_ended(
    tmp_path: Path, script: str, killed: bool
) -> None:
    process = started(script)
    try:
        with pytest.raises(EncampError) as raised:
            async with asyncio.timeout(60):
                await Engine(MachineDirectory(tmp_path), process).unless_ended(asyncio.sleep(3600))
        assert raised.value.code is Code.MACHINE_LOST
        assert isinstance(raised.value, MachineKilledError) is killed
    finally:
        process.close()
