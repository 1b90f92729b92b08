"""Debian's user-mode Linux kernel, for machines whose kernel is an ordinary process of the host's.

The package comes from Debian's newest suite and is unpacked, not installed. It needs a C library
that older releases do not have, which lies beside it; so the kernel is changed in one place: it
takes its dynamic loader from a descriptor. Whoever runs it has the loader open as `LOADER`, the
directory of its libraries as `LIBRARIES`, sets `ENVIRONMENT` and gives it `ARGUMENTS`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from encamp import programs
from encamp.home import Home
from encamp.images import kernel
from encamp.images.apt import Apt
from encamp.images.failures import NETWORK
from encamp.images.kernel import Unpacked
from encamp.images.portion import Aging, Forward, Portion
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.progress import Progress, Silent
from encamp.small_file import read_small
from encamp.workplace import Workplace, clear_cache, remove_tree, workplace

SUITE = "sid"
PACKAGE = "user-mode-linux"

LIBRARIES = 8
LOADER = 9
"""Descriptors that the kernel is started with."""
INTERPRETER = f"/proc/self/fd/{LOADER}"
ENVIRONMENT = {"LD_LIBRARY_PATH": f"/proc/self/fd/{LIBRARIES}"}
ARGUMENTS = ("initcall_blacklist=raid6_init,raid6_select_algo",)
"""For the kernel's command line. Most of its boot (0.8 s) would go into finding out which of its
ways to compute RAID 6 is the fastest; machines have none of that."""

WANTED = ("virtio_console", "squashfs", "overlay", "fuse")
"""Drivers that are not built in there, and that every machine needs."""
DRIVERS = (
    "crypto/",
    "drivers/char/",
    "drivers/virtio/",
    *("fs/fuse/", "fs/overlayfs/", "fs/squashfs/"),
    "lib/",
)
"""Where these are, and what they may depend on. All drivers together fill 170 MB of memory."""
MEMBERS = 1100
"""Roughly how many files the package has."""
SHARED = ("lib64", "x86_64-linux-gnu")
"""Directories in which packages have their shared libraries."""

DAY = 86400.0
SLOT = "usermode_"
ASKED = "usermode.asked"
RECORD = "kernel.json"
PROGRAM = "linux"
LOADER_FILE = "ld.so"
LIBRARIES_DIRECTORY = "lib"

ELF = b"\x7fELF\x02\x01"
"""How files begin that are programs or libraries of 64 bits, the least of them first."""
SEGMENT = struct.Struct("<IIQQQQQQ")
LOADED, DYNAMIC, INTERPRETED = 1, 2, 3
NEEDED, STRINGS = 1, 5


@dataclass(frozen=True)
class UsermodeKernel:
    """A user-mode kernel in the cache. Every account can read its files."""

    release: str
    directory: Path

    @property
    def program(self) -> Path:
        return self.directory / PROGRAM

    @property
    def loader(self) -> Path:
        return self.directory / LOADER_FILE

    @property
    def libraries(self) -> Path:
        """A directory."""
        return self.directory / LIBRARIES_DIRECTORY

    @property
    def modules(self) -> Path:
        """An archive of drivers, as the guest program loads them."""
        return self.directory / Image.MODULES


class File(msgspec.Struct, frozen=True):
    """What a file was when it was put there."""

    size: int
    changed: int
    """In nanoseconds since 1970."""
    sha256: str


class Record(msgspec.Struct, frozen=True):
    """What is in a slot of the cache."""

    release: str
    fetched: float
    files: dict[str, File]
    made_for: tuple[str, ...]
    """Another Encamp may want other drivers, or start the kernel in another way."""


MADE_FOR = (INTERPRETER, *WANTED)


# ── the cache ────────────────────────────────────────────────────────────────────────────────────


def known(home: Home) -> UsermodeKernel | None:
    """The kernel in the cache, if there is one. Quick: files are not read, only looked at."""
    for place, record in records(home):
        if all(is_unchanged(place / name, file) for name, file in record.files.items()):
            return UsermodeKernel(record.release, place)
    return None


def usermode_kernel(home: Home, progress: Progress | None = None) -> UsermodeKernel:
    """The newest kernel of Debian's: from the cache, or fetched.

    The archive is asked once a day. If it cannot be reached, the one in the cache will do.
    """
    found = known(home)
    if found is not None and was_asked(home):
        return found
    check_runnable(home.prepare())
    with Aging(progress or Silent()) as aging:
        portion = Portion(Forward(aging))
        waiting = "waiting: another encamp is fetching packages"
        with locked(home, "packages", waiting, portion) as lock:
            return current(home, lock, portion)


def check_runnable(home: Home) -> None:
    if os.statvfs(home.cache).f_flag & os.ST_NOEXEC:
        raise EncampError(
            Code.CONFIGURATION,
            f"The kernel of a machine is a program, and {home.cache} is mounted so that none runs.",
            "Set ENCAMP_HOME to a directory on another disk.",
        )


def current(home: Home, lock: int, progress: Portion) -> UsermodeKernel:
    # Somebody else may have fetched it while we waited.
    found = whole(home)
    if found is not None and was_asked(home):
        return found
    try:
        clear_cache(home)
        # Told before it is done: meanwhile others use the one that is there.
        note_asked(home)
        return newest(home, lock, found, progress)
    except (EncampError, OSError) as error:
        if found is None:
            raise not_fetched(error) from error
        progress.update("using the kernel that was fetched earlier", 1.0)
        return found


def records(home: Home) -> list[tuple[Path, Record]]:
    """What is in the cache and can be used by this Encamp, the newest first."""
    found = []
    for place in slots(home):
        try:
            record = msgspec.json.decode(read_small(place / RECORD), type=Record)
        except (OSError, msgspec.DecodeError):
            continue
        if record.made_for == MADE_FOR:
            found.append((place, record))
    return sorted(found, key=lambda each: each[1].fetched, reverse=True)


def slots(home: Home) -> Iterator[Path]:
    return shelf(home).glob(f"{SLOT}*")


def shelf(home: Home) -> Path:
    return home.cache / "kernels"


def is_unchanged(path: Path, file: File) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (file.size, file.changed)


def whole(home: Home) -> UsermodeKernel | None:
    """The kernel in the cache, read to the end: it is what was put there."""
    for place, record in records(home):
        try:
            if all(sha256(place / name) == file.sha256 for name, file in record.files.items()):
                return UsermodeKernel(record.release, restamped(place, record))
        except OSError:
            continue
    return None


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def restamped(place: Path, record: Record) -> Path:
    """Of one that was copied, times may be other than they were."""
    files = {name: described(place / name) for name in record.files}
    if files != record.files:
        write_record(place, msgspec.structs.replace(record, files=files))
    return place


def described(path: Path) -> File:
    found = path.stat()
    return File(found.st_size, found.st_mtime_ns, sha256(path))


def write_record(place: Path, record: Record) -> None:
    new = place / f"{RECORD}.new"
    new.write_bytes(msgspec.json.encode(record))
    new.chmod(0o644)
    new.replace(place / RECORD)


def was_asked(home: Home) -> bool:
    """Whether the archive was asked for a newer kernel within the last day."""
    try:
        return 0 <= time.time() - (shelf(home) / ASKED).stat().st_mtime < DAY
    except OSError:
        return False


def note_asked(home: Home) -> None:
    shelf(home).mkdir(exist_ok=True)
    (shelf(home) / ASKED).touch()


def not_fetched(error: EncampError | OSError) -> EncampError:
    what = "There is no kernel for machines of the driver 'usermode', and none could be fetched"
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = Code.DISK_FULL if full else Code.BUILD_FAILED
        return EncampError(code, f"{what}: {error}.", "Make room, or look at the disk.")
    hint = error.hint or "Connect this host to a mirror of Debian's archive."
    return EncampError(
        error.code,
        f"{what}. {error.sentence}",
        f"{hint} Or build a kernel with 'make kernel' in the source tree.",
        transient=error.transient or NETWORK.search(error.detail) is not None,
        detail=error.detail,
    )


# ── the packages ─────────────────────────────────────────────────────────────────────────────────


def newest(
    home: Home, lock: int, present: UsermodeKernel | None, progress: Portion
) -> UsermodeKernel:
    """The kernel that Debian's archive has now: the present one, or fetched."""
    with workplace(home, "kernel") as work:
        apt = Apt(home.cache / f"apt-{SUITE}", SUITE, hold=(work.lock, lock))
        apt.update(progress.part(0, 0.3))
        said = apt.show(PACKAGE)
        beside = dependencies(said)
        versions = [said["Version"], *(apt.show(package)["Version"] for package in beside)]
        place = shelf(home) / f"{SLOT}{'_'.join(versions)}"
        if present is None or present.directory != place:
            release = fetch(apt, work, beside, place, progress.part(0.3, 1))
            # Somebody may be about to start the one that was the newest until now.
            keep = (place, present and present.directory)
            for old in slots(home):
                if old not in keep:
                    remove_tree(old)
            present = UsermodeKernel(release, place)
    progress.update("kernel ready", 1.0)
    return present


