"""The content of an image's files: hashing it, comparing it, writing it so that it stays."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from encamp.model.errors import Code, EncampError
from encamp.model.image import Defaults, Image, ImageFile
from encamp.progress import Progress

CHUNK = 1 << 20
NO_DEFAULTS = Defaults()


def describe(path: Path) -> ImageFile:
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return ImageFile(path.name, size, digest.hexdigest())


def image_digest(
    files: Iterable[ImageFile],
    parent: str | None = None,
    defaults: Defaults = NO_DEFAULTS,
    kernel_release: str = "",
) -> str:
    """Names all of an image that machines of it depend on. No file's name has a colon."""
    digest = hashlib.sha256()
    if parent is not None:
        digest.update(f"parent {parent}\n".encode())
    if defaults != NO_DEFAULTS:
        written = msgspec.json.encode(msgspec.to_builtins(defaults), order="sorted")
        digest.update(b"defaults: " + written + b"\n")
    if kernel_release:
        digest.update(f"kernel: {kernel_release}\n".encode())
    for file in sorted(files, key=lambda file: file.name):
        digest.update(f"{file.name} {file.sha256}\n".encode())
    return digest.hexdigest()


def check_content(
    image: Image, looks: Mapping[str, tuple[int, int, int, int]], progress: Progress
) -> None:
    """Read every file of an image and compare; raise what is wrong first."""
    parent = image.parent.digest if image.parent else None
    if image_digest(image.files, parent, image.defaults, image.kernel_release) != image.digest:
        raise corrupt(image, f"its record does not match its digest {image.digest}")
    done, whole = 0, max(1, image.size)
    for file in image.files:
        progress.update(f"checking image '{image.name}'", done / whole)
        if file.name not in looks:
            raise corrupt(image, f"{file.name} is missing from {image.directory}")
        size = looks[file.name][2]
        if size != file.size:
            raise corrupt(image, f"{file.name} has {size} bytes where {file.size} were expected")
        try:
            found = describe(image.directory / file.name)
        except PermissionError as error:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"Cannot read {file.name} of image '{image.name}' in {image.directory}.",
                "Make it readable for you, or remove the image.",
            ) from error
        except OSError as error:
            raise corrupt(image, f"{file.name} cannot be read ({error.strerror})") from error
        if found.sha256 != file.sha256:
            raise corrupt(
                image,
                f"{file.name} has SHA-256 {found.sha256} where {file.sha256} was expected",
            )
        refusal = disk_refusal(image.directory / file.name)
        if refusal is not None:
            raise corrupt(image, f"{file.name} {refusal}")
        done += file.size
    progress.update(f"checking image '{image.name}'", 1.0)


def disk_refusal(path: Path) -> str | None:
    """Why a disk must not be shown to QEMU, which would open whatever files of the host it names;
    whoever made an image knows its digest, too."""
    if path.name != Image.DISK:
        return None
    from encamp.images.qcow2 import read_qcow2

    with path.open("rb") as file:
        header = read_qcow2(file.fileno())
    return "is not a qcow2 file" if header is None else header.refusal()


def corrupt(image: Image, what: str) -> EncampError:
    return EncampError(
        Code.CORRUPT,
        f"Image '{image.name}' is damaged: {what}.",
        f"Remove it with 'encamp image rm {image.name or image.digest[:12]}'; "
        "it is pulled or built again on next use.",
    )


def write_file(path: Path, data: bytes) -> None:
    """Put a file in place as a whole: whoever reads it sees the old content or the new."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whatever the umask says: other users read the system's images.
        path.parent.chmod(0o755)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def settle(directory: Path) -> None:
    """Make sure that a directory's files survive the host's losing power."""
    for path in (*directory.iterdir(), directory):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
