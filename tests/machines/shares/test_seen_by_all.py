"""Two machines and the host work in one directory in turn: whoever opens a file then finds what was
written last, wherever that was, and locks keep all others out."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.machines.shares.mounted import mounted

NAMES = st.sampled_from(["a", "b", "d/a", "d/b"])
WHERE = st.integers(0, 2)
BRIEFLY = 5.0


def content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


class Three(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.held = ExitStack()
        place = Path(tempfile.mkdtemp())
        self.held.callback(shutil.rmtree, place, ignore_errors=True)
        source = place / "source"
        (source / "d").mkdir(parents=True)
        machines = [
            self.held.enter_context(mounted(place / name, source)) for name in ("one", "two")
        ]
        self.places = [source, *(machine.share for machine in machines)]
        self.files: dict[str, bytes] = {}
        self.locked: dict[str, int] = {}

    @rule(where=WHERE, name=NAMES, data=st.binary(max_size=6000))
    def write(self, where: int, name: str, data: bytes) -> None:
        (self.places[where] / name).write_bytes(data)
        self.files[name] = data

    @rule(where=WHERE, name=NAMES, data=st.binary(min_size=1, max_size=50))
    def append(self, where: int, name: str, data: bytes) -> None:
        with (self.places[where] / name).open("ab") as file:
            file.write(data)
        self.files[name] = self.files.get(name, b"") + data

    @rule(where=WHERE, name=NAMES, at=st.integers(0, 5000), data=st.binary(min_size=1, max_size=50))
    def change_in_place(self, where: int, name: str, at: int, data: bytes) -> None:
        if at + len(data) <= len(self.files.get(name, b"")):
            with (self.places[where] / name).open("r+b") as file:
                file.seek(at)
                file.write(data)
            before = self.files[name]
            self.files[name] = before[:at] + data + before[at + len(data) :]

    @rule(where=WHERE, name=NAMES, other=NAMES)
    def move(self, where: int, name: str, other: str) -> None:
        if name in self.files and name != other:
            self.unlock(name)
            self.unlock(other)
            (self.places[where] / name).rename(self.places[where] / other)
            self.files[other] = self.files.pop(name)

    @rule(where=WHERE, name=NAMES)
    def remove(self, where: int, name: str) -> None:
        if name in self.files:
            self.unlock(name)
            (self.places[where] / name).unlink()
            del self.files[name]

    @rule(where=WHERE, name=NAMES)
    def lock(self, where: int, name: str) -> None:
        if name not in self.files or name in self.locked:
            return
        fd = os.open(self.places[where] / name, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self.locked[name] = fd
        for place in self.places:
            other = os.open(place / name, os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(other)

    @rule(name=NAMES)
    def end_lock(self, name: str) -> None:
        self.unlock(name)

    def unlock(self, name: str) -> None:
        if name in self.locked:
            os.close(self.locked.pop(name))

    @invariant()
    def all_see_what_was_done(self) -> None:
        for place in self.places:
            for name in ("a", "b", "d/a", "d/b"):
                wanted = self.files.get(name)
                found = content(place / name)
                # A name that has just come or gone is told a moment later.
                end = time.monotonic() + BRIEFLY
                while (found is None) != (wanted is None) and time.monotonic() < end:
                    time.sleep(0.001)
                    found = content(place / name)
                assert found == wanted

    def teardown(self) -> None:
        for fd in self.locked.values():
            os.close(fd)
        self.held.close()


Three.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /dev/fuse")
class TestThree(Three.TestCase):  # type: ignore[misc,valid-type]
    pass
