"""Whatever programs do in a share, they are told what a directory of the host's would have told
them, and what is there afterwards is the same."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.machines.shares.mounted import LIBC, Mounted, mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /dev/fuse")

NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/b", "e", "e/a", "link", "nowhere/a"])
SIZES = st.sampled_from([0, 1, 4095, 4096, 5000, 100_000])
PLACES = st.sampled_from([0, 1, 100, 4096, 9000])


def seen(directory: Path) -> object:
    """All that a program can see of a directory, but for numbers and times that chance decides."""
    found = []
    for path in sorted(directory.rglob("*")):
        stat = path.lstat()
        size = 0 if path.is_dir() else stat.st_size
        links = 0 if path.is_dir() else stat.st_nlink
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = path.read_bytes()
            content = (content, [(name, os.getxattr(path, name)) for name in os.listxattr(path)])
        found.append((str(path.relative_to(directory)), stat.st_mode, size, links, content))
    return found


class Twins(RuleBasedStateMachine):
    """The same is done below two directories, of which one is a share."""

    machine: Mounted

    def __init__(self) -> None:
        super().__init__()
        self.held = ExitStack()
        place = Path(tempfile.mkdtemp())
        self.held.callback(shutil.rmtree, place, ignore_errors=True)
        for name in ("shared", "plain"):
            (place / name).mkdir()
        self.machine = self.held.enter_context(mounted(place / "mounted", place / "shared"))
        self.roots = (self.machine.share, place / "plain")
        self.open: list[tuple[int, int]] = []

    def both(self, does: Callable[[Path], object]) -> None:
        results = []
        for root in self.roots:
            try:
                results.append((0, does(root)))
            except OSError as error:
                results.append((error.errno or -1, None))
        assert results[0] == results[1]

    def each(self, which: int, does: Callable[[int], object]) -> None:
        """The same with one of the files that are open in both."""
        pair = self.open[which % len(self.open)]
        results = []
        for fd in pair:
            try:
                results.append((0, does(fd)))
            except OSError as error:
                results.append((error.errno or -1, None))
        assert results[0] == results[1]

    @rule(
        name=NAMES,
        flags=st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR]),
        more=st.sampled_from([0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC]),
        append=st.booleans(),
        mode=st.sampled_from([0o644, 0o600, 0o444]),
    )
    def open_file(self, name: str, flags: int, more: int, append: bool, mode: int) -> None:
        fds: list[int] = []

        def opened(root: Path) -> None:
            fds.append(os.open(root / name, flags | more | (os.O_APPEND if append else 0), mode))

        self.both(opened)
        if fds:
            self.open.append((fds[0], fds[1]))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99))
    def close_file(self, which: int) -> None:
        for fd in self.open.pop(which % len(self.open)):
            os.close(fd)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), size=SIZES, at=PLACES, byte=st.integers(1, 255))
    def write(self, which: int, size: int, at: int, byte: int) -> None:
        self.each(which, lambda fd: os.pwrite(fd, bytes([byte]) * size, at))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), size=SIZES, at=PLACES)
    def read(self, which: int, size: int, at: int) -> None:
        self.each(which, lambda fd: os.pread(fd, size, at))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), at=PLACES, byte=st.integers(1, 255), size=st.integers(1, 50))
    def store_through_a_map(self, which: int, at: int, byte: int, size: int) -> None:
        def stored(fd: int) -> object:
            length = os.fstat(fd).st_size
            if length < at + size:
                return None
            with mmap.mmap(fd, 0) as mapped:
                mapped[at : at + size] = bytes([byte]) * size
                # Beside it, in the same page.
                os.pwrite(fd, b"beside", at + size)
                return mapped[:], os.pread(fd, length, 0)

        self.each(which, stored)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), size=SIZES)
    def truncate_open(self, which: int, size: int) -> None:
        self.each(which, lambda fd: os.ftruncate(fd, size))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), mode=st.sampled_from([0o644, 0o400, 0o1777]))
    def change_open(self, which: int, mode: int) -> None:
        def changed(fd: int) -> None:
            os.fchmod(fd, mode)
            os.utime(fd, ns=(1, mode))

        self.each(which, changed)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99))
    def look_at_open(self, which: int) -> None:
        def looked(fd: int) -> object:
            stat = os.fstat(fd)
            return stat.st_mode, stat.st_size, stat.st_nlink

        self.each(which, looked)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), at=PLACES, size=st.sampled_from([1, 5000]))
    def allocate(self, which: int, at: int, size: int) -> None:
        self.each(which, lambda fd: os.posix_fallocate(fd, at, size))

    @precondition(lambda self: len(self.open) > 1)
    @rule(source=st.integers(0, 99), into=st.integers(0, 99), at=PLACES, size=SIZES)
    def copy_between(self, source: int, into: int, at: int, size: int) -> None:
        taker = self.open[into % len(self.open)]
        pairs = dict(zip(self.open[source % len(self.open)], taker, strict=True))
        self.each(source, lambda fd: os.copy_file_range(fd, pairs[fd], size, 0, at))

    @rule(name=NAMES, size=SIZES)
    def truncate(self, name: str, size: int) -> None:
        self.both(lambda root: os.truncate(root / name, size))

    @rule(name=NAMES, data=st.binary(max_size=40))
    def replace_whole(self, name: str, data: bytes) -> None:
        self.both(lambda root: (root / name).write_bytes(data))

    @rule(name=NAMES)
    def make_directory(self, name: str) -> None:
        self.both(lambda root: (root / name).mkdir())

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.both(lambda root: (root / name).unlink())

    @rule(name=NAMES)
    def remove_directory(self, name: str) -> None:
        self.both(lambda root: (root / name).rmdir())

    @rule(name=NAMES, other=NAMES, flags=st.sampled_from([0, 1, 2]))
    def rename(self, name: str, other: str, flags: int) -> None:
        def renamed(root: Path) -> None:
            import ctypes

            if LIBC.renameat2(-100, bytes(root / name), -100, bytes(root / other), flags) != 0:
                raise OSError(ctypes.get_errno(), "renameat2")

        self.both(renamed)

    @rule(name=NAMES, other=NAMES)
    def link(self, name: str, other: str) -> None:
        self.both(lambda root: os.link(root / name, root / other, follow_symlinks=False))

    @rule(name=NAMES, other=NAMES)
    def link_softly(self, name: str, other: str) -> None:
        self.both(lambda root: (root / name).symlink_to(other))

    @rule(name=NAMES, value=st.binary(max_size=20))
    def set_attribute(self, name: str, value: bytes) -> None:
        self.both(lambda root: os.setxattr(root / name, "user.x", value))

    @rule(name=NAMES, mode=st.sampled_from([0o755, 0o600, 0o1777]))
    def change(self, name: str, mode: int) -> None:
        self.both(lambda root: (root / name).chmod(mode))

    @rule(name=NAMES)
    def list_directory(self, name: str) -> None:
        self.both(lambda root: sorted(os.listdir(root / name)))

    def teardown(self) -> None:
        for pair in self.open:
            for fd in pair:
                os.close(fd)
        try:
            states = [seen(root) for root in (*self.roots, self.machine.place.parent / "shared")]
            assert states[0] == states[1] == states[2]
        finally:
            for root in self.roots:
                shutil.rmtree(root, ignore_errors=True)
            self.held.close()


Twins.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /dev/fuse")
class TestTwins(Twins.TestCase):  # type: ignore[misc,valid-type]
    pass
