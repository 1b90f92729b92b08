"""Is there room for another machine? Counted before it starts, so that no machine starves others.

What a machine may still grow to use counts as used: a machine is promised its whole memory. All
machines on the host count, whoever owns them.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from encamp.machines.hardware import TRANSLATION_BUFFER, Hardware, translation_buffer
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, format_bytes

OWN = 16 * MIB
"""What QEMU needs for itself, beside the guest's memory and a full translation buffer."""

RESERVE = 256 * MIB
"""Left alone for the host itself."""

NEARLY_FULL = 4 * MIB
"""With less than this left, a file system refuses what is asked of it."""

OVERCOMMIT = "ENCAMP_MEMORY_OVERCOMMIT"

NAME = re.compile(rb"encamp-[0-9a-z]+")
BUFFER = re.compile(rb"\btb-size=(\d{1,6})\b")
PROGRAMS = frozenset({b"qemu-system-x86\n", b"encamp-launch\n"})
PAGE = os.sysconf("SC_PAGE_SIZE")


class Standing(msgspec.Struct, frozen=True):
    """A machine's process on this host, anybody's."""

    pid: int
    name: str
    """The machine's id, or what it is for if it is none of anybody's."""
    memory: int
    """What it was promised."""
    used: int
    """What of that it holds now."""
    overhead: int
    """What its process may need beside that."""

    @property
    def growth(self) -> int:
        return max(0, self.memory + self.overhead - self.used)


def standing() -> list[Standing]:
    """All machines on this host, as the kernel shows them."""
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/comm", "rb") as file:
                if file.read(32) not in PROGRAMS:
                    continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            name = words[words.index(b"-name") + 1]
            if not NAME.fullmatch(name):
                continue
            memory = int(words[words.index(b"-m") + 1].removesuffix(b"K")) * 1024
            _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        except (OSError, ValueError):
            continue  # It ended while we looked, or is not ours.
        used = (resident - shared) * PAGE
        name = name.removeprefix(b"encamp-")
        found.append(Standing(int(pid), name.decode(), memory, used, _overhead_in(words)))
    return found


def overhead(hardware: Hardware) -> int:
    """What the process of such a machine may need beside the guest's memory."""
    return OWN + translation_buffer(hardware) * MIB


def _overhead_in(words: list[bytes]) -> int:
    """The same, of a process with this command line."""
    sizes = [int(size) for word in words for size in BUFFER.findall(word)]
    return OWN + max(sizes, default=TRANSLATION_BUFFER["tcg"]) * MIB


def is_full(directory: Path) -> bool:
    """Has the file system no room left for what a machine writes?"""
    return shutil.disk_usage(directory).free < NEARLY_FULL


@contextmanager
def full_disk_named(directory: Path, what: str) -> Iterator[None]:
    """Turn what comes of a full disk into an error that says so. A process whose memory is a file
    there is ended by the kernel without a word."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _full_disk(directory, what) from error
    except EncampError as error:
        if error.code is not Code.MACHINE_LOST or not is_full(directory):
            raise
        raise _full_disk(directory, what) from error


def _full_disk(directory: Path, what: str) -> EncampError:
    return EncampError(
        Code.DISK_FULL,
        f"The disk filled up while {what}.",
        f"Make room in {directory} and try again; nothing was left half done.",
    )


def available_memory() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, _group_memory())
    raise AssertionError("the kernel always has that line")


def _group_memory() -> int:
    """What is left below the limit of our control group, for example a batch job's."""
    left = 1 << 62
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return left
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current")
            base = Path("/sys/fs/cgroup")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            base = Path("/sys/fs/cgroup/memory")
        else:
            continue
        group = base / path.lstrip("/")
        try:
            limit, used = ((group / name).read_text().strip() for name in names)
        except OSError:
            continue
        if limit != "max":
            left = min(left, int(limit) - int(used))
    return left


def overcommit() -> float:
    text = os.environ.get(OVERCOMMIT, "1")
    try:
        value = float(text)
        if value < 1:
            raise ValueError
    except ValueError:
        raise EncampError(
            Code.CONFIGURATION, f"{OVERCOMMIT}={text} is not a number of 1 or more."
        ) from None
    return value


def check_room(hardware: Hardware, disk_directory: Path | None) -> None:
    """Refuse a machine the host has no room for, with the figure that is missing.

    `disk_directory` is where a file with its disk is to be, if it has one."""
    size = hardware.size
    check_processors(size.cpus)
    machines = standing()
    promised = sum(machine.growth for machine in machines)
    check_memory(size.memory + overhead(hardware), promised, len(machines))
    if size.disk and disk_directory is not None:
        check_disk(size.disk, 0, disk_directory)


def check_processors(wanted: int) -> None:
    processors = os.cpu_count() or 1
    if wanted > processors:
        raise EncampError(
            Code.NO_ROOM,
            f"The machine wants {wanted} processors and this host has {processors}.",
            "Ask for fewer with --cpus.",
        )


def check_memory(needed: int, promised: int, machines: int) -> None:
    """Is so much memory left, with so much promised to so many machines?"""
    available = available_memory() - RESERVE
    missing = int((promised + needed) / overcommit() - available)
    if missing > 0:
        raise EncampError(
            Code.NO_ROOM,
            f"Not enough memory: the machine needs {format_bytes(needed // MIB * MIB)},"
            f" {format_bytes(missing // MIB * MIB + MIB)} more than is free"
            f" ({format_bytes(max(0, available) // MIB * MIB)} available,"
            f" {format_bytes(promised // MIB * MIB)} of it promised to {machines} machines).",
            "Ask for less with --memory, end a machine (see 'encamp ps'), or try again later.",
            transient=True,
        )


def check_disk(needed: int, promised: int, directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if needed + promised > free:
        others = f", {format_bytes(promised // MIB * MIB)} of it promised" if promised else ""
        raise EncampError(
            Code.NO_ROOM,
            f"Not enough disk: the machine wants {format_bytes(needed)} and"
            f" {directory} has {format_bytes(free // MIB * MIB)} free{others}.",
            "Ask for less with --disk.",
            transient=True,
        )
