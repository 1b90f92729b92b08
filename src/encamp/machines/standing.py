"""Machines that stand on this host, anybody's, as the kernel shows their processes.

Anybody can call a process what he likes. So a process counts as a machine only if its program is a
QEMU that root, or whoever looks, has installed; and it is the machine of the user whom it runs as,
whatever it says. At the programs of other users only root may look.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from pathlib import Path

import msgspec

from encamp.machines.account import ACCOUNT
from encamp.machines.hardware import TRANSLATION_BUFFER
from encamp.model.size import MIB

OWN = 16 * MIB
"""What QEMU needs for itself, beside the guest's memory and a full translation buffer."""

NAME = re.compile(rb"encamp-[0-9a-z]+")
BUFFER = re.compile(rb"\btb-size=(\d{1,6})\b")
SUPERVISOR = b"encamp-supervis\n"
COMMANDS = frozenset({b"qemu-system-x86\n", b"encamp-launch\n", SUPERVISOR})
"""As the kernel calls such processes, in 15 letters; and whoever calls himself so."""
PROGRAMS = ("qemu-system-", "encamp-launch", "encamp-supervisor")
"""How the names of their programs begin."""
WRITABLE = stat.S_IWGRP | stat.S_IWOTH
PAGE = os.sysconf("SC_PAGE_SIZE")


class Standing(msgspec.Struct, frozen=True):
    """A machine's process on this host, anybody's."""

    pid: int
    owner: int
    """The user whose it is: root's machines run as an account of their own."""
    name: str
    """The machine's id, or what it is for if it is none of anybody's."""
    cpus: int
    memory: int
    """What it was promised."""
    used: int
    """What of that it holds now."""
    overhead: int
    """What its process may need beside that."""
    is_file: bool = False
    """Its memory is a file, and takes room where such files are."""

    @property
    def growth(self) -> int:
        return max(0, self.memory + self.overhead - self.used)


def standing() -> list[Standing]:
    """All machines on this host."""
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/comm", "rb") as file:
                if file.read(32) not in COMMANDS:
                    continue
            if _is_disguised(pid):
                continue
            found.append(_read(pid))
        except (OSError, ValueError, IndexError):
            continue  # It ended while we looked, or is not ours.
    return _owned(found) if found else []


def _read(pid: str) -> Standing:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    supervised = b"--name" in words
    name = words[words.index(b"--name" if supervised else b"-name") + 1]
    if not NAME.fullmatch(name):
        raise ValueError("no machine is called that")
    if supervised:
        return _read_supervised(pid, name, words)
    _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    sizes = [int(size) for word in words for size in BUFFER.findall(word)]
    return Standing(
        pid=int(pid),
        owner=os.stat(f"/proc/{pid}").st_uid,  # noqa: PTH116
        name=name.removeprefix(b"encamp-").decode(),
        cpus=int(words[words.index(b"-smp") + 1]) if b"-smp" in words else 1,
        memory=int(words[words.index(b"-m") + 1].removesuffix(b"K")) * 1024,
        used=(resident - shared) * PAGE,
        overhead=OWN + max(sizes, default=TRANSLATION_BUFFER["ordinary"]) * MIB,
    )


def _read_supervised(pid: str, name: bytes, words: list[bytes]) -> Standing:
    """A user-mode kernel is a child of the process that has the machine's name."""
    memory = int(words[words.index(b"--memory") + 1].removesuffix(b"K")) * 1024
    used = 0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        for line in Path(f"/proc/{child}/status").read_text().splitlines():
            if line.startswith(("RssShmem:", "RssAnon:")):
                used += int(line.split()[1]) * 1024
    return Standing(
        pid=int(pid),
        owner=os.stat(f"/proc/{pid}").st_uid,  # noqa: PTH116
        name=name.removeprefix(b"encamp-").decode(),
        cpus=1,
        memory=memory,
        used=used,
        overhead=OWN + memory // 64,
        is_file=True,
    )


def _is_disguised(pid: str) -> bool:
    """Is its program none that makes machines, as far as we may look?"""
    path = f"/proc/{pid}/exe"
    try:
        program = os.stat(path)  # noqa: PTH116
        name = os.readlink(path)  # noqa: PTH115
    except PermissionError:
        return False
    installed = program.st_uid in (0, os.geteuid()) and not program.st_mode & WRITABLE
    return not (installed and os.path.basename(name).startswith(PROGRAMS))  # noqa: PTH119


def _owned(found: list[Standing]) -> list[Standing]:
    """Each is the user's whom its process runs as, and those of root's account are root's."""
    try:
        account = pwd.getpwnam(ACCOUNT).pw_uid
    except KeyError:
        return found
    return [
        msgspec.structs.replace(machine, owner=0) if machine.owner == account else machine
        for machine in found
    ]
