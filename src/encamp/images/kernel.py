"""Debian's kernel and the drivers a machine needs before its root file system is there.

The package is unpacked, not installed. What is made of it is kept in the cache, since every
image built from the same kernel uses the same files.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from encamp import cpio, programs
from encamp.home import Home
from encamp.images.apt import Apt
from encamp.images.portion import Portion
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.small_file import read_small
from encamp.workplace import remove_tree, workplace

WANTED = (
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "virtio_net",
    "squashfs",
    "overlay",
    "fuse",
    # ext4 asks for this one by what it does, not by its name.
    "crc32c_generic",
    "ext4",
    # For devices that environments may ask for.
    "virtio_balloon",
    "virtio_rng",
    "i6300esb",
)
"""Drivers, in the order in which they are wanted; what each depends on comes before it."""

VERSIONED = re.compile(r"linux-image-\d[^ ,()]*")
DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
MEMBERS = 4500
"""Roughly how many files a kernel's package has."""


@dataclass(frozen=True)
class Kernel:
    """A kernel in the cache."""

    release: str
    directory: Path

    @property
    def files(self) -> tuple[Path, Path]:
        return self.directory / Image.KERNEL, self.directory / Image.MODULES


class KernelRecord(msgspec.Struct):
    """What is in the cache, and that it still is what was put there."""

    release: str
    sha256: dict[str, str]
    wanted: tuple[str, ...] = ()
    """Drivers that were asked for: another Encamp may want others."""


def get_kernel(home: Home, apt: Apt, package: str, progress: Portion) -> Kernel:
    """The newest kernel of the suite: from the cache, or fetched. Call with the lock held."""
    said = apt.show(package)
    versioned = VERSIONED.search(said.get("Depends", ""))
    if versioned is None:
        raise EncampError(
            Code.BUILD_FAILED, f"The Debian package '{package}' depends on no kernel."
        )
    slot = f"{apt.suite}_{package}_"
    place = home.cache / "kernels" / f"{slot}{versioned[0]}_{said['Version']}"
    kernel = cached(place)
    if kernel is None:
        kernel = fetch(home, apt, versioned[0], place, progress)
        # One of each kind is kept: the others are older, or were found damaged.
        for old in place.parent.glob(f"{slot}*"):
            if old != place:
                remove_tree(old)
    progress.update("kernel ready", 1.0)
    return kernel


def cached(place: Path) -> Kernel | None:
    try:
        record = msgspec.json.decode(read_small(place / "kernel.json"), type=KernelRecord)
        whole = all(
            hashlib.sha256((place / name).read_bytes()).hexdigest() == sha256
            for name, sha256 in record.sha256.items()
        )
    except (OSError, msgspec.DecodeError):
        return None
    return Kernel(record.release, place) if whole and record.wanted == WANTED else None


def fetch(home: Home, apt: Apt, package: str, place: Path, progress: Portion) -> Kernel:
    with workplace(home, "kernel") as work:
        deb = apt.download(package, work.directory, progress.part(0, 0.7))
        unpacked = unpack(deb, progress.part(0.7, 1.0), hold=(work.lock,))
        result = work.directory / "result"
        result.mkdir()
        contents = {Image.KERNEL: unpacked.vmlinuz, Image.MODULES: modules_archive(unpacked)}
        for name, data in contents.items():
            (result / name).write_bytes(data)
        sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
        record = KernelRecord(unpacked.release, sums, WANTED)
        (result / "kernel.json").write_bytes(msgspec.json.encode(record))
        place.parent.mkdir(exist_ok=True)
        remove_tree(place)
        result.rename(place)
    return Kernel(unpacked.release, place)


@dataclass(frozen=True)
class Unpacked:
    """What is taken out of a kernel's package."""

    release: str
    vmlinuz: bytes
    drivers: dict[str, tuple[str, bytes]]
    """Every driver's path and content, by its name."""
    built_in: frozenset[str]


def unpack(deb: Path, progress: Portion, hold: tuple[int, ...] = ()) -> Unpacked:
    """Read a kernel's package as a stream: unpacked it would fill 400 MB of disk."""
    what = "unpacking the kernel"
    release, vmlinuz, built_in = "", b"", frozenset[str]()
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
            if path.name.startswith("vmlinuz-"):
                release = path.name.removeprefix("vmlinuz-")
                vmlinuz = content(members, member)
            elif path.name == "modules.builtin":
                built_in = frozenset(
                    driver_name(PurePosixPath(line).name)
                    for line in content(members, member).decode().splitlines()
                )
            elif ".ko" in path.suffixes[-2:] and worth_keeping(path):
                drivers[driver_name(path.name)] = driver(path, content(members, member))
    if not vmlinuz:
        raise EncampError(Code.BUILD_FAILED, f"The Debian package {deb.name} holds no kernel.")
    return Unpacked(release, vmlinuz, drivers, built_in)


def worth_keeping(path: PurePosixPath) -> bool:
    """Whether a driver can be needed at all: a kernel has 4000, most of them for hardware."""
    parts = path.parts
    if "kernel" not in parts:
        return False
    area, *rest = parts[parts.index("kernel") + 1 :]
    if area == "drivers":
        return rest[0] in ("virtio", "watchdog") or "hw_random" in rest or len(rest) == 2
    return area in ("arch", "crypto", "fs", "lib", "net")


def content(members: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = members.extractfile(member)
    assert file is not None
    return file.read()


def driver(path: PurePosixPath, data: bytes) -> tuple[str, bytes]:
    """A driver as the kernel loads it: newer suites compress theirs."""
    if path.suffix == ".xz":
        return path.stem, lzma.decompress(data)
    if path.suffix != ".ko":
        raise EncampError(Code.BUILD_FAILED, f"Cannot read the kernel's driver {path.name}.")
    return path.name, data


def driver_name(file: str) -> str:
    return file.partition(".ko")[0].replace("-", "_")


def load_order(unpacked: Unpacked) -> list[str]:
    """The wanted drivers and all they depend on, each after what it depends on."""
    order: list[str] = []

    def add(name: str, wanted_by: str) -> None:
        if name in order or name in unpacked.built_in:
            return
        if name not in unpacked.drivers:
            raise EncampError(
                Code.BUILD_FAILED,
                f"Kernel {unpacked.release} lacks the driver '{name}', which {wanted_by} needs.",
            )
        depends = DEPENDS.search(unpacked.drivers[name][1])
        for other in depends[1].decode().split(",") if depends and depends[1] else []:
            add(other.replace("-", "_"), f"driver '{name}'")
        order.append(name)

    for name in WANTED:
        add(name, "every machine")
    return order


def modules_archive(unpacked: Unpacked) -> bytes:
    chosen = [unpacked.drivers[name] for name in load_order(unpacked)]
    order = "".join(f"{file}\n" for file, _ in chosen).encode()
    return cpio.archive(
        [
            cpio.directory("modules"),
            cpio.Entry("modules/order", order),
            *(cpio.Entry(f"modules/{file}", data) for file, data in chosen),
        ]
    )
