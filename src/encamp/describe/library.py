"""All environments that some files describe, put together, checked and resolved on demand."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from encamp.describe.attributes import ENVIRONMENT, NAME, RESERVED
from encamp.describe.inheritance import (
    MOST_INHERITED,
    Budget,
    Description,
    Prototype,
    find_parents,
    lineage,
    prototype,
)
from encamp.describe.kinds import WRONG, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar, is_null, shape
from encamp.describe.nodes import Sequence as SequenceNode
from encamp.describe.reading import read_mapping
from encamp.describe.recipes import Recipes
from encamp.describe.records import ADD
from encamp.describe.references import Settler
from encamp.describe.sources import Source
from encamp.model.environment import Environment
from encamp.model.size import Size, parse_bytes

DEFAULT_CPUS = int(ENVIRONMENT.attributes["cpus"].default or 1)
DEFAULT_MEMORY = parse_bytes(ENVIRONMENT.attributes["memory"].default or "", "memory")

WITHOUT_REFERENCES = ("qemu", "users")
"""What an administrator decides must not depend on values that heirs may override."""

SAME = (
    *("summary", "storage", "network", "isolation", "driver", "shares", "devices"),
    *("kernel_arguments", "templates"),
    *("ready", "context", "after", "save_as", "reuse", "enrol", "labels", "classes", "users"),
    "qemu",
)
"""Attributes that an environment has as they are described."""


class Library:
    """Environments by name. Mistakes are collected; nothing raises until somebody asks."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.described: dict[str, Description] = {}
        self.mistakes = Mistakes()
        self.ignored: list[str] = []
        """Files that were not read, and why."""
        self.senseless: set[Source] = set()
        """Files that were read, and are no descriptions: what they were to describe is unknown."""
        self._again: dict[str, Mistakes] = {}
        self._limited: set[int] = set()
        """The ranks of files with environments that are not for everybody."""
        self._budget = Budget(MOST_INHERITED)
        self._settler = Settler(self.described, self.prototype, self.mistakes, self._budget)
        self._environments: dict[str, Environment | None] = {}
        self._recipes = Recipes(self.described, self.prototype, self._settler.settle, self.mistakes)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def add(self, source: Source, data: bytes) -> None:
        """Add what a file describes to what the files before it do."""
        self.sources.append(source)
        with _collector_paused():
            root = read_mapping(source, data, self.mistakes)
            if root is None:
                self.senseless.add(source)
                return
            added = [
                description
                for name, node in root.entries.items()
                if (description := self._description(root, name, node)) is not None
            ]
            self.described.update((description.name, description) for description in added)
            for description in added:
                description.parents = find_parents(description, self.described, self.mistakes)

    def _description(self, root: Mapping, name: str, node: Node) -> Description | None:
        line, column = root.where(name)
        wrong = self._bad_name(name)
        if wrong:
            self.mistakes.add(root.source, line, column, wrong)
            self._again.setdefault(name, Mistakes()).add(root.source, line, column, wrong)
        if not isinstance(node, Mapping):
            if isinstance(node, Scalar) and node.plain and (not node.text or is_null(node)):
                said = f"environment '{name}' says nothing: it needs 'extends' or 'image'"
                self.mistakes.add(root.source, line, column, said)
            else:
                said = f"the attributes of environment '{name}' are expected here"
                self.mistakes.at(node, f"{said}, not {shape(node)}")
            return None
        description = Description(name, root.source, line, column, node)
        for key, child in list(node.entries.items()):
            if ENVIRONMENT.entry(node, key, child, self.mistakes) is WRONG:
                del node.entries[key]
                description.dropped.add(key.removesuffix(ADD))
        if "users" in node.entries:
            self._limited.add(root.source.rank)
        for key in WITHOUT_REFERENCES:
            for written in (node.entries.get(key), node.entries.get(key + ADD)):
                if written is not None and written.refers:
                    self.mistakes.at(written, f"there can be no references in '{key}'")
        return None if wrong else description

    def _bad_name(self, name: str) -> str:
        if name in RESERVED:
            return f"no environment can be called '{name}': references use that word"
        if not NAME.fullmatch(name):
            return (
                f"'{name}' cannot be an environment's name: letters, digits and '-' make one, up"
                " to 56, beginning with a letter"
            )
        before = self.described.get(name)
        if before is not None:
            where = f"{before.source.path}:{before.line}:{before.column}"
            return (
                f"'{name}' is described already, at {where}; choose another name, and let it"
                f" extend '{name}'"
            )
        return ""

    def described_again(self, name: str) -> Mistakes:
        """Where later files describe it too, which they must not."""
        return self._again.get(name, Mistakes())

    # ── resolving ────────────────────────────────────────────────────────────────────────────────

    def prototype(self, description: Description) -> Prototype:
        return prototype(description, self.mistakes, self._budget)

    def settled(self, name: str) -> Mapping:
        """All attributes that are written for an environment or inherited, references replaced."""
        return self._settler.settle(self.described[name])

    def environment(self, name: str) -> Environment | None:
        """An environment; None if it is abstract, or has mistakes (which are reported)."""
        if name not in self._environments:
            self._environments[name] = self._resolve(self.described[name])
        return self._environments[name]

    def all(self) -> dict[str, Environment]:
        """Every environment that can be used."""
        with _collector_paused():
            made = ((name, self.environment(name)) for name in self.described)
            return {name: environment for name, environment in made if environment is not None}

    def is_abstract(self, name: str) -> bool:
        node = self.described[name].own.entries.get("abstract")
        return isinstance(node, Scalar) and node.text == "true"

    def users_of(self, name: str) -> tuple[str, ...]:
        """Who may use an environment, abstract or not; nobody named: everybody."""
        users = self.prototype(self.described[name]).values.entries.get("users")
        named = users.items if isinstance(users, SequenceNode) else [] if users is None else [users]
        return tuple(user.text for user in named if isinstance(user, Scalar))

    def sources_of(self, name: str) -> set[Source]:
        """The files whose environments it builds on."""
        return {parent.source for parent in lineage(self.described[name], self.mistakes)}

    def _resolve(self, description: Description) -> Environment | None:
        self._check_users(description)
        settled = self._settler.settle(description)
        values = ENVIRONMENT.read(settled, self.mistakes)
        if self.is_abstract(description.name):
            return None
        self._check_network(settled, values)
        image = self._recipes.image(description, settled)
        if image is None or type(values) is Unusable:
            return None
        if self.mistakes and any(one.dropped for one in lineage(description, self.mistakes)):
            return None
        size = Size(
            cpus=values.get("cpus", DEFAULT_CPUS),
            memory=values.get("memory", DEFAULT_MEMORY),
            disk=values.get("disk", 0),
        )
        same = {name: values[name] for name in SAME if name in values}
        return Environment(
            name=description.name,
            image=image,
            size=size,
            origin=description.source.path,
            **same,
        )

    def _check_network(self, settled: Mapping, values: Any) -> None:
        if type(values) is Unusable or not values.get("enrol"):
            return
        if values.get("network") != "bridge":
            place = settled.entries.get("network") or settled.entries["enrol"]
            said = "its batch system speaks to a machine that enrols, which needs 'network: bridge'"
            self.mistakes.at(place, said)

    def _check_users(self, description: Description) -> None:
        """Who may use an environment is not for the heirs in other files to change."""
        rank = description.source.rank
        if not any(limited < rank for limited in self._limited):
            return
        line = lineage(description, self.mistakes)
        limits: dict[int, Description] = {}
        for heir in line:
            for parent in heir.parents if heir.source.rank == rank else ():
                if parent.source.rank < rank:
                    users = self.prototype(parent).values.entries.get("users")
                    if users is not None and not _is_empty(users):
                        limits[id(users)] = parent
        if not limits:
            return
        users = self.prototype(description).values.entries.get("users")
        if len(limits) > 1:
            names = " and ".join(f"'{parent.name}'" for parent in limits.values())
            said = f"{names} are for different users, so nothing can extend both"
        elif users is None or id(users) not in limits:
            (parent,) = limits.values()
            said = f"who may use '{parent.name}' is said in {parent.source.path} and stays so"
        else:
            return
        self.mistakes.add(description.source, description.line, description.column, said)


def load(files: Sequence[tuple[Source, bytes]]) -> Library:
    """What these files describe, later ones adding to earlier ones."""
    library = Library()
    for source, data in files:
        library.add(source, data)
    return library


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for somebody who asked for an environment that is not there."""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    if near:
        # The second best is only worth a word if it is nearly as good.
        likeness = [difflib.SequenceMatcher(None, name, other).ratio() for other in near]
        near = [near[at] for at, ratio in enumerate(likeness) if ratio > likeness[0] - 0.1]
        return f"Did you mean {' or '.join(repr(other) for other in near)}?"
    shown = sorted(known)[:20]
    more = ", ..." if len(known) > len(shown) else ""
    return f"There are: {', '.join(shown)}{more}."


def _is_empty(node: Node) -> bool:
    return isinstance(node, SequenceNode) and not node.items


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Nothing made here is garbage soon; looking for some costs more than all the rest."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
