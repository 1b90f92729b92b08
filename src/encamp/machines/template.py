"""Templates on disk: found by everything that must match, checked cheaply, never half there."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp import programs
from encamp.home import SYSTEM_HOME, Home
from encamp.images.records import links
from encamp.images.store import ImageStore
from encamp.machines import volumes
from encamp.machines.engine import Clone
from encamp.machines.hardware import Hardware
from encamp.machines.plain_file import plain_file
from encamp.machines.processor import kvm_release, processor
from encamp.machines.qemu import KERNEL_ARGUMENTS, PROGRAM
from encamp.model.driver import DriverName
from encamp.model.errors import EncampError
from encamp.model.image import Image
from encamp.model.size import MIB
from encamp.small_file import read_small

FORMAT = 6
"""Raised when templates made by earlier versions of this code can no longer be used."""
LIMIT = 2048 * MIB
"""Bytes that the templates of one home may take, if its settings do not say."""


class Stamp(msgspec.Struct, frozen=True):
    """A file as it was when it was known to be whole. Nobody writes to it without changing this.
    (The time of its last change of any kind is no part: linking to it would count.)"""

    size: int
    modified: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        found = path.stat()
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


class Template(msgspec.Struct, frozen=True):
    """An environment booted once on this host and frozen at the moment it was ready."""

    key: str
    environment: str
    image: str
    hardware: Hardware
    qemu: str
    created: float
    seconds: float
    """How long it took to make."""
    stamps: dict[str, Stamp]
    digests: dict[str, str]


MEMORY = "memory"
STATE = "state"
CONSOLE = "console"
RECORD = "template.json"


class TemplateStore:
    def __init__(self, home: Home, shared: Path | None = SYSTEM_HOME) -> None:
        """`shared`: the home whose images serve this one, too."""
        self.home = home
        self._shared = shared

    def directory(self, key: str) -> Path:
        return self.home.templates / key

    def origin(self, template: Template) -> Clone:
        directory = self.directory(template.key)
        with suppress(OSError):
            os.utime(directory)  # It is in use.
        return Clone(memory=directory / MEMORY, state=directory / STATE)

    def find(self, key: str) -> Template | None:
        """The template, if it is there and nothing has touched its files since it was made."""
        template = self._read(key)
        if template is None:
            return None
        directory = self.directory(key)
        try:
            intact = all(
                Stamp.of(directory / name) == stamp for name, stamp in template.stamps.items()
            )
        except OSError:
            return None
        return template if intact else None

    def whole(self, template: Template) -> bool:
        """Read the files through and compare: for a template that a machine would not wake from."""
        directory = self.directory(template.key)
        try:
            return all(
                file_digest(directory / name) == digest for name, digest in template.digests.items()
            )
        except OSError:
            return False

    def is_open_to(self, template: Template, user: tuple[int, int] | None) -> bool:
        """Can a machine's process of this user and group have its memory? The account that root's
        machines run as may have been made anew since. None: whoever we are can."""
        try:
            memory = (self.directory(template.key) / MEMORY).stat()
        except OSError:
            return False
        return user is None or memory.st_gid == user[1]

    def keys(self) -> list[str]:
        """All there are, also those whose record cannot be read."""
        return sorted(directory.name for directory in self.home.templates.iterdir())

    def ls(self) -> list[tuple[Template, bool]]:
        """All templates, each with whether it can be used."""
        found = []
        for key in self.keys():
            template = self._read(key)
            if template is not None:
                found.append((template, self.find(template.key) is not None))
        return found

    def remove(self, key: str) -> None:
        """Machines cloned from it live on: they hold its files open."""
        directory = self.directory(key)
        # The record goes first: what is left without one is rubbish to everybody.
        (directory / RECORD).unlink(missing_ok=True)
        if volumes.release(directory):
            shutil.rmtree(directory, ignore_errors=True)

    def keep(self, template: Template, made: Path) -> None:
        """Take over a directory with a template's files."""
        (made / RECORD).write_bytes(msgspec.json.encode(template))
        (made / RECORD).chmod(0o600)
        self.remove(template.key)
        made.rename(self.directory(template.key))
        self._remove_outdated(template)

    def _remove_outdated(self, newest: Template) -> None:
        """What nobody will clone from any more, now that there is a newest one. So goes anything
        that no longer reads as a template."""
        images = ImageStore(self.home, self._shared)
        for key in self.keys():
            other = self._read(key)
            if key != newest.key and (other is None or _outdated(other, newest, images)):
                self.remove(key)

    def make_room(self, limit: int, needed: Collection[str]) -> None:
        """Have those that are there take no more than this: the ones go that have served nobody for
        longest. `needed`: removing these would free nothing, since machines hold their files."""
        taken = {template.key: self.size(template) for template, _ in self.ls()}
        for key in sorted(taken, key=self._last_used):
            if sum(taken.values()) <= limit:
                return
            if key not in needed:
                self.remove(key)
                del taken[key]

    def _last_used(self, key: str) -> float:
        with suppress(OSError):
            return self.directory(key).stat().st_mtime
        return 0.0

    def size(self, template: Template) -> int:
        """Bytes on disk; a memory file is mostly holes. 0 if it is just being removed."""
        directory = self.directory(template.key)
        with suppress(FileNotFoundError):
            return sum((directory / name).stat().st_blocks * 512 for name in template.stamps)
        return 0

    def _read(self, key: str) -> Template | None:
        try:
            data = read_small(self.directory(key) / RECORD)
            return msgspec.json.decode(data, type=Template)
        except (OSError, msgspec.MsgspecError):
            return None


def _outdated(other: Template, newest: Template, images: ImageStore) -> bool:
    """Whether its image is gone; or was built anew for the environment since, so that the old one
    has no name any more; or the newest is the same but for another QEMU or guest program. Images
    with a name are asked for in turn, and each keeps its templates."""
    if images.by_digest(other.image) is None:
        return True
    if other.environment != newest.environment:
        return False
    if other.image == newest.image:
        return other.hardware == newest.hardware
    named = {link.digest for home in images.homes for link in links(home).values()}
    return newest.image in named and other.image not in named


def template_key(
    image: Image, hardware: Hardware, arguments: tuple[str, ...], guest_program: Path
) -> str:
    """Two machines may share a template only if all of this is the same."""
    program = programs.find(PROGRAM).resolve().stat()
    parts = (
        FORMAT,
        image.digest,
        hardware.digest(),
        (*KERNEL_ARGUMENTS, *arguments),
        (program.st_size, program.st_mtime_ns, program.st_ino),
        file_digest(guest_program),
        (processor(), kvm_release()) if hardware.driver is DriverName.KVM else platform.machine(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def qemu_version() -> str:
    printed = programs.run([PROGRAM, "--version"], purpose="asking QEMU for its version")
    return printed.split("\n", 1)[0].removeprefix("QEMU emulator version ")


def punch_holes(path: Path) -> None:
    """Give back the blocks of a file that hold nothing but zeros. A guest has written to a good
    part of its memory when it boots that is empty again once it has come up."""
    command = ["fallocate", "--dig-holes", str(path)]
    # Not every file system can; all else is the same.
    with suppress(EncampError):
        programs.run(command, purpose="making the template's memory sparse")


def freeze_file(path: Path, user: tuple[int, int] | None) -> None:
    """From now on nobody is to write to it, and only a machine's process of this user, or else of
    ours, is to read it: with a guest's memory in it, it is for nobody else to know."""
    with plain_file(path, sole=True) as fd:
        os.fchown(fd, os.geteuid(), os.getegid() if user is None else user[1])
        os.fchmod(fd, 0o400 if user is None else 0o440)
