"""What an image is made of. Another recipe makes another image."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

BUILDER = 8
"""Raised whenever the same recipe would be built into something different."""

EPOCH = 1686355200
"""The time of every file in an image (the day Debian 12 came out): builds are reproducible."""


class Kind(enum.Enum):
    """Where an image's files come from before anything is added to them."""

    MINI = "mini"
    """BusyBox and nothing else."""
    DEBIAN = "debian"
    """A Debian release, put together from its packages."""
    OCI = "oci"
    """A container's image: an OCI layout, a `docker save` archive, or one in a registry."""
    ROOTFS = "rootfs"
    """A directory or a tar archive."""
    DISK = "disk"
    """A whole disk with its own boot loader and init: raw or qcow2."""
    LAYER = "layer"
    """Another image, `parent`; what is added becomes a layer over it."""


class Compression(enum.Enum):
    ZSTD = "zstd"
    XZ = "xz"
    GZIP = "gzip"
    LZ4 = "lz4"
    NONE = "none"


class AddedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file or tree that a recipe, or a machine's context, puts into place."""

    path: str
    """Where in the machine; absolute."""
    content: str | None = None
    source: str | None = None
    """A file or directory of the host, absolute; or else `content`."""
    mode: int | None = None
    """Permissions; as on the host, or 0644, if not given."""
    owner: str = "root"
    group: str = "root"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to build one image. First comes what the kind says, then packages, files, commands."""

    name: str
    kind: Kind = Kind.DEBIAN
    version: str | None = None
    parent: Recipe | str | None = None
    """What to add to, for kind `layer`: another recipe, or an image by its name or digest."""
    suite: str = "bookworm"
    """Debian's release, by its code name: its packages for kinds `debian` and `mini`, and its
    kernel for all that have none of their own."""
    sources: tuple[str, ...] = ()
    """More of apt's source lines (`deb [...] URI SUITE COMPONENT...`)."""
    source: str | None = None
    """For kinds `oci`, `rootfs`, `disk`: an absolute path, or `docker://...` for `oci`."""
    packages: tuple[str, ...] = ()
    """What apt installs."""
    files: tuple[AddedFile, ...] = ()
    run: tuple[str, ...] = ()
    """Shell commands run as root inside the tree, one after another."""
    kernel: str = "linux-image-amd64"
    """A Debian package that depends on the newest kernel of a suite; a layer has its parent's."""
    compression: Compression = Compression.ZSTD
    builder: Annotated[int, msgspec.Meta(ge=1)] = BUILDER

    def digest(self) -> str:
        # Not needed where images are only found by a digest somebody already has.
        import hashlib

        # Every field is written out: `omit_defaults` leaves out what *is* the default, and keeps
        # what only equals it.
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        if isinstance(self.parent, Recipe):
            fields["parent"] = {"recipe": self.parent.digest()}
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()
