"""An image: the read-only part of an environment, named by its digest, never changed once made."""

from __future__ import annotations

from pathlib import Path

import msgspec

WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,98}[A-Za-z0-9])?"
"""What the name and the version of an image look like; they become names of files."""


class ImageFile(msgspec.Struct, frozen=True):
    """One file of an image and what it must contain."""

    name: str
    size: int
    sha256: str


class Defaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What whoever made the image meant commands in it to find."""

    variables: dict[str, str] = {}
    workdir: str | None = None
    command: tuple[str, ...] = ()
    user: str | None = None


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A root file system with its kernel, or a disk; or a layer over another image.

    `digest` is the SHA-256 over its files' digests, its parent's, its defaults and its kernel's
    release: two images with the same are the same to every machine.
    """

    digest: str
    name: str
    """What it was asked for by: NAME or NAME:VERSION, or nothing."""
    kernel_release: str
    created: float
    recipe: str
    """Digest of the recipe that made it: another recipe, another image."""
    files: tuple[ImageFile, ...]
    directory: Path
    """Where it lies on this host."""
    parent: Image | None = None
    """What it is a layer over: it has that one's kernel, and what is in neither is in none."""
    defaults: Defaults = Defaults()

    ROOT = "root.squashfs"
    KERNEL = "vmlinuz"
    MODULES = "modules.cpio"
    DISK = "disk.qcow2"

    @property
    def root(self) -> Path:
        """Its own layer."""
        return self.directory / self.ROOT

    @property
    def layers(self) -> tuple[Path, ...]:
        """All its layers, each over those before it; none if it is a disk."""
        if self.disk is not None:
            return ()
        return (*(self.parent.layers if self.parent else ()), self.root)

    @property
    def lineage(self) -> tuple[Image, ...]:
        """The image and what it is a layer over, down to the first."""
        return (self, *(self.parent.lineage if self.parent else ()))

    @property
    def bootable(self) -> Image:
        """The one in the lineage that has the kernel."""
        return self.parent.bootable if self.parent else self

    @property
    def kernel(self) -> Path:
        return self.bootable.directory / self.KERNEL

    @property
    def modules(self) -> Path:
        """The drivers a machine needs before its root file system is there, as a cpio archive."""
        return self.bootable.directory / self.MODULES

    @property
    def disk(self) -> Path | None:
        """The whole disk that it is, if it is one."""
        named = any(file.name == self.DISK for file in self.files)
        return self.directory / self.DISK if named else None

    @property
    def size(self) -> int:
        """Of its own files, without its parent's."""
        return sum(file.size for file in self.files)
