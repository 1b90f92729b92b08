"""Getting an image for everybody, as one owner's process is told about it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.agent.commands import fetching
from encamp.agent.commands.fetching import SAID, Done, Fetching, Lines, Step
from encamp.describe.environments import find_environment
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.errors import Code, EncampError
from encamp.progress import Silent


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


async def test_long_complaint_of_a_build_comes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a package manager says before it gives up can be long."""
    said = "cannot find anything\n" * 50_000
    assert len(said) < fetching.LONGEST_LINE

    def ensure(images: ImageStore, *wanted: object) -> None:
        raise EncampError(Code.BUILD_FAILED, "It cannot be built.", detail=said)

    monkeypatch.setattr(ImageStore, "ensure", ensure)
    monkeypatch.setattr(ImageStore, "fetch", ensure)
    coming = Fetching(Home(tmp_path / "home").prepare(), find_environment("mini"))
    with pytest.raises(EncampError, match="It cannot be built") as failure:
        await coming.done(Silent())
    assert failure.value.detail == said
