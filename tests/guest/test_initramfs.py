"""The initramfs: sound for the kernel's reader, the same for the same program."""

from __future__ import annotations

import subprocess
from pathlib import Path

from encamp.cpio import BLOCK
from encamp.guest.initramfs import guest_initramfs


def listing(archive: bytes) -> list[str]:
    result = subprocess.run(
        ["cpio", "--list", "--verbose", "--numeric-uid-gid", "--quiet"],
        input=archive,
        capture_output=True,
        check=True,
    )
    return result.stdout.decode().splitlines()


def test_initramfs_holds_the_program_as_init(guest_program: Path) -> None:
    lines = listing(guest_initramfs(guest_program))
    (init,) = [line for line in lines if line.endswith(" init")]
    (console,) = [line for line in lines if line.endswith(" dev/console")]
    assert init.split()[0] == "-rwxr-xr-x"
    assert init.split()[4] == str(guest_program.stat().st_size)
    assert console.startswith("crw-------")
    assert "5,   1" in console
    assert {line.split()[2] for line in lines} == {"0"}


def test_initramfs_extracts_to_the_same_program(guest_program: Path, tmp_path: Path) -> None:
    subprocess.run(
        ["cpio", "--extract", "--quiet", "init"],
        input=guest_initramfs(guest_program),
        cwd=tmp_path,
        check=True,
    )
    assert (tmp_path / "init").read_bytes() == guest_program.read_bytes()


def test_initramfs_is_reproducible_and_can_follow_another(guest_program: Path) -> None:
    first, second = guest_initramfs(guest_program), guest_initramfs(guest_program)
    assert first == second
    assert len(first) % BLOCK == 0