def dependencies(said: Mapping[str, str]) -> list[str]:
    """The packages that a package depends on; of alternatives, the first."""
    entries = said.get("Depends", "").split(",")
    return [entry.split()[0].partition(":")[0] for entry in entries if entry.strip()]


def fetch(apt: Apt, work: Workplace, beside: list[str], place: Path, progress: Portion) -> str:
    """Put a kernel and what it needs in place; its release."""
    hold = (work.lock,)
    deb = apt.download(PACKAGE, work.directory, progress.part(0, 0.6))
    unpacked = unpack(deb, progress.part(0.6, 0.9), hold)
    shared: dict[str, bytes] = {}
    for package in beside:
        deb = apt.download(package, work.directory, progress.part(0.9, 1.0))
        shared |= libraries_in(deb, hold)
    result = work.directory / "result"
    lay_out(result, unpacked, shared)
    place.parent.mkdir(exist_ok=True)
    remove_tree(place)
    result.rename(place)
    return unpacked.release


def unpack(deb: Path, progress: Portion, hold: tuple[int, ...] = ()) -> Unpacked:
    """Read the kernel's package as a stream: unpacked it would fill 180 MB of disk."""
    what = "unpacking the kernel"
    release, program, built_in = "", b"", frozenset[str]()
    drivers: dict[str, tuple[str, bytes]] = {}
    with (
        programs.stream(["dpkg-deb", "--fsys-tarfile", deb], purpose=what, hold=hold) as stream,
        tarfile.open(fileobj=stream, mode="r|") as members,
    ):
        for count, member in enumerate(members):
            path = PurePosixPath(member.name)
            if count % 50 == 0:
                progress.update(what, count / MEMBERS)
            if not member.isfile():
                continue
            if path.name == "linux.uml":
                program = kernel.content(members, member)
            elif path.name == "modules.builtin":
                release = path.parent.name
                names = kernel.content(members, member).decode().splitlines()
                built_in = frozenset(kernel.driver_name(PurePosixPath(name).name) for name in names)
            elif member.name.partition("/kernel/")[2].startswith(DRIVERS):
                data = kernel.content(members, member)
                drivers[kernel.driver_name(path.name)] = kernel.driver(path, data)
    if not program or not release:
        raise EncampError(Code.BUILD_FAILED, f"The Debian package {deb.name} holds no kernel.")
    return Unpacked(release, program, drivers, built_in)


