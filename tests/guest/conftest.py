"""The real guest program, run on this host over a socket pair instead of a machine's port."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.guest.support import SOURCES, Guest


@pytest.fixture(scope="session")
def guest_program() -> Path:
    subprocess.run(["make", "-C", SOURCES], check=True, capture_output=True)
    return SOURCES.parent / "encamp-guest"


@pytest.fixture(scope="session")
def fuzz_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("fuzz") / "fuzz"
    command = ["make", "-C", str(SOURCES), "fuzz", f"FUZZ={program}"]
    subprocess.run(command, check=True, capture_output=True)
    return program


@pytest.fixture
async def guest(guest_program: Path) -> AsyncIterator[Guest]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        process = await asyncio.create_subprocess_exec(
            guest_program, "--socket", str(theirs.fileno()), pass_fds=[theirs.fileno()]
        )
    running = Guest(process, ours)
    try:
        yield running
    finally:
        await running.hang_up()
        ours.close()
        async with asyncio.timeout(60):
            assert await process.wait() == 0, "the guest program ends with its socket"
