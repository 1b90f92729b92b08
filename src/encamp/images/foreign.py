"""Archives that somebody else made: read with suspicion, never unpacked on the host.

Nothing in one can reach outside the tree it becomes, since it becomes entries of a tree and not
files; what makes no sense is refused by name, and how much there may be of it is bounded.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from encamp import programs
from encamp.images import tree
from encamp.images.host_files import open_regular
from encamp.images.tree import Entries, Entry
from encamp.model.errors import Code, EncampError
from encamp.model.size import format_bytes, parse_bytes

LIMIT_VARIABLE = "ENCAMP_TREE_LIMIT"
LIMIT = 32 << 30
"""Bytes that a tree may have in all, unpacked, unless the variable says otherwise."""
MOST_ENTRIES = 2_000_000
LONGEST_READ = 16 << 20
"""Content is read in smaller pieces."""
LONGEST_HEADER = 1 << 20
"""Of one member, with its long name, its attributes, and where its holes are."""
LONGEST_NAME = 255
LARGEST_ID = (1 << 32) - 2
LATEST = (1 << 32) - 1

COMPRESSIONS: dict[bytes, Callable[[BufferedReader], io.BufferedIOBase]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x5d\x00\x00": lzma.LZMAFile,
}
ZSTD = b"\x28\xb5\x2f\xfd"


def refuse(source: str, what: str, hint: str = "") -> EncampError:
    return EncampError(Code.CONFIGURATION, f"{source}: {what}.", hint)


@dataclass
class Budget:
    """How much may still come, over all the archives of one tree."""

    source: str
    """What the archives are, for messages."""
    bytes: int = field(default_factory=lambda: size_limit())
    entries: int = MOST_ENTRIES
    limit: int = field(default_factory=lambda: size_limit())

    def take(self, size: int) -> None:
        self.bytes -= size
        if self.bytes < 0:
            raise refuse(
                self.source,
                f"there is more in it than {format_bytes(self.limit)}",
                f"If that is right, allow more with {LIMIT_VARIABLE} (for example 64G).",
            )

    def take_entry(self) -> None:
        self.entries -= 1
        if self.entries < 0:
            raise refuse(self.source, f"there are more than {MOST_ENTRIES} files in it")


def size_limit() -> int:
    chosen = os.environ.get(LIMIT_VARIABLE)
    return parse_bytes(chosen, LIMIT_VARIABLE) if chosen else LIMIT


# ── compression ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def uncompressed(path: Path) -> Iterator[io.BufferedIOBase | IO[bytes]]:
    """The bytes of a file, without the compression that it may have."""
    with open_regular(path) as file:
        start = file.read(8)
        file.seek(0)
        if start.startswith(ZSTD):
            what = f"uncompressing {path}"
            with programs.stream(["zstd", "--stdout", "-d", path], purpose=what) as stream:
                yield stream
            return
        known = (made for magic, made in COMPRESSIONS.items() if start.startswith(magic))
        opener = next(known, None)
        with opener(file) if opener else contextlib.nullcontext(file) as plain:
            yield plain


def expand(path: Path, target: Path, budget: Budget) -> str:
    """Write the uncompressed bytes of a file to another; their SHA-256."""
    digest = hashlib.sha256()
    # An archive may be larger than what is in it, by its headers.
    allowed = budget.bytes + min(budget.bytes, budget.entries << 10)
    try:
        with uncompressed(path) as file, target.open("wb") as out:
            while chunk := file.read(tree.CHUNK):
                allowed -= len(chunk)
                if allowed < 0:
                    budget.take(budget.bytes + 1)
                programs.refuse_when_stopping()
                digest.update(chunk)
                out.write(chunk)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise refuse(budget.source, f"it is damaged: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise refuse(budget.source, f"it is damaged: {error}") from error
    return digest.hexdigest()


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


class Guarded:
    """An archive of which nobody can be made to read too much at once.

    Some programs leave out what fills the last block; it is there all the same.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.seek = file.seek
        self.tell = file.tell
        length = os.fstat(file.fileno()).st_size
        self.end = length + -length % tarfile.BLOCKSIZE
        self.allowed = LONGEST_HEADER
        """Bytes that may still be read of headers; content is not counted."""

    def next(self, members: tarfile.TarFile) -> tarfile.TarInfo | None:
        """The next member. All that its headers say, in any number of them, is bounded."""
        self.allowed = LONGEST_HEADER
        member = members.next()
        self.allowed = -1
        return member

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LONGEST_READ or 0 <= self.allowed < size:
            raise tarfile.ReadError("a header that is far too long")
        if self.allowed >= 0:
            self.allowed -= size
        start = self.file.tell()
        data = self.file.read(size)
        missing = min(size, self.end - start) - len(data)
        if missing > 0:
            data += bytes(missing)
            self.file.seek(start + len(data))
        return data