def libraries_in(deb: Path, hold: tuple[int, ...] = ()) -> dict[str, bytes]:
    """The shared libraries of a package, by all of their names."""
    what = "unpacking the kernel's libraries"
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    with (
        programs.stream(["dpkg-deb", "--fsys-tarfile", deb], purpose=what, hold=hold) as stream,
        tarfile.open(fileobj=stream, mode="r|") as members,
    ):
        for member in members:
            path = PurePosixPath(member.name)
            if path.parent.name not in SHARED or ".so" not in path.name:
                continue
            if member.isfile():
                files[path.name] = kernel.content(members, member)
            elif member.issym():
                links[path.name] = PurePosixPath(member.linkname).name
    return {name: files[to] for name, to in links.items() if to in files} | files


def lay_out(result: Path, unpacked: Unpacked, shared: Mapping[str, bytes]) -> None:
    """Write what a slot of the cache holds, readable for every account: root's machines run as
    another one."""
    libraries = needed_with(unpacked.vmlinuz, shared)
    loader = libraries.pop(interpreter(unpacked.vmlinuz).name)
    contents = {
        PROGRAM: with_interpreter(unpacked.vmlinuz, INTERPRETER),
        LOADER_FILE: loader,
        Image.MODULES: modules_archive(unpacked),
        **{f"{LIBRARIES_DIRECTORY}/{name}": data for name, data in libraries.items()},
    }
    for directory in (result, result / LIBRARIES_DIRECTORY):
        directory.mkdir()
        directory.chmod(0o755)
    for name, data in contents.items():
        (result / name).write_bytes(data)
        (result / name).chmod(0o755 if name in (PROGRAM, LOADER_FILE) else 0o644)
    files = {name: described(result / name) for name in contents}
    write_record(result, Record(unpacked.release, time.time(), files, MADE_FOR))


