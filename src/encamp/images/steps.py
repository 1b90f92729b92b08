"""Trees that builds passed through, kept so that the next build begins where they differ."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from encamp.home import Home
from encamp.images import tree
from encamp.images.content import write_file
from encamp.images.waiting import locked
from encamp.model.recipe import BUILDER
from encamp.progress import Silent
from encamp.small_file import read_small
from encamp.workplace import Workplace

LIMIT = 3 << 30
"""Bytes that all of them together may take; the one used longest ago goes first."""

STATUS = "var/lib/dpkg/status"
"""Where a Debian tree says which packages it has."""


def share(source: Path, target: Path) -> None:
    """Let a file that nobody writes to have one more name; or copy it, where that cannot be."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


class StepRecord(msgspec.Struct, frozen=True):
    digest: str
    """Of the tree."""
    lists: str = ""
    """The archive's lists of packages by which the tree was last known to be up to date."""


@dataclass(frozen=True)
class Tree:
    """A whole root tree, in a workplace of ours: whatever becomes of the cache, it stays."""

    archive: Path
    digest: str
    lists: str = ""

    def text(self, path: str) -> str:
        """The content of one file; empty if there is none."""
        with tarfile.open(self.archive, "r:") as members:
            for member in members:
                if tree.normal(member.name) == path and member.isreg():
                    file = members.extractfile(member)
                    return file.read().decode(errors="replace") if file else ""
        return ""


def key_of(before: str, *words: str) -> str:
    """The name of what a step makes of what came before it."""
    return hashlib.sha256("\0".join((str(BUILDER), before, *words)).encode()).hexdigest()


class Steps:
    """The kept trees of one home."""

    def __init__(self, home: Home, work: Workplace) -> None:
        self.home = home
        self.work = work
        self.directory = home.cache / "steps"
        self.directory.mkdir(exist_ok=True)
        self.count = 0

    def archive(self, key: str) -> Path:
        return self.directory / f"{key}.tar"

    def record(self, key: str) -> Path:
        return self.directory / f"{key}.json"

    def place(self) -> Path:
        """A new name in the workplace, for an archive."""
        self.count += 1
        return self.work.directory / f"tree-{self.count}.tar"

    def has(self, key: str) -> bool:
        return self.record(key).exists() and self.archive(key).exists()

    def find(self, key: str) -> Tree | None:
        """A kept tree; it is ours from now on, and the last to be forgotten."""
        target = self.place()
        try:
            record = msgspec.json.decode(read_small(self.record(key)), type=StepRecord)
            share(self.archive(key), target)
            os.utime(self.record(key))
        except (OSError, msgspec.DecodeError):
            return None
        return Tree(target, record.digest, record.lists)

    def keep(self, key: str, entries: tree.Entries, lists: str = "") -> Tree:
        """Write a tree, and keep it for other builds."""
        target = self.place()
        tree.write(entries, target)
        target.chmod(0o600)
        made = Tree(target, tree.tree_digest(entries), lists)
        self.also(key, made)
        return made

    def also(self, key: str, made: Tree) -> None:
        """Keep a tree under one more name."""
        temporary = self.place()
        share(made.archive, temporary)
        with locked(self.home, "steps", "waiting: another encamp is clearing up", Silent()):
            temporary.replace(self.archive(key))
            self.note(key, made)
            self.make_room()

    def forget(self, key: str) -> None:
        self.record(key).unlink(missing_ok=True)
        self.archive(key).unlink(missing_ok=True)

    def note(self, key: str, made: Tree) -> None:
        record = StepRecord(made.digest, made.lists)
        write_file(self.record(key), msgspec.json.encode(record))

    def make_room(self) -> None:
        """Forget what was used longest ago, until the rest is no more than the limit."""
        found = sorted(self.sizes(), reverse=True)
        total = 0
        for _, size, path in found:
            total += size
            if total > LIMIT:
                self.forget(path.stem)

    def sizes(self) -> Iterable[tuple[float, int, Path]]:
        for path in self.directory.glob("*.tar"):
            with contextlib.suppress(OSError):
                used = path.with_suffix(".json")
                # One without a record was being written when its process was killed.
                when = used.stat().st_mtime if used.exists() else 0.0
                yield min(when, time.time()), path.stat().st_size, path
