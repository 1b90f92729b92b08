"""Unpacking a kernel before a machine boots it.

Distributions ship kernels compressed, to be unpacked by the processor that boots them: half of a
boot's time when that processor is emulated. The host does it faster.
"""

from __future__ import annotations

import lzma
from pathlib import Path

XZ = b"\xfd7zXZ\x00"
ELF = b"\x7fELF"
SEARCHED = 1 << 20
"""The packed kernel begins within the first MiB."""


def unpack_kernel(packed: Path, target: Path) -> Path:
    """The kernel unpacked to `target`; or as it is, if it is packed in a way we do not know."""
    data = packed.read_bytes()
    start = data.find(XZ, 0, SEARCHED)
    if start < 0:
        return packed
    try:
        kernel = lzma.LZMADecompressor().decompress(data[start:])
    except lzma.LZMAError:
        return packed
    if not kernel.startswith(ELF):
        return packed
    target.write_bytes(kernel)
    return target
