"""The real guest program, run on this host over a socket pair instead of a machine's port."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
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
    command = ["make", "-C", SOURCES, "fuzz", f"FUZZ={program}"]
    subprocess.run(command, check=True, capture_output=True)
    return program


@pytest.fixture
def guest(guest_program: Path) -> Iterator[Guest]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        process = subprocess.Popen(
            [guest_program, "--socket", str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
    running = Guest(process, ours)
    try:
        yield running
    finally:
        for channel in running.channels:
            asyncio.run(channel.close())
        ours.close()
        assert process.wait(timeout=10) == 0, "the guest program ends with its socket"
