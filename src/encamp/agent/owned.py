"""The machines of all owners that an agent looks after, as their records say.

Owners can write what they like in their homes. So root opens nothing there that is not what it
should be, follows no link, reads no more than a record can be, and believes an owner only about
machines of that owner's own: one that is said to be alive must have a process of its owner's, and
be as large as that is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import msgspec

from encamp.agent.journal import Journal, choose
from encamp.agent.owners import home_of, owners
from encamp.home import Home
from encamp.machines.directory import MachineDirectory
from encamp.machines.room import largest_memory
from encamp.machines.standing import Standing, standing
from encamp.model.errors import Code, EncampError
from encamp.model.machine import ALIVE, Machine
from encamp.model.size import Size
from encamp.model.storage import Storage

ID = re.compile(r"[0-9a-f]{32}")
LARGEST_RECORD = 256 << 10
MOST = 2000
"""Machines of one owner that are looked at."""
LARGEST_SIZE = Size(cpus=1 << 16, memory=1 << 52, disk=1 << 56)
LONGEST_WORD = 200
LONGEST_REASON = 1000
LATEST = 1e11
"""No clock shows that."""

RECORDS = msgspec.json.Decoder(Machine)

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def records(home: Home) -> list[tuple[int, Machine]]:
    """Records in the homes of other owners than the agent's own user, each with its owner."""
    return [
        (uid, machine)
        for uid in owners(home)
        for name, fd in _each(home, uid)
        if (machine := _read(fd, uid, name)) is not None
    ]


def everybodys(home: Home) -> list[tuple[int, Machine]]:
    """All machines that the agent looks after, each with its owner."""
    return [*((os.geteuid(), machine) for machine in Journal(home).all()), *records(home)]


def locate(home: Home, reference: str) -> tuple[int, Machine]:
    """A machine by its name, id or the beginning of its id, among all that the agent looks after;
    and its owner."""
    every = everybodys(home)
    chosen = choose([machine for _, machine in every], reference)
    return next((uid, machine) for uid, machine in every if machine is chosen)


