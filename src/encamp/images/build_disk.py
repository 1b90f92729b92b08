"""Taking a ready disk, raw or qcow2, as an image.

Whatever it came as, it becomes a qcow2 file of our own making: machines never open what somebody
else wrote, and the same disk makes the same image.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from encamp import programs
from encamp.images.portion import Portion
from encamp.images.qcow2 import MAGIC, read_qcow2
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import Compression, Recipe
from encamp.model.size import MIB, format_bytes
from encamp.workplace import Workplace

SECTOR = 512
LARGEST = 16 << 40
"""Beyond this a size is a mistake, or somebody's trick."""
MEMORY = 4 << 30
"""What QEMU's program may use, whatever the file makes it do."""
SMALLEST_FRACTION = 5
"""A disk seldom shrinks to less than a fifth when it is compressed."""

FOREIGN = {
    b"KDMV": "a VMware disk (VMDK)",
    b"COWD": "a VMware disk (VMDK)",
    b"<<< ": "a VirtualBox disk (VDI)",
    b"vhdxfile": "a Hyper-V disk (VHDX)",
    b"conectix": "a Virtual PC disk (VHD)",
    b"QED\x00": "a QED disk",
}
PACKED = {
    b"\x1f\x8b": "gunzip",
    b"\xfd7zXZ\x00": "unxz",
    b"(\xb5/\xfd": "unzstd",
    b"BZh": "bunzip2",
    b"PK\x03\x04": "unzip",
}

COMPRESSIONS: dict[Compression, tuple[str, ...]] = {
    Compression.ZSTD: ("-c", "-o", "compression_type=zstd"),
    Compression.GZIP: ("-c", "-o", "compression_type=zlib"),
    Compression.NONE: (),
}
"""What qcow2 knows, as QEMU's words."""

DONE = re.compile(r"\((\d+\.\d+)/100%\)")
PARTITION = struct.Struct("<B3sB3sII")
PROTECTIVE = 0xEE
LARGE_MAGIC = b"EFI PART"
LARGE_TABLE = struct.Struct("<8s24xQ")
"""The beginning of a GPT: what it is, and the sector of its copy."""


class Report(msgspec.Struct):
    """What `qemu-img check` tells about a qcow2 file, as far as it speaks against it."""

    check_errors: int = msgspec.field(name="check-errors")
    corruptions: int = 0


def import_disk(recipe: Recipe, work: Workplace, result: Path, progress: Portion) -> None:
    """Put the recipe's disk into `result`, checked; or say what is wrong with it."""
    check_recipe(recipe)
    source = Path(recipe.source or "")
    with opened(source) as file:
        kind = check_source(source, file)
        check_room(source, file, recipe, result)
        readable = own_copy(file, work, progress) if others_may_write(file) else file
        try:
            if readable != file:
                kind = check_source(source, readable)
            if kind == "qcow2":
                check_whole(source, readable, work)
            convert(recipe, kind, readable, work, result, progress)
        finally:
            if readable != file:
                os.close(readable)
    check_boot_record(source, first_sector(result / Image.DISK, work))


def check_recipe(recipe: Recipe) -> None:
    added = (("packages", recipe.packages), ("files", recipe.files), ("run", recipe.run))
    for name, value in added:
        if value:
            raise EncampError(
                Code.CONFIGURATION,
                f"Image '{recipe.name}' is a disk, which is taken as it is: it cannot have"
                f" '{name}'.",
                "Hand files and commands to each machine with the environment's 'context'.",
            )
    if recipe.compression not in COMPRESSIONS:
        names = ", ".join(known.value for known in COMPRESSIONS)
        raise EncampError(
            Code.CONFIGURATION,
            f"Image '{recipe.name}' is a disk, which cannot be compressed with"
            f" '{recipe.compression.value}'.",
            f"Use one of: {names}.",
        )


