"""A machine's process reaches its own machine and no more, whoever has taken it over.

Each attack is made inside the real process, with system calls that its guest would make after an
escape from QEMU.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

import pytest

from encamp.home import Home
from tests.conftest import Encamp, machine_processes
from tests.site.injection import Inside, inside

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can take any process over"),
]

REFUSED: set[str | int] = {"EACCES", "EPERM"}
EVERYTHING = mmap.PROT_READ | mmap.PROT_WRITE


def assert_memory_is_out_of_reach(taken: Inside) -> None:
    files = Path(f"/proc/{taken.pid}/fd")
    held = [int(fd.name) for fd in files.iterdir() if fd.readlink().name == "memory"]
    assert held
    path = (files / str(held[0])).readlink()
    names: list[str] = [str(path), *(f"/proc/self/fd/{fd}" for fd in held)]
    for name in names:
        for way in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC):
            assert taken("open", name, way) in REFUSED
        # An owner's file is the owner's to change, where a writable share lets the process do that.
        taken("chmod", name, 0o666)
        assert taken("open", name, os.O_RDWR) in REFUSED
        assert taken("truncate", name, 0) in REFUSED
    for fd in held:
        flags = taken("fcntl", fd, fcntl.F_GETFL)
        assert isinstance(flags, int)
        assert flags & os.O_ACCMODE == os.O_RDONLY
        assert taken("mmap", 0, 4096, EVERYTHING, mmap.MAP_SHARED, fd, 0) in REFUSED
        shared = taken("mmap", 0, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        assert isinstance(shared, int)
        assert taken("mprotect", shared, 4096, EVERYTHING) in REFUSED


def test_memory_that_others_map_is_out_of_reach(encamp: Encamp, site_home: Home) -> None:
    encamp("start", "--name", "a")
    (pid,) = machine_processes(site_home)
    with inside(pid) as taken:
        assert_memory_is_out_of_reach(taken)
    assert encamp("exec", "a", "--", "echo", "here").stdout == b"here\n"
    encamp("kill-all")
