"""Programs that were written to find faults of file systems find none in a share."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.machines.shares.mounted import Mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /dev/fuse")

PYTHON = "/usr/bin/python3"
"""Debian's, whose own tests are a package (`libpython3.11-testsuite`)."""

PYTHONS_TESTS = (
    *("test_mmap", "test_fcntl", "test_os", "test_posix", "test_fileio", "test_shutil"),
    *("test_tarfile", "test_tempfile", "test_dbm", "test_dbm_dumb", "test_dbm_ndbm"),
)
REFUSED = ("test_copyxattr_symlinks",)
"""It sets an attribute of the kind `trusted`, which a share refuses; see docs/shares.md."""

STRESSORS = (
    *("access", "chmod", "chown", "copy-file", "dentry", "dir", "dirdeep", "fallocate", "fcntl"),
    *(
        "filename",
        "flock",
        "fpunch",
        "getdent",
        "hdd",
        "iomix",
        "link",
        "locka",
        "lockf",
        "lockofd",
    ),
    *("mknod", "mmap", "msync", "open", "rename", "seek", "sendfile", "symlink", "sync-file"),
    *("utime", "xattr"),
)


def runs(words: list[str], directory: Path) -> None:
    done = subprocess.run(
        words, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("module", PYTHONS_TESTS)
def test_pythons_own_tests_pass(machine: Mounted, module: str) -> None:
    words = [PYTHON, "-m", "test", "--tempdir", str(machine.share)]
    for name in REFUSED:
        words += ["--ignore", name]
    runs([*words, module], machine.share)


def test_stress_of_all_kinds_at_once_finds_nothing_wrong(machine: Mounted) -> None:
    words = ["stress-ng", "--temp-path", str(machine.share), "--verify", "--timeout", "8"]
    for stressor in STRESSORS:
        words += [f"--{stressor}", "1"]
    runs(words, machine.share)
    assert list(machine.share.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--ioengine=psync", "--bs=1k-64k", "--bs_unaligned=1"],
        ["--ioengine=mmap", "--bs=4k"],
        ["--ioengine=libaio", "--iodepth=8", "--direct=1", "--bs=4k"],
    ],
    ids=["unaligned", "mapped", "direct"],
)
def test_data_are_read_as_they_were_written(machine: Mounted, options: list[str]) -> None:
    words = ["fio", "--name=blocks", "--rw=randrw", "--size=8M", "--numjobs=2", "--verify=crc32c"]
    words += ["--verify_state_save=0", "--thread", f"--directory={machine.share}"]
    runs(words + options, machine.share)
