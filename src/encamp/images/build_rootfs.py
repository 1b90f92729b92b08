"""A root tree out of a directory or a tar archive of the host."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from encamp.images import foreign, tree
from encamp.images.foreign import Budget, Reader
from encamp.images.host_files import host_entries, open_regular
from encamp.images.tree import Entries
from encamp.model.errors import Code, EncampError

NEEDED = ("bin/sh", "usr/bin/sh", "bin/busybox")


def file_digest(source: Path) -> str:
    """Of an archive's bytes."""
    try:
        with open_regular(source) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(source, error) from error


def source_digest(source: Path) -> str:
    """Of all there is at a path of the host."""
    if not source.is_dir():
        return file_digest(source)
    return tree.tree_digest(read_directory(source, Budget(str(source))))


def read_rootfs(source: Path, place: Path) -> Entries:
    """The tree; what has to be uncompressed first goes to a place of its own."""
    budget = Budget(str(source))
    if source.is_dir():
        entries = read_directory(source, budget)
    else:
        archive = place / "rootfs.tar"
        try:
            foreign.expand(source, archive, budget)
        except OSError as error:
            if error.filename is None or Path(error.filename) != source:
                raise
            raise unreadable(source, error) from error
        entries = Reader(archive, budget, place / "rootfs.spool").read()
    foreign.fill_in(entries)
    if not any(name in entries for name in NEEDED) and "usr/bin" not in entries:
        raise EncampError(
            Code.CONFIGURATION,
            f"{source} is no root file system: it has neither /bin/sh nor /usr/bin.",
            "Give a directory or an archive whose top is the root: with bin, etc, usr.",
        )
    return entries


def read_directory(source: Path, budget: Budget) -> Entries:
    """What belongs to whoever builds becomes root's; the rest belongs to the same numbers."""
    entries: Entries = {}
    mine = os.geteuid()
    try:
        for path, entry in host_entries(source):
            budget.take_entry()
            budget.take(entry.size)
            owner = 0 if entry.uid == mine else entry.uid
            group = 0 if entry.uid == mine and entry.gid == os.getegid() else entry.gid
            entries[path] = replace(entry, uid=owner, gid=group)
    except OSError as error:
        raise unreadable(source, error) from error
    return entries


def unreadable(source: Path, error: OSError) -> EncampError:
    return EncampError(
        Code.INPUT_MISSING,
        f"'{error.filename or source}' cannot be read: {error.strerror}.",
        "Give the path of a directory or a tar archive that you may read.",
    )