def identified(home: Home, id: str, owner: int | None) -> tuple[int, Machine]:
    """The machine with this id that an owner has (None: anybody), and its owner. What others call
    theirs, and which ids they write down, does not matter."""
    found = [
        (uid, machine)
        for uid, machine in everybodys(home)
        if machine.id == id and owner in (None, uid)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise EncampError(
            Code.UNKNOWN_MACHINE,
            f"Several users of this host say that machine {id[:32]} is theirs.",
            "One of them has written that down: nothing is done with it until it is gone.",
        )
    raise EncampError(Code.UNKNOWN_MACHINE, f"There is no machine {id[:32]} on this host any more.")


def believed(found: list[tuple[int, Machine]]) -> list[tuple[int, Machine]]:
    """Of such records, those that can be true. Of several with the same id, which only somebody who
    knows of another's machine can have written, that is one whose machine lives."""
    if not any(machine.state in ALIVE for _, machine in found):
        return found
    processes = _processes()
    living = {
        (uid, machine.id)
        for uid, machine in found
        if machine.state in ALIVE and _is_that(machine, processes.get((uid, machine.id)))
    }
    taken = {id for _, id in living}
    return [
        (uid, machine)
        for uid, machine in found
        if (uid, machine.id) in living or (machine.state not in ALIVE and machine.id not in taken)
    ]


def disk_growth(home: Home) -> int:
    """Bytes that the disks of machines may still come to take of the home's file system."""
    growth = 0
    own = [(os.geteuid(), machine) for machine in Journal(home).all()]
    for uid, machine in (*own, *believed(records(home))):
        if machine.state in ALIVE and machine.size.disk and machine.storage is not Storage.RAM:
            disk = MachineDirectory(home_of(home, uid).machines / machine.id).disk
            with suppress(OSError):
                growth += max(0, machine.size.disk - os.lstat(disk).st_blocks * 512)
    return growth


def stamps(home: Home) -> list[tuple[int, str, int, int]]:
    """Differs whenever a record does."""
    found = []
    for uid in owners(home):
        for name, fd in _each(home, uid):
            with suppress(OSError):
                status = os.stat("machine.json", dir_fd=fd, follow_symlinks=False)
                found.append((uid, name, status.st_ino, status.st_mtime_ns))
    return sorted(found)


def disagreeing(home: Home) -> dict[int, frozenset[str]]:
    """Owners in whose homes something is not as it should be, and what: a machine that is said to
    be alive and has no process, one without a record, one whose removal was cut short."""
    processes: dict[tuple[int, str], Standing] | None = None
    found: dict[int, set[str]] = {}
    for uid in owners(home):
        for name, fd in _each(home, uid, all_names=True):
            machine = _read(fd, uid, name)
            if machine is not None and machine.state in ALIVE:
                if processes is None:
                    processes = _processes()
                if (uid, machine.id) in processes:
                    continue
            elif machine is not None:
                continue
            found.setdefault(uid, set()).add(name)
    return {uid: frozenset(names) for uid, names in found.items()}


def anything(home: Home, uid: int, machines: Collection[str]) -> bool:
    """Has an owner one of these machines (an empty name: any), or work that is half done?"""
    with suppress(OSError), _directory(home, uid, "machines") as fd:
        names = os.listdir(fd)
        if any(not one or one in names for one in machines) and names:
            return True
    with suppress(OSError), _directory(home, uid, "cache") as fd:
        return bool(os.listdir(fd))
    return False


def _each(home: Home, uid: int, *, all_names: bool = False) -> Iterator[tuple[str, int]]:
    """The directories of an owner's machines, opened one after the other."""
    with suppress(OSError), _directory(home, uid, "machines") as machines:
        for name in sorted(os.listdir(machines))[:MOST]:
            if not all_names and ID.fullmatch(name) is None:
                continue
            try:
                fd = os.open(name, DIRECTORY, dir_fd=machines)
            except OSError:
                continue
            try:
                yield name, fd
            finally:
                os.close(fd)


@contextmanager
def _directory(home: Home, uid: int, name: str) -> Iterator[int]:
    """A directory of an owner's home, opened; an error, if it is somebody else's or none."""
    fd = os.open(home.owners / str(uid), DIRECTORY)
    try:
        if os.fstat(fd).st_uid != uid:
            raise PermissionError
        inner = os.open(name, DIRECTORY, dir_fd=fd)
    finally:
        os.close(fd)
    try:
        yield inner
    finally:
        os.close(inner)


def _read(directory: int, uid: int, name: str) -> Machine | None:
    try:
        fd = os.open("machine.json", FILE, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_RECORD:
            return None
        machine = RECORDS.decode(os.pread(fd, LARGEST_RECORD, 0))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    finally:
        os.close(fd)
    if machine.id != name or machine.host != os.uname().nodename or not _is_plausible(machine):
        return None
    reason = "".join(one if one.isprintable() else " " for one in machine.reason[:LONGEST_REASON])
    return msgspec.structs.replace(machine, owner=uid, reason=reason)


def _is_plausible(machine: Machine) -> bool:
    """Can Encamp have written this? What makes no sense would be held against the whole host."""
    words = (
        *(machine.name, machine.environment, machine.image, machine.network),
        *(machine.processor, machine.kvm),
    )
    size, largest = machine.size, LARGEST_SIZE
    return (
        all(len(word) <= LONGEST_WORD and word.isprintable() for word in words)
        and 0 < size.cpus <= largest.cpus
        and 0 < size.memory <= largest.memory
        and 0 <= size.disk <= largest.disk
        and 0 <= machine.ssh < 1 << 16
        and all(0 <= moment < LATEST for moment in (machine.created, machine.changed))
    )


def _is_that(machine: Machine, process: Standing | None) -> bool:
    """Is this the machine's process? Nobody has a machine that is larger than the host."""
    size = machine.size
    return (
        process is not None
        and (process.cpus, process.memory) == (size.cpus, size.memory // 1024 * 1024)
        and process.memory <= largest_memory()
        and process.cpus <= (os.cpu_count() or 1)
    )


def _processes() -> dict[tuple[int, str], Standing]:
    """Processes of machines, by the user whose they are and the machine's id as they say it."""
    return {(machine.owner, machine.name): machine for machine in standing()}
