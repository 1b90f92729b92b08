"""What a recipe adds to a tree: packages, then files, then what its commands do.

Each step's result is kept under a name made of what came before it and what it does, so a changed
recipe repeats only what comes after the change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from encamp.images import added_files, namespace, tree
from encamp.images.build_debian import CREDENTIALS
from encamp.images.packages import Shelf
from encamp.images.portion import Portion
from encamp.images.session import Action, Room, perform
from encamp.images.steps import STATUS, Steps, Tree, key_of
from encamp.model.errors import Code, EncampError
from encamp.model.recipe import AddedFile, Kind, Recipe
from encamp.workplace import Workplace

SOURCES = "/etc/apt/sources.list.d/recipe.list"
SIGNED_BY = re.compile(r"signed-by=(/[^\s\],]+)")
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.:-]*([=/][A-Za-z0-9.+:~-]+)?")


class Adding:
    """Adds to one tree after another."""

    def __init__(
        self, recipe: Recipe, work: Workplace, steps: Steps, shelf: Callable[[Tree], Shelf]
    ) -> None:
        self.recipe = recipe
        # The one of `mini` is all there is to begin with.
        packages = () if recipe.kind is Kind.MINI else recipe.packages
        # One that is listed twice is installed where it is listed first.
        self.wanted = tuple(dict.fromkeys(packages))
        self.work = work
        self.steps = steps
        self.shelf = shelf
        """Packages for a tree; asked for only if the recipe wants any."""
        self.sessions = 0

    def to(self, begin: Tree, progress: Portion) -> Tree:
        split = len(self.wanted) / max(1, len(self.wanted) + len(self.recipe.run))
        packaged = self.packages(begin, progress.part(0, split))
        filed = self.files(packaged)
        return self.commands(filed, progress.part(split, 1))

    def room(self) -> Room:
        self.sessions += 1
        return Room(namespace.make_room(self.work.for_programs() / f"room-{self.sessions}"))

    def packages(self, begin: Tree, progress: Portion) -> Tree:
        wanted = self.wanted
        if not wanted:
            return begin
        for package in wanted:
            if PACKAGE.fullmatch(package) is None:
                raise EncampError(Code.CONFIGURATION, f"'{package}' is no name of a package.")
        shelf = self.shelf(begin)
        keys = [key_of("tree", begin.digest, *self.recipe.sources)]
        for package in wanted:
            keys.append(key_of(keys[-1], "package", package))
        for count in range(len(wanted), 0, -1):
            found = self.steps.find(keys[count])
            if found is not None and is_current(found, keys[count], self.steps, shelf):
                if count == len(wanted):
                    return found
                return self.install(found, wanted[count:], keys[-1], shelf, progress)
        return self.install(begin, wanted, keys[-1], shelf, progress)

    def install(
        self, begin: Tree, wanted: tuple[str, ...], key: str, shelf: Shelf, progress: Portion
    ) -> Tree:
        room = self.room()
        progress.update("fetching packages")
        unknown = shelf.fetch(begin.text(STATUS), wanted)
        if unknown:
            raise EncampError(
                Code.BUILD_FAILED,
                f"Recipe '{self.recipe.name}' lists packages that Debian '{shelf.apt.suite}' does "
                f"not have: {', '.join(unknown)}.",
                "'apt-cache search WORD' finds names; 'sources' of the recipe adds archives.",
            )
        actions = shelf.install(wanted, room)
        (entries,) = perform(begin, actions, self.work, room, progress, shelf.directory)
        self.add_sources(entries)
        return self.steps.keep(key, entries, shelf.state)

    def add_sources(self, entries: tree.Entries) -> None:
        """Let machines install from the recipe's own sources, too."""
        keys = {
            found[1]
            for line in self.recipe.sources
            for found in SIGNED_BY.finditer(line)
            if Path(found[1]).is_file()
        }
        lines = "".join(f"{CREDENTIALS.sub('://', line)}\n" for line in self.recipe.sources)
        if lines:
            added = [AddedFile(path=key, source=key, mode=0o644) for key in sorted(keys)]
            added.append(AddedFile(path=SOURCES, content=lines))
            added_files.add(entries, added, self.work.directory)

    def files(self, begin: Tree) -> Tree:
        if not self.recipe.files:
            return begin
        key = key_of(begin.digest, "files", added_files.digest(self.recipe.files))
        found = self.steps.find(key)
        if found is not None:
            return found
        entries = tree.read(begin.archive)
        added_files.add(entries, self.recipe.files, self.work.directory)
        return self.steps.keep(key, entries)

    def commands(self, begin: Tree, progress: Portion) -> Tree:
        reached, left = begin, list(self.recipe.run)
        while left:
            found = self.steps.find(command_key(reached, left[0]))
            if found is None:
                break
            reached = found
            left.pop(0)
        for position, command in enumerate(left):
            room = self.room()
            action = Action(
                title=f"running {shortened(command)}",
                command=("/bin/sh", "-e", "-c", command),
                archive=str(room.archive),
            )
            part = progress.part(position / len(left), (position + 1) / len(left))
            (entries,) = perform(reached, [action], self.work, room, part)
            reached = self.steps.keep(command_key(reached, command), entries)
        return reached


def command_key(begin: Tree, command: str) -> str:
    return key_of(begin.digest, "run", command)


def shortened(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def is_current(found: Tree, key: str, steps: Steps, shelf: Shelf) -> bool:
    """Whether the archive has nothing newer than a kept tree; if so, not asked again soon."""
    if found.lists == shelf.state:
        return True
    status = steps.place().with_suffix(".status")
    status.write_text(found.text(STATUS))
    if not shelf.apt.is_current(status):
        return False
    steps.note(key, Tree(found.archive, found.digest, shelf.state))
    return True


def codename(begin: Tree, recipe: Recipe) -> str:
    """The Debian release that a tree is of."""
    said = begin.text("usr/lib/os-release") or begin.text("etc/os-release")
    release: dict[str, str] = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', said, re.MULTILINE))
    name = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not name or not begin.text(STATUS):
        raise EncampError(
            Code.CONFIGURATION,
            f"Packages can be added only to a Debian; '{recipe.name}' is "
            f"{release.get('PRETTY_NAME') or 'none'}.",
            "Leave out 'packages', or add them with 'run' and the system's own tools.",
        )
    return name
