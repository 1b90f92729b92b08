"""Root trees as tar archives: owners, devices and attributes without the right to set any.

A *tree* is a whole root file system. A *layer* is what to put over a tree, in the terms of the
kernel's overlayfs: a character device 0/0 (a whiteout) hides what is below, and the attribute
`trusted.overlay.opaque` hides all that a directory held below.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from encamp.images.holes import write_sparse
from encamp.model.errors import Code, EncampError
from encamp.model.recipe import EPOCH

XATTR = "SCHILY.xattr."
OPAQUE = f"{XATTR}trusted.overlay.opaque"
KEPT_XATTRS = (f"{XATTR}security.capability", f"{XATTR}user.", OPAQUE)
CHUNK = 1 << 20
PLAIN_SIZE = 512
"""Of a member's header when nothing has to be said about it in a second one."""


class Origin(Protocol):
    """Where content comes from that is in no archive of ours."""

    def open(self) -> BinaryIO: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree. Names that are links to one file each have an entry of their own."""

    type: bytes
    """As tar says it; never a link to another member."""
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    sha256: bytes = b""
    link: str = ""
    """Where a symbolic link points to."""
    device: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[str, str], ...] = ()
    source: Path | None = None
    """The archive with a file's content, and where in it that begins."""
    offset: int = 0
    origin: Origin | None = None
    """If the content is not in an archive of ours."""

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two entries the same."""
        return (
            *(self.type, self.mode, self.uid, self.gid, self.mtime, self.size, self.sha256),
            *(self.link, self.device, self.xattrs),
        )

    @property
    def is_directory(self) -> bool:
        return self.type == tarfile.DIRTYPE

    @property
    def is_whiteout(self) -> bool:
        return self.type == tarfile.CHRTYPE and self.device == (0, 0)

    @property
    def is_opaque(self) -> bool:
        return any(key == OPAQUE and value == "y" for key, value in self.xattrs)


Entries = dict[str, Entry]
"""By path, without a leading slash; the root itself is ''."""

ROOT = Entry(tarfile.DIRTYPE, 0o755, 0, 0, EPOCH)
WHITEOUT = Entry(tarfile.CHRTYPE, 0, 0, 0, EPOCH)


def read(archive: Path, *, now: float | None = None) -> Entries:
    """All entries of an archive that one of our own programs wrote. Content is hashed.

    What was written since `now` was written by the build, and gets the time all images have.
    """
    entries: Entries = {}
    with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as members:
        for member in members:
            path = normal(member.name)
            if member.islnk():
                entries[path] = entries[normal(member.linkname)]
            else:
                entries[path] = entry_of(member, archive, members, now)
    return entries


def normal(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def entry_of(
    member: tarfile.TarInfo, archive: Path, members: tarfile.TarFile, now: float | None = None
) -> Entry:
    mtime = max(0, int(member.mtime))
    # That of a directory only tells when something in it came or went.
    if member.isdir() or (now is not None and mtime >= int(now)):
        mtime = EPOCH
    regular = member.isreg()
    device = (member.devmajor, member.devminor) if member.ischr() or member.isblk() else (0, 0)
    return Entry(
        tarfile.REGTYPE if regular else member.type,
        0o777 if member.issym() else member.mode & 0o7777,
        member.uid,
        member.gid,
        mtime,
        member.size if regular else 0,
        digest_of(member, members) if regular else b"",
        member.linkname if member.issym() else "",
        device,
        kept_xattrs(member.pax_headers),
        archive if regular else None,
        member.offset_data if regular else 0,
    )


def kept_xattrs(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if not headers:
        return ()
    return tuple(sorted((k, v) for k, v in headers.items() if k.startswith(KEPT_XATTRS)))


def digest_of(member: tarfile.TarInfo, members: tarfile.TarFile) -> bytes:
    digest = hashlib.sha256()
    file = members.extractfile(member)
    assert file is not None
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.digest()


def tree_digest(entries: Entries) -> str:
    """Of all that machines could see of a tree."""
    digest = hashlib.sha256()
    for path in sorted(entries):
        digest.update(repr((path, *entries[path].identity)).encode(errors="surrogateescape"))
    return digest.hexdigest()


# ── comparing and putting together ───────────────────────────────────────────────────────────────


def difference(old: Entries, new: Entries) -> Entries:
    """The layer that makes the new tree of the old one; empty if they are the same."""
    changed: Entries = {}
    for path, entry in new.items():
        before = old.get(path)
        if before is None or (before is not entry and before.identity != entry.identity):
            changed[path] = entry
    for path in old:
        above = parent(path)
        if path not in new and above in new and new[above].is_directory:
            changed[path] = WHITEOUT
    # A directory in an upper layer says what the one below it is like, too.
    for path in list(changed):
        for above in parents(path):
            changed.setdefault(above, new.get(above, ROOT))
    return changed


def merge(layers: Iterable[Entries]) -> Entries:
    """The tree that layers make, each put over those before it."""
    tree: Entries = {}
    for layer in layers:
        for path in sorted(layer):
            entry = layer[path]
            there = tree.get(path)
            if there is not None and (not entry.is_directory or entry.is_opaque):
                remove(tree, path, there)
            if entry.is_whiteout:
                tree.pop(path, None)
                continue
            xattrs = tuple(pair for pair in entry.xattrs if pair[0] != OPAQUE)
            tree[path] = entry if xattrs == entry.xattrs else replace(entry, xattrs=xattrs)
    return tree


def remove(tree: Entries, path: str, there: Entry) -> None:
    """Take what is at a path out of a tree, with all that is below it."""
    if there.is_directory:
        prefix = f"{path}/" if path else ""
        for below in [name for name in tree if name.startswith(prefix) and name != path]:
            del tree[below]
    tree.pop(path, None)


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def parents(path: str) -> Iterator[str]:
    """The directories above a path, the root last."""
    while path:
        path = parent(path)
        yield path


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def write(entries: Entries, target: Path) -> None:
    """Write a tree or a layer as an archive: the same entries always give the same bytes."""
    first: dict[tuple[Path, int], str] = {}
    with target.open("wb") as out, Sources() as sources:
        for path in sorted(entries):
            entry = entries[path]
            content = (entry.source, entry.offset) if entry.source and entry.size else None
            linked = first.setdefault(content, path) if content else path
            out.write(header(path, entry, linked))
            if entry.source is not None and entry.size and linked == path:
                sources.copy(entry, out)
                out.write(bytes(-entry.size % tarfile.BLOCKSIZE))
        out.write(bytes(2 * tarfile.BLOCKSIZE))


def header(path: str, entry: Entry, linked: str) -> bytes:
    member = tarfile.TarInfo(f"./{path}" if path else "./")
    member.type, member.mode, member.mtime = entry.type, entry.mode, entry.mtime
    member.uid, member.gid = entry.uid, entry.gid
    member.devmajor, member.devminor = entry.device
    member.pax_headers = dict(entry.xattrs)
    member.linkname = entry.link
    if linked != path:
        member.type, member.linkname = tarfile.LNKTYPE, f"./{linked}"
    else:
        member.size = entry.size
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class Sources:
    """The archives that content is copied from, each opened once."""

    def __init__(self) -> None:
        self.files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files.values():
            file.close()

    def copy(self, entry: Entry, out: BinaryIO) -> None:
        assert entry.source is not None
        if entry.origin is not None:
            with entry.origin.open() as file:
                self.copy_from(file, entry, out)
            return
        if entry.source not in self.files:
            self.files[entry.source] = entry.source.open("rb")
        self.copy_from(self.files[entry.source], entry, out)

    def copy_from(self, file: BinaryIO, entry: Entry, out: BinaryIO) -> None:
        file.seek(entry.offset)
        left = entry.size
        digest = hashlib.sha256() if entry.origin is not None else None
        while left:
            chunk = file.read(min(left, CHUNK))
            if not chunk:
                raise changed(str(entry.source))
            if digest is not None:
                digest.update(chunk)
            write_sparse(out, chunk)
            left -= len(chunk)
        if digest is not None and digest.digest() != entry.sha256:
            raise changed(str(entry.source))


def changed(source: str) -> EncampError:
    return EncampError(
        Code.BUILD_FAILED,
        f"{source} changed while it was read.",
        "Try again when nobody writes to it.",
        transient=True,
    )


# ── whole archives ───────────────────────────────────────────────────────────────────────────────


def write_difference(old: Path, new: Path, target: Path) -> bool:
    """Write the layer between two trees; False, and nothing written, if they are the same."""
    changed = difference(read(old), read(new))
    if changed:
        write(changed, target)
    return bool(changed)


def write_merged(layers: Sequence[Path], target: Path) -> None:
    """Write the tree that layers make, the lowest first."""
    if len(layers) == 1:
        shutil.copyfile(layers[0], target)
    else:
        write(merge(map(read, layers)), target)


def content_digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
