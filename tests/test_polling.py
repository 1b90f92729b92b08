"""Files are looked at whatever their numbers are."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from encamp.machines.process import Process
from encamp.polling import is_readable, wait_writable

LARGE = 3000
"""A number that select() does not know."""


@pytest.fixture
def many() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], LARGE + 100), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many")
def test_files_with_large_numbers_are_read_and_written() -> None:
    reading, writing = os.pipe()
    large = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, LARGE) for each in (reading, writing)]
    try:
        assert not is_readable(large[0], 0.01)
        wait_writable(large[1])
        os.write(large[1], b"x")
        assert is_readable(large[0], None)
    finally:
        for each in (reading, writing, *large):
            os.close(each)


@pytest.mark.usefixtures("many")
def test_process_is_known_to_live_however_many_files_are_open() -> None:
    process = Process(os.getpid())
    small = process._fd
    process._fd = fcntl.fcntl(small, fcntl.F_DUPFD_CLOEXEC, LARGE)
    os.close(small)
    assert process.alive()
    process.close()
