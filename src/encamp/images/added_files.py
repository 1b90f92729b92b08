"""Files of the host, or given as text, that a recipe puts into a tree."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from encamp.images import tree
from encamp.images.host_files import host_entries
from encamp.images.tree import Entries, Entry
from encamp.model.errors import Code, EncampError
from encamp.model.recipe import EPOCH, AddedFile

MOST_LINKS = 40
"""Symbolic links followed on the way to one path, as the kernel does it."""


def digest(files: Sequence[AddedFile]) -> str:
    """Of what would be added now: changes when a file of the host does."""
    found = hashlib.sha256(msgspec.json.encode(files))
    for file in files:
        if file.source is not None:
            for path, entry in walk(Path(file.source), file):
                found.update(repr((path, entry.mode, entry.link, entry.sha256)).encode())
    return found.hexdigest()


def add(entries: Entries, files: Sequence[AddedFile], place: Path) -> None:
    """Put files into a tree; the content of given texts lies at a place beside it."""
    for number, file in enumerate(files):
        owner = identity(entries, "etc/passwd", file.owner, file.path)
        group = identity(entries, "etc/group", file.group, file.path)
        for below, entry in contents(file, place / f"added-{number}"):
            path = f"{file.path.rstrip('/')}/{below}" if below else file.path
            # On another host the same file has another time.
            put(entries, path, replace(entry, uid=owner, gid=group, mtime=EPOCH))


def contents(file: AddedFile, place: Path) -> Iterator[tuple[str, Entry]]:
    if file.source is not None:
        yield from walk(Path(file.source), file)
        return
    data = (file.content or "").encode()
    place.write_bytes(data)
    mode = 0o644 if file.mode is None else file.mode
    plain = Entry(tarfile.REGTYPE, mode, 0, 0, EPOCH, source=place)
    yield "", replace(plain, size=len(data), sha256=tree.content_digest(data))


def walk(source: Path, file: AddedFile) -> Iterator[tuple[str, Entry]]:
    """A file, or a directory and all below it. A given mode is that of the files."""
    try:
        yield from host_entries(source, file.mode)
    except OSError as error:
        raise EncampError(
            Code.INPUT_MISSING,
            f"'{error.filename or source}', which is to become {file.path}, cannot be read: "
            f"{error.strerror}.",
            "Give a file or directory of this host that you may read.",
        ) from error


def identity(entries: Entries, database: str, name: str, path: str) -> int:
    """The number of a user or group, as the tree itself knows it."""
    if name.isdigit():
        return int(name)
    if name == "root":
        return 0
    entry = entries.get(database)
    if entry is not None and entry.source is not None:
        with entry.source.open("rb") as file:
            file.seek(entry.offset)
            for line in file.read(entry.size).decode(errors="replace").splitlines():
                words = line.split(":")
                if words[0] == name and len(words) > 2 and words[2].isdigit():
                    return int(words[2])
    raise EncampError(
        Code.CONFIGURATION,
        f"'{name}', who is to own {path}, is not in the image's /{database}.",
        "Use a number, or a name that is there after the packages are installed.",
    )


def put(entries: Entries, path: str, entry: Entry) -> None:
    """Put an entry at a path, through the symbolic links of the tree; nothing leads out of it.

    A directory is that which a link there leads to; a file takes the place of none.
    """
    target = resolved(entries, path, to_the_end=entry.is_directory)
    for above in tree.parents(target):
        if not entries.setdefault(above, tree.ROOT).is_directory:
            raise wrong_place(path, f"/{above} is no directory there")
    there = entries.get(target)
    if entry.is_directory:
        if there is not None and not there.is_directory:
            raise wrong_place(path, "that is a file there")
        entries.setdefault(target, entry)
        return
    if (there is not None and there.is_directory) or not target or path.endswith("/"):
        raise wrong_place(path, "that is a directory")
    entries[target] = entry


def wrong_place(path: str, why: str) -> EncampError:
    return EncampError(
        Code.CONFIGURATION,
        f"Nothing can be put at {path} in the image: {why}.",
        "Give the path that the file itself is to have.",
    )


def resolved(entries: Entries, path: str, *, to_the_end: bool = False) -> str:
    """Where a path leads in a tree; unless asked for, its last part is taken as it is."""
    left = [part for part in path.split("/") if part not in ("", ".")]
    reached: list[str] = []
    followed = 0
    while left:
        part = left.pop(0)
        if part == "..":
            del reached[-1:]
            continue
        reached.append(part)
        entry = entries.get("/".join(reached))
        if entry is None or entry.type != tarfile.SYMTYPE or not (left or to_the_end):
            continue
        followed += 1
        if followed > MOST_LINKS:
            raise EncampError(
                Code.CONFIGURATION, f"The way to {path} in the image is a circle of links."
            )
        reached.pop()
        if entry.link.startswith("/"):
            reached = []
        left = [part for part in entry.link.split("/") if part not in ("", ".")] + left
    return "/".join(reached)
