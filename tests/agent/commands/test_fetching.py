"""Getting an image for everybody, as one owner's process is told about it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from encamp.agent.commands.fetching import SAID, Done, Lines, Step


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    yield ends
    for end in ends:
        os.close(end)


def test_who_does_not_listen_holds_nobody_up(pipe: tuple[int, int]) -> None:
    lines = Lines(pipe[1])
    for number in range(1000):
        lines.update(f"copying part {number}", number / 1000)
    lines.update("x" * 5000)
    said = os.read(pipe[0], 4096)
    lines.end(Done())
    said += os.read(pipe[0], 4096)
    first, *_, last = [SAID.decode(line) for line in said.splitlines()]
    assert (first, last) == (Step("copying part 0", 0.0), Done())
