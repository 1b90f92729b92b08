"""An image: the read-only part of an environment, named by its digest, never changed once made."""

from __future__ import annotations

from pathlib import Path

import msgspec


class ImageFile(msgspec.Struct, frozen=True):
    """One file of an image and what it must contain."""

    name: str
    size: int
    sha256: str


class Image(msgspec.Struct, frozen=True):
    """A root file system with its kernel. `digest` is the SHA-256 over the files' digests."""

    digest: str
    name: str
    kernel_release: str
    created: float
    recipe: str
    """Digest of the recipe that made it: another recipe, another image."""
    files: tuple[ImageFile, ...]
    directory: Path
    """Where it lies on this host."""

    ROOT = "root.squashfs"
    KERNEL = "vmlinuz"
    MODULES = "modules.cpio"

    @property
    def root(self) -> Path:
        return self.directory / self.ROOT

    @property
    def kernel(self) -> Path:
        return self.directory / self.KERNEL

    @property
    def modules(self) -> Path:
        """The drivers a machine needs before its root file system is there, as a cpio archive."""
        return self.directory / self.MODULES

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)