@contextmanager
def opened(source: Path) -> Iterator[int]:
    """The file, held open: what was checked is what is read, whatever the path leads to later."""
    try:
        file = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise EncampError(
            Code.INPUT_MISSING,
            f"The disk {source} cannot be read: {error.strerror}.",
            "Name a raw or qcow2 file of this host.",
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise EncampError(
                Code.INPUT_MISSING,
                f"The disk {source} is not a file.",
                "Name a raw or qcow2 file; a device can be copied to one with 'qemu-img convert'.",
            )
        yield file
    finally:
        os.close(file)


def check_source(source: Path, file: int) -> str:
    """The file's format. Only what can be told from its first bytes, before anybody else opens
    it."""
    head = os.pread(file, SECTOR, 0)
    if head.startswith(MAGIC):
        header = read_qcow2(file)
        if header is None:
            raise unfit(source, "is only the beginning of a qcow2 file", again=True)
        why = header.refusal()
        if why is not None:
            raise unfit(source, why, "Flatten it first: qemu-img convert -O qcow2 OLD NEW.")
        check_size(source, header.size)
        return "qcow2"
    for magic, name in FOREIGN.items():
        if head.startswith(magic):
            raise unfit(source, f"is {name}", "Convert it: qemu-img convert -O qcow2 OLD NEW.")
    for magic, program in PACKED.items():
        if head.startswith(magic):
            raise unfit(source, "is a compressed file", f"Unpack it first, with {program}.")
    size = os.fstat(file).st_size
    check_size(source, size)
    check_boot_record(source, head)
    check_partitions(source, head, size)
    check_large_table(source, os.pread(file, LARGE_TABLE.size, SECTOR), size)
    return "raw"


def check_size(source: Path, size: int) -> None:
    if size > LARGEST:
        raise unfit(source, f"claims to hold {format_bytes(size)}, more than any host has")


def check_boot_record(source: Path, sector: bytes) -> None:
    """Is there anything that a machine could begin with?"""
    if len(sector) < SECTOR or sector[510:512] != b"\x55\xaa":
        raise unfit(
            source,
            "is not a disk that boots: its first sector is no boot record",
            "Name a raw or qcow2 disk with a partition table and a boot loader, such as a"
            " distribution's cloud image. A root file system alone is of kind 'rootfs'.",
        )
    if not any(sector[:440]):
        raise unfit(
            source,
            "has no boot loader for a BIOS: it may boot with UEFI, which machines do not have",
            "Use the variant of it that boots with a BIOS, too.",
        )


def check_partitions(source: Path, sector: bytes, size: int) -> None:
    for number in range(4):
        *_, kind, _, start, count = PARTITION.unpack_from(sector, 446 + 16 * number)
        # One that keeps old programs off a disk with a larger table may claim more than there is.
        if kind not in (0, PROTECTIVE) and (start + count) * SECTOR > size:
            raise unfit(source, f"ends before its partition {number + 1} does", again=True)


def check_large_table(source: Path, header: bytes, size: int) -> None:
    """A partition table of the larger kind (GPT) has a copy at the end of the disk."""
    if header.startswith(LARGE_MAGIC) and len(header) == LARGE_TABLE.size:
        _, copy = LARGE_TABLE.unpack(header)
        if (copy + 1) * SECTOR > size:
            raise unfit(source, "ends before its partition table says that it does", again=True)


def check_room(source: Path, file: int, recipe: Recipe, result: Path) -> None:
    """What is certain to fail for lack of disk is not even begun."""
    held = os.fstat(file).st_blocks * SECTOR
    needed = held if recipe.compression is Compression.NONE else held // SMALLEST_FRACTION
    free = shutil.disk_usage(result).free
    if needed > free:
        raise EncampError(
            Code.DISK_FULL,
            f"The disk {source} does not fit: it takes at least {format_bytes(needed // MIB * MIB)}"
            f" and {format_bytes(free // MIB * MIB)} are free.",
            "Make room, or set ENCAMP_HOME to a directory on a larger disk.",
        )


def others_may_write(file: int) -> bool:
    found = os.fstat(file)
    return found.st_uid not in (0, os.geteuid()) or bool(found.st_mode & 0o022)


def own_copy(file: int, work: Workplace, progress: Portion) -> int:
    """A copy that nobody else can change between our check and QEMU's reading."""
    progress.update("copying the disk")
    path = work.directory / "source"
    with open(file, "rb", closefd=False) as reading, path.open("xb") as writing:
        while piece := reading.read(MIB):
            # What is empty stays a hole.
            if piece.count(0) == len(piece):
                writing.seek(len(piece), os.SEEK_CUR)
            else:
                writing.write(piece)
        writing.truncate()
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def check_whole(source: Path, file: int, work: Workplace) -> None:
    """QEMU reads zeros where a qcow2 file was cut off, so its tables are checked before."""
    words = ["check", "--output=json", "-f", "qcow2", open_path(file)]
    try:
        said = qemu_img(words, file, work, "checking the disk")
    except EncampError as error:
        # It also fails over room that is only wasted.
        if error.code is not Code.BUILD_FAILED:
            raise
        said = error.detail
    _, brace, rest = said.partition("{")
    try:
        report = msgspec.json.decode(brace + rest, type=Report)
    except msgspec.MsgspecError as error:
        raise unfit(source, "is damaged", again=True, detail=said) from error
    if report.corruptions or report.check_errors:
        raise unfit(source, "is damaged or not complete", again=True, detail=said)


def convert(
    recipe: Recipe, kind: str, file: int, work: Workplace, result: Path, progress: Portion
) -> None:
    what = "importing the disk"

    def read(line: str) -> float | None:
        found = DONE.search(line)
        return None if found is None else float(found[1]) / 100

    command = ["convert", "-p", "-f", kind, "-O", "qcow2", *COMPRESSIONS[recipe.compression]]
    target = result / Image.DISK
    on_line = progress.reader(what, read)
    qemu_img([*command, open_path(file), str(target)], file, work, what, on_line)
    progress.update(what, 1.0)


def first_sector(disk: Path, work: Workplace) -> bytes:
    path = work.directory / "first-sector"
    what = "reading the disk's boot record"
    words = ["dd", "-f", "qcow2", "-O", "raw", f"bs={SECTOR}", "count=1"]
    qemu_img([*words, f"if={disk}", f"of={path}"], work.lock, work, what)
    return path.read_bytes()


def qemu_img(
    words: list[str],
    file: int,
    work: Workplace,
    purpose: str,
    on_line: Callable[[str], None] | None = None,
) -> str:
    limited = ("prlimit", f"--as={MEMORY}", "--", str(programs.find("qemu-img")))
    return programs.run(
        [*limited, *words],
        purpose=purpose,
        hold=(work.lock, file),
        on_line=on_line,
    )


def open_path(file: int) -> str:
    return f"/proc/self/fd/{file}"


def unfit(
    source: Path, why: str, hint: str = "", *, again: bool = False, detail: str = ""
) -> EncampError:
    if again:
        hint = "Fetch it again, and compare its checksum with the one that was published."
    return EncampError(Code.BUILD_FAILED, f"The disk {source} {why}.", hint, detail=detail)
