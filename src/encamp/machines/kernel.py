"""Unpacking a kernel before a machine boots it.

Distributions ship kernels compressed, to be unpacked by the processor that boots them: half of a
boot's time when that processor is emulated. The host does it faster, and once for all boots.
"""

from __future__ import annotations

import hashlib
import lzma
import os
from contextlib import suppress
from pathlib import Path

from encamp.home import Home

XZ = b"\xfd7zXZ\x00"
ELF = b"\x7fELF"
SEARCHED = 1 << 20
"""The packed kernel begins within the first MiB."""


def unpack_kernel(packed: Path, target: Path, home: Home) -> Path:
    """The kernel unpacked to `target`; or as it is, if it is packed in a way we do not know."""
    data = packed.read_bytes()
    # Kept under the digests of what was unpacked and of what came out.
    before = f"{_digest(data)}-"
    if _taken(home.unpacked_kernels, before, target):
        return target
    kernel = _unpacked(data)
    if kernel is None:
        return packed
    # Never into what is another name of a kept one.
    target.unlink(missing_ok=True)
    target.write_bytes(kernel)
    target.chmod(0o444)
    # One that cannot be kept is unpacked again the next time.
    with suppress(OSError):
        home.unpacked_kernels.mkdir(parents=True, exist_ok=True)
        (home.unpacked_kernels / f"{before}{_digest(kernel)}").hardlink_to(target)
    return target


def _taken(shelf: Path, before: str, target: Path) -> bool:
    """Whether it is kept, and still as it was; `target` is another name of it then."""
    for kept in shelf.glob(f"{before}*"):
        with suppress(OSError):
            # From now on it is there, whoever clears the shelf.
            target.hardlink_to(kept)
            if kept.name == f"{before}{_digest(target.read_bytes())}":
                os.utime(target)
                return True
            target.unlink()
            kept.unlink()
    return False


def _unpacked(data: bytes) -> bytes | None:
    start = data.find(XZ, 0, SEARCHED)
    if start < 0:
        return None
    try:
        kernel = lzma.LZMADecompressor().decompress(data[start:])
    except lzma.LZMAError:
        return None
    return kernel if kernel.startswith(ELF) else None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
