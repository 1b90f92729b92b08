"""The files of containers' images on disk: of a directory, or of an archive that stays packed."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from encamp.images import foreign
from encamp.images.foreign import refuse
from encamp.images.host_files import open_below
from encamp.images.tree import CHUNK
from encamp.model.errors import Code, EncampError

LARGEST_TEXT = 16 << 20
"""Bytes of an index, manifest or configuration."""
EXPECTED = (
    "Give an OCI layout, or what 'docker save' writes. An image of a registry is written"
    " docker://HOST/NAME:TAG, such as docker://docker.io/library/alpine:3."
)
MOST_LINKS = 4
MOST_FILES = 10_000
"""A container's image has a few for each of its layers."""


class Layout:
    """The files of a layout: of a directory, or the members of an archive."""

    def __init__(self, source: Path) -> None:
        self.source = source

    def open(self, name: str) -> BinaryIO | None:
        # Links, and ways up, could lead to any file of the host.
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise refuse(str(self.source), f"'{name}' leads out of it")
        above, _, last = name.rpartition("/")
        try:
            return open_below(self.source, above, last)
        except OSError:
            return None

    def has(self, name: str) -> bool:
        file = self.open(name)
        if file is not None:
            file.close()
        return file is not None

    def text(self, name: str, digest: str | None = None) -> bytes:
        file = self.open(name)
        if file is None:
            raise refuse(str(self.source), f"'{name}' is missing")
        with file:
            data = file.read(LARGEST_TEXT + 1)
        if len(data) > LARGEST_TEXT:
            raise refuse(str(self.source), f"'{name}' is far too long")
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise wrong_digest(self.source, name)
        return data

    def copy(self, name: str, digest: str | None, target: Path) -> None:
        """Copy a file out of it, checked."""
        file = self.open(name)
        if file is None:
            raise refuse(str(self.source), f"'{name}' is missing")
        found = hashlib.sha256()
        with file, target.open("wb") as out:
            while chunk := file.read(CHUNK):
                found.update(chunk)
                out.write(chunk)
        if digest is not None and found.hexdigest() != digest:
            raise wrong_digest(self.source, name)


class ArchiveLayout(Layout):
    """An archive that is read where it lies, never unpacked as a whole."""

    def __init__(self, source: Path, archive: Path) -> None:
        super().__init__(source)
        self.archive = archive
        self.members: dict[str, tarfile.TarInfo] = {}
        for member, _ in foreign.members_of(archive, str(source)):
            if len(self.members) >= MOST_FILES:
                raise refuse(str(source), "there are far too many files in it")
            member.pax_headers = {}
            self.members[os.path.normpath(member.name)] = member

    def open(self, name: str) -> BinaryIO | None:
        member = self.members.get(os.path.normpath(name))
        # Old archives say twice the same layer with a link.
        for _ in range(MOST_LINKS):
            if member is None or not (member.issym() or member.islnk()):
                break
            beside = member.name.rpartition("/")[0] if member.issym() else ""
            member = self.members.get(os.path.normpath(f"{beside}/{member.linkname}".lstrip("/")))
        if member is None or not member.isreg() or member.sparse is not None:
            return None
        return cast(BinaryIO, Part(self.archive, member.offset_data, member.size))


class Part(io.RawIOBase):
    """A piece of a file, to be read from its beginning to its end."""

    def __init__(self, path: Path, offset: int, size: int) -> None:
        self.file = path.open("rb")
        self.file.seek(offset)
        self.left = size

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(self.left if size < 0 else min(size, self.left))
        self.left -= len(data)
        return data

    def close(self) -> None:
        self.file.close()
        super().close()


@contextmanager
def opened(source: Path, place: Path) -> Iterator[Layout]:
    """A layout on disk: a directory, or an archive of one, compressed or not."""
    if source.is_dir():
        yield Layout(source)
        return
    archive = place / "layout.tar"
    try:
        foreign.expand(source, archive, foreign.Budget(str(source)))
    except OSError as error:
        if error.filename is None or Path(error.filename) != source:
            raise
        raise EncampError(
            Code.INPUT_MISSING,
            f"'{source}' cannot be read: {error.strerror}.",
            EXPECTED,
        ) from error
    try:
        yield ArchiveLayout(source, archive)
    finally:
        archive.unlink()


def wrong_digest(source: Path, name: str) -> EncampError:
    return EncampError(
        Code.CORRUPT,
        f"{source} is damaged: '{name}' does not have the content that its digest names.",
        "Fetch or save it again.",
    )
