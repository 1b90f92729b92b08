"""Disks in files: a copy with holes, an overlay, or a copy that shares its blocks.

Whatever the kind, a template's disk is kept in the same way: a file nobody writes to any more, and
an empty overlay over it. So one template serves machines of all three kinds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

from encamp import programs
from encamp.machines.directory import MachineDirectory
from encamp.machines.hardware import Disk
from encamp.machines.plain_file import plain_file
from encamp.model.errors import Code, EncampError

BASE = "disk.base"
OVERLAY = "disk.overlay"

FICLONE = 0x40049409
"""The kernel's request to make one file share all blocks of another (linux/fs.h)."""

PIECE = 1 << 30

CANNOT_COPY_INSIDE = frozenset({errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""What kernels and file systems say when `copy_file_range` is not for them."""

User = tuple[int, int] | None


class TemplateDiskGoneError(FileNotFoundError):
    """Somebody removed a template's disk; the rest of the template is good for nothing then."""


class SparseFile:
    """A file with holes, of its own."""

    def make(self, directory: MachineDirectory, size: int, user: User) -> None:
        make_disk(directory.disk, size)
        give(directory.disk, user)

    def keep(self, directory: MachineDirectory, made: Path) -> tuple[str, ...]:
        # Once it is where its process cannot reach it, what it is stays what it is.
        directory.disk.rename(made / BASE)
        _check_disk(made / BASE)
        _make_overlay(made, BASE, OVERLAY)
        return BASE, OVERLAY

    def clone(self, made: Path, directory: MachineDirectory, user: User) -> None:
        copy_with_holes(made / BASE, directory.disk)
        give(directory.disk, user)

    def attach(self, directory: MachineDirectory) -> Disk:
        return Disk()


class Reflink(SparseFile):
    """The same, but what the template wrote is not copied: both files share its blocks."""

    def clone(self, made: Path, directory: MachineDirectory, user: User) -> None:
        try:
            with (made / BASE).open("rb") as source, directory.disk.open("xb") as target:
                fcntl.ioctl(target, FICLONE, source.fileno())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise cannot_reflink(directory.run, error) from error
        give(directory.disk, user)


class Overlay(SparseFile):
    """Only what differs from the template's disk, in QEMU's own format."""

    def make(self, directory: MachineDirectory, size: int, user: User) -> None:
        make_disk(directory.base, size)
        directory.base.chmod(0o444)
        _make_overlay(directory.run, f"../{directory.base.name}", Disk.FILE)
        give(directory.disk, user)

    def clone(self, made: Path, directory: MachineDirectory, user: User) -> None:
        # A link keeps the template's disk for this machine even when the template is gone.
        os.link(made / BASE, directory.base)
        shutil.copyfile(made / OVERLAY, directory.disk)
        give(directory.disk, user)

    def attach(self, directory: MachineDirectory) -> Disk:
        return Disk(overlay=True)


def make_disk(path: Path, size: int) -> None:
    """An empty file system in a file with holes: it takes room only as it is filled."""
    with path.open("xb") as file:
        file.truncate(size)
    format_disk(path)


def format_disk(path: Path) -> None:
    # No journal: if the machine dies, so does the disk. Blocks as large as the guest's pages: with
    # the smaller ones that small disks get by default, writing takes longer, and Linux 6.1.192
    # waits for ever on pages of a machine that has little memory.
    programs.run(
        [
            *("mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"),
            *("-O", "^has_journal", "-E", "nodiscard", path),
        ],
        purpose="making the machine's disk",
        code=Code.DISK_FULL,
    )


def _check_disk(path: Path) -> None:
    """Refuse what its process has put in the place of its disk: a link would lead us elsewhere, and
    what is no file might never end."""
    try:
        with plain_file(path, sole=True):
            pass
    except OSError as error:
        raise EncampError(
            Code.CORRUPT,
            "The template's disk is not the file it was made as, so it is not used.",
            "Its process must have replaced it. Run nothing in this environment until you know"
            " where its image comes from.",
        ) from error


def give(path: Path, user: User) -> None:
    path.chmod(0o600)
    if user is not None:
        os.chown(path, *user)


def copy_with_holes(source: Path, target: Path) -> None:
    """A copy that takes no more room than the original: what is not there is not copied."""
    with source.open("rb") as old, target.open("xb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        end = 0
        while end < size:
            try:
                start = os.lseek(old.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break  # Nothing but a hole up to the end.
                raise
            end = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            _copy_range(old.fileno(), new.fileno(), start, end)


def _copy_range(old: int, new: int, start: int, end: int) -> None:
    while start < end:
        try:
            done = os.copy_file_range(old, new, min(PIECE, end - start), start, start)
        except OSError as error:
            if error.errno not in CANNOT_COPY_INSIDE:
                raise
            done = os.pwrite(new, os.pread(old, min(1 << 20, end - start), start), start)
        if done == 0:
            break
        start += done


def can_reflink(source: Path, target: Path) -> bool:
    """Can a file in one directory share its blocks with one in the other? The kernel is asked."""
    try:
        _try_reflink(source, target)
    except OSError:
        return False
    return True


def check_reflink(source: Path, target: Path) -> None:
    """Refuse if it cannot."""
    try:
        _try_reflink(source, target)
    except OSError as error:
        raise cannot_reflink(target, error) from error


def _try_reflink(source: Path, target: Path) -> None:
    # Files without names: nobody ever sees them, and they are gone with their descriptors.
    flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
    one = os.open(source, flags, 0o600)
    try:
        other = os.open(target, flags, 0o600)
        try:
            fcntl.ioctl(other, FICLONE, one)
        finally:
            os.close(other)
    finally:
        os.close(one)


def cannot_reflink(directory: Path, error: OSError) -> EncampError:
    if error.errno == errno.ENOSPC:
        return EncampError(
            Code.DISK_FULL,
            f"There is no room left in {directory} for the machine's disk.",
            "Make room and try again.",
        )
    return EncampError(
        Code.CONFIGURATION,
        f"Storage 'reflink' needs a file system that can share blocks between files; {directory} is"
        f" on {file_system(directory)} ({os.strerror(error.errno or 0)}).",
        "Use another storage, such as qcow2, or set ENCAMP_HOME to a directory on XFS or btrfs.",
    )


def file_system(path: Path) -> str:
    """The kind of file system a path is on, as the kernel calls it."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    found = "an unknown file system"
    where = str(path.resolve())
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            words = os.fsdecode(line).split(" ")
            kind = words[words.index("-") + 1]
            # btrfs shows other numbers to those who ask for a file's: its mount point decides.
            point = words[4].replace("\\040", " ").rstrip("/")
            if words[2] == wanted or (kind == "btrfs" and f"{where}/".startswith(f"{point}/")):
                found = kind
    return found


def _make_overlay(directory: Path, base: str, overlay: str) -> None:
    """An empty overlay over a disk."""
    programs.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, overlay],
        purpose="making an overlay over the machine's disk",
        code=Code.DISK_FULL,
        directory=directory,
    )