def members_of(archive: Path, source: str) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """All members of an archive, one at a time; none is remembered."""
    try:
        with archive.open("rb") as file:
            guarded = Guarded(file)
            with tarfile.open(fileobj=cast(BinaryIO, guarded), mode="r:", errorlevel=2) as members:
                while (member := guarded.next(members)) is not None:
                    yield member, members
                    # The library would keep every one, and what is said of all that follow.
                    cast(Any, members).members.clear()
                    members.pax_headers = {}
                check_end(file, members.offset)
    except (*DAMAGES, RecursionError, IndexError, KeyError, AttributeError) as error:
        # The library trusts headers to fit together.
        raise damaged(source, error) from error


def damaged(source: str, error: Exception) -> EncampError:
    return refuse(
        source,
        f"it is no sound tar archive ({error})",
        "Was it copied whole? 'tar --list --file FILE' tells. A disk is of kind 'disk'.",
    )


DAMAGES = (tarfile.TarError, EOFError, UnicodeError, ValueError, OverflowError)


def check_end(file: BinaryIO, offset: int) -> None:
    """Tell the end of an archive from a header that cannot be read."""
    file.seek(offset)
    if any(file.read(tarfile.BLOCKSIZE)):
        raise tarfile.ReadError(f"damaged at byte {offset}")


@dataclass
class Reader:
    """Reads one archive into entries; `below` is what links in it may also lead to."""

    archive: Path
    budget: Budget
    spool: Path
    """Where content goes that does not lie in the archive in one piece."""
    below: Entries = field(default_factory=dict)
    entries: Entries = field(default_factory=dict)

    def read(self) -> Entries:
        for member, members in members_of(self.archive, self.budget.source):
            try:
                self.take(member, members)
            except DAMAGES as error:
                raise damaged(self.budget.source, error) from error
        return self.entries

    def take(self, member: tarfile.TarInfo, members: tarfile.TarFile) -> None:
        self.budget.take_entry()
        path = self.safe(member.name, member.name)
        if member.islnk():
            target = self.safe(member.linkname, member.name)
            found = self.entries.get(target) or self.below.get(target)
            if found is None or found.is_directory:
                raise self.wrong(member.name, f"is a link to '{target}', which is no file of it")
            self.entries[path] = found
            return
        if member.ischr() or member.isblk():
            return  # A machine has its own devices.
        if not (member.isreg() or member.isdir() or member.issym() or member.isfifo()):
            raise self.wrong(member.name, f"is of a kind ({member.type!r}) that is not known")
        if not (0 <= member.uid <= LARGEST_ID and 0 <= member.gid <= LARGEST_ID):
            raise self.wrong(member.name, "belongs to nobody who can exist")
        member.mtime = min(max(0, int(member.mtime)), LATEST)
        self.entries[path] = self.entry(member, members)

    def entry(self, member: tarfile.TarInfo, members: tarfile.TarFile) -> Entry:
        if member.isreg():
            self.budget.take(max(0, member.size))
            if member.sparse is not None:
                return self.expanded(member, members)
            if member.offset_data + member.size > self.archive.stat().st_size:
                raise self.wrong(member.name, "is longer than the rest of the archive")
        return tree.entry_of(member, self.archive, members)

    def expanded(self, member: tarfile.TarInfo, members: tarfile.TarFile) -> Entry:
        """A file with holes, which are written as what they stand for."""
        content = members.extractfile(member)
        assert content is not None
        digest = hashlib.sha256()
        with self.spool.open("ab") as out:
            offset = out.tell()
            while chunk := content.read(tree.CHUNK):
                digest.update(chunk)
                out.write(chunk)
            size = out.tell() - offset
        return Entry(
            *(tarfile.REGTYPE, member.mode & 0o7777, member.uid, member.gid, int(member.mtime)),
            size=size,
            sha256=digest.digest(),
            source=self.spool,
            offset=offset,
        )

    def safe(self, name: str, entry: str) -> str:
        """A name as a path in the tree, if it is one."""
        parts = name.split("/")
        if name.startswith("/") or ".." in parts:
            raise self.wrong(entry, "leads out of the tree")
        if any(len(os.fsencode(part)) > LONGEST_NAME for part in parts):
            raise self.wrong(entry[:80] + "...", "has a name that is too long")
        path = tree.normal(name)
        for above in tree.parents(path):
            there = self.entries.get(above)
            if there is not None:
                if not there.is_directory:
                    raise self.wrong(entry, f"lies below '{above}', which is no directory")
                break
        return path

    def wrong(self, entry: str, what: str) -> EncampError:
        return refuse(self.budget.source, f"the entry '{entry}' {what}")


def fill_in(entries: Entries) -> Entries:
    """Add the directories that an archive does not mention, and the root."""
    for path in list(entries):
        for above in tree.parents(path):
            if above in entries:
                break
            entries[above] = tree.ROOT
    entries.setdefault("", tree.ROOT)
    return entries