def modules_archive(unpacked: Unpacked) -> bytes:
    """Of what machines of QEMU want, most is for devices that these do not have."""
    passed_over = unpacked.built_in | (frozenset(kernel.WANTED) - frozenset(WANTED))
    parts = unpacked.release, unpacked.vmlinuz, unpacked.drivers, passed_over
    return kernel.modules_archive(Unpacked(*parts))


# ── programs and libraries ───────────────────────────────────────────────────────────────────────


class Segment(NamedTuple):
    """A part of a program's file, and where it is when the program runs."""

    kind: int
    offset: int
    address: int
    size: int


def needed_with(program: bytes, shared: Mapping[str, bytes]) -> dict[str, bytes]:
    """The loader of a program and the libraries it needs, with those that these need."""
    names = [interpreter(program).name, *needed(program)]
    chosen: dict[str, bytes] = {}
    # Grows meanwhile.
    for name in names:
        if name not in shared:
            raise EncampError(
                Code.BUILD_FAILED,
                f"Debian's kernel needs {name}, which no package it depends on has.",
            )
        if name not in chosen:
            chosen[name] = shared[name]
            names += needed(shared[name])
    return chosen


def needed(elf: bytes) -> list[str]:
    """The libraries that a program or a library asks for by name."""
    parts = segments(elf)
    entries = [
        (tag, value)
        for part in parts
        if part.kind == DYNAMIC
        for tag, value in struct.iter_unpack("<QQ", elf[part.offset : part.offset + part.size])
    ]
    found = []
    for tag, value in entries:
        if tag == NEEDED:
            start = offset_of(dict(entries)[STRINGS], parts) + value
            found.append(elf[start : elf.index(b"\0", start)].decode())
    return found


def interpreter(elf: bytes) -> PurePosixPath:
    """The dynamic loader that a program names."""
    place = interpreter_place(elf)
    return PurePosixPath(elf[place.offset : place.offset + place.size].rstrip(b"\0").decode())


def with_interpreter(elf: bytes, path: str) -> bytes:
    """The program with another dynamic loader, in the room that the name of the first takes."""
    place = interpreter_place(elf)
    if len(path) >= place.size:
        raise unknown_kind()
    end = place.offset + place.size
    return elf[: place.offset] + path.encode().ljust(place.size, b"\0") + elf[end:]


def interpreter_place(elf: bytes) -> Segment:
    for part in segments(elf):
        if part.kind == INTERPRETED:
            return part
    raise unknown_kind()


def segments(elf: bytes) -> list[Segment]:
    if not elf.startswith(ELF):
        raise unknown_kind()
    (start,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    found = []
    for number in range(count):
        kind, _, offset, address, _, length, *_ = SEGMENT.unpack_from(elf, start + number * size)
        found.append(Segment(kind, offset, address, length))
    return found


def offset_of(address: int, parts: list[Segment]) -> int:
    """Where in its file something is that has this address when the program runs."""
    for part in parts:
        if part.kind == LOADED and part.address <= address < part.address + part.size:
            return part.offset + address - part.address
    raise unknown_kind()


def unknown_kind() -> EncampError:
    return EncampError(
        Code.BUILD_FAILED, "Debian's user-mode kernel is not the kind of program known here."
    )
