"""Is there room for another machine? Counted before it starts, so that no machine starves others.

What a machine may still grow to use counts as used: a machine is promised its whole memory. All
machines on the host count, whoever owns them; those of another user no further than to a part of
the host, since nobody has asked us whether there is room for them.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from encamp.machines.hardware import Hardware, translation_buffer
from encamp.machines.standing import OWN, Standing, standing
from encamp.model.driver import DriverName
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, Size, format_bytes

RESERVE = 256 * MIB
"""Left alone for the host itself."""

NEARLY_FULL = 4 * MIB
"""With less than this left, a file system refuses what is asked of it."""

OVERCOMMIT = "ENCAMP_MEMORY_OVERCOMMIT"

MOST_OF_ANOTHER = 0.5
"""Of the host's memory: so much of it machines of one other user may be promised, and not hold, as
far as we believe them."""


class Counted(msgspec.Struct, frozen=True):
    """What is promised to machines and not used by them yet."""

    memory: int
    machines: int
    """How many they are."""
    disk: int = 0


Counting = Callable[[list[Standing]], Counted]


def counted(machines: list[Standing]) -> Counted:
    """The machines that stand, and no others."""
    return Counted(growth(machines), len(machines))


def growth(machines: Iterable[Standing]) -> int:
    """Memory that machines may still come to hold."""
    of_owner: dict[int, int] = {}
    for machine in machines:
        of_owner[machine.owner] = of_owner.get(machine.owner, 0) + machine.growth
    most = int(total_memory() * MOST_OF_ANOTHER)
    believed = (0, os.geteuid())
    return sum(one if owner in believed else min(one, most) for owner, one in of_owner.items())


def total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def largest_memory() -> int:
    """No machine here can have been promised more."""
    with suppress(EncampError):
        return int(total_memory() * overcommit())
    return total_memory()


def overhead(hardware: Hardware) -> int:
    """What the process of such a machine may need beside the guest's memory."""
    if hardware.driver is DriverName.USERMODE:
        return OWN + hardware.size.memory // 64
    return OWN + translation_buffer(hardware) * MIB


def is_full(directory: Path) -> bool:
    """Has the file system no room left for what a machine writes?"""
    return shutil.disk_usage(directory).free < NEARLY_FULL


@contextmanager
def full_disk_named(directory: Path, what: str) -> Iterator[None]:
    """Turn what comes of a full disk into an error that says so. A process whose memory is a file
    there is ended by the kernel without a word; under KVM its guest stands still instead."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _full_disk(directory, what) from error
    except EncampError as error:
        lost = error.code in (Code.MACHINE_LOST, Code.NO_ANSWER)
        if not lost or not is_full(directory):
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


def check_room(
    hardware: Hardware, disk_directory: Path | None, counting: Counting = counted
) -> None:
    """Refuse a machine the host has no room for, with the figure that is missing.

    `disk_directory` is where a file with its disk is to be, if it has one."""
    check_size(hardware.size, overhead(hardware), disk_directory, counting)


def check_size(size: Size, overhead: int, disk_directory: Path | None, counting: Counting) -> None:
    """The same for a machine of which only its size is known, and what it may need beside."""
    check_processors(size.cpus)
    others = counting(standing())
    check_memory(size.memory + overhead, others.memory, others.machines)
    if size.disk and disk_directory is not None:
        check_disk(size.disk, others.disk, disk_directory)


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
        most = largest_memory()
        later = f": this host has {format_bytes(most // MIB * MIB)} for machines."
        if needed <= most:
            later = ", end a machine (see 'encamp ps'), or try again later."
        raise EncampError(
            Code.NO_ROOM,
            f"Not enough memory: the machine needs {format_bytes(needed // MIB * MIB)},"
            f" {format_bytes(missing // MIB * MIB + MIB)} more than is free"
            f" ({format_bytes(max(0, available) // MIB * MIB)} available,"
            f" {format_bytes(promised // MIB * MIB)} of it promised to {machines} machines).",
            f"Ask for less with --memory{later}",
            transient=needed <= most,
        )


def check_disk(needed: int, promised: int, directory: Path) -> None:
    usage = shutil.disk_usage(directory)
    free = usage.free
    if needed + promised > free:
        others = f", {format_bytes(promised // MIB * MIB)} of it promised" if promised else ""
        raise EncampError(
            Code.NO_ROOM,
            f"Not enough disk: the machine wants {format_bytes(needed)} and"
            f" {directory} has {format_bytes(free // MIB * MIB)} free{others}.",
            "Ask for less with --disk.",
            transient=needed <= usage.total,
        )
