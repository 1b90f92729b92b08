"""Who inherits from whom, and what becomes of what is inherited.

Environments are prototypes. All that an environment builds on is put into one line, ancestors
first and each once, and laid one over the other: mappings are merged, everything else is replaced,
a list under `NAME+` is added to the one below it, and `null` takes away what is below.
"""

from __future__ import annotations

import msgspec

from encamp.describe.attributes import NOT_INHERITED, ORIGINS
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar, Sequence, is_null
from encamp.describe.records import ADD
from encamp.describe.sources import Source

LONGEST_CHAIN = 100
"""Environments that extend one another."""
MOST_INHERITED = 5_000_000
"""Nodes that merging may make; a small file can ask for a great many."""


class Description(msgspec.Struct, eq=False):
    """One environment as it was written."""

    name: str
    source: Source
    line: int
    column: int
    own: Mapping
    parents: list[Description] = []
    line_of: list[Description] | None = None
    """All it builds on and itself, ancestors first."""
    prototype: Prototype | None = None
    strangers: list[str] = []
    """Environments it extends that no file describes."""
    dropped: set[str] = set()
    """Attributes that are wrong and were left out."""


class Prototype(msgspec.Struct, eq=False):
    """All that an environment has and inherits, before references are replaced."""

    values: Mapping
    image_of: Description | None = None
    """The last that had a say in what the image is."""


class Budget:
    """Bounds what merging and copying make of a file, however cleverly it was written."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, count: int, at: Node, mistakes: Mistakes) -> bool:
        self.left -= count
        if self.left < 0:
            mistakes.at(at, "too much is inherited and copied in these files to be worked out")
        return self.left >= 0


def find_parents(
    description: Description, known: dict[str, Description], mistakes: Mistakes
) -> list[Description]:
    """The environments it extends. Those of later files are not known yet, and stay unknown."""
    node = description.own.entries.get("extends")
    if node is None:
        return []
    found = []
    for item in node.items if isinstance(node, Sequence) else [node]:
        if not isinstance(item, Scalar) or is_null(item):
            continue
        if item.refers:
            mistakes.at(item, "'extends' takes the names of environments, no references")
            continue
        parent = known.get(item.text)
        if parent is None:
            near = mistakes.near(item.text, known)
            said = f"there is no environment '{item.text}' in this file or in one before it{near}"
            mistakes.strangers.add(mistakes.at(item, said))
            description.strangers.append(item.text)
            # What it would have inherited is not missed as well.
            description.dropped.add("image")
        elif parent in found:
            mistakes.at(item, f"'{item.text}' is extended twice")
        else:
            found.append(parent)
    return found


def lineage(description: Description, mistakes: Mistakes) -> list[Description]:
    """What it builds on and itself, ancestors first, each once."""
    return _line(description, mistakes, [])


def _line(
    description: Description, mistakes: Mistakes, path: list[Description]
) -> list[Description]:
    if description.line_of is not None:
        return description.line_of
    path.append(description)
    merged: dict[int, Description] = {}
    for parent in list(description.parents):
        if parent in path or len(path) > LONGEST_CHAIN:
            _refuse(description, parent, mistakes, path)
            description.parents.remove(parent)
            continue
        line = _line(parent, mistakes, path)
        if len(line) > LONGEST_CHAIN:
            _refuse(description, parent, mistakes, path)
            description.parents.remove(parent)
            continue
        merged.update((id(ancestor), ancestor) for ancestor in line if id(ancestor) not in merged)
    path.pop()
    description.line_of = [*merged.values(), description]
    return description.line_of


def _refuse(
    description: Description, parent: Description, mistakes: Mistakes, path: list[Description]
) -> None:
    at = description.own.entries["extends"]
    description.dropped.add("image")
    if parent in path:
        names = [other.name for other in path[path.index(parent) :]] + [parent.name]
        mistakes.at(at, f"'{parent.name}' extends itself: {' → '.join(names)}")
    else:
        mistakes.at(at, f"this builds on more than {LONGEST_CHAIN} environments")


def lacks(description: Description, attribute: str, mistakes: Mistakes) -> bool:
    """Is it without an attribute only because what was written for it is wrong?"""
    return any(attribute in layer.dropped for layer in lineage(description, mistakes))


def prototype(description: Description, mistakes: Mistakes, budget: Budget) -> Prototype:
    """What it inherits and has itself, laid one over the other."""
    if description.prototype is not None:
        return description.prototype
    line = lineage(description, mistakes)
    made = Prototype(Mapping({}, {}, description.line, description.column, description.source))
    rest = line
    for start in range(len(line) - 2, -1, -1):
        # Whoever's line is the beginning of ours has done that part of the work already.
        ancestor = line[start]
        if ancestor.prototype is not None and ancestor.line_of == line[: start + 1]:
            made, rest = ancestor.prototype, line[start + 1 :]
            break
    for layer in rest:
        made = _lay(made, layer, mistakes, budget)
        if layer.line_of == line[: line.index(layer) + 1]:
            layer.prototype = made
    description.prototype = made
    return made


def _lay(below: Prototype, layer: Description, mistakes: Mistakes, budget: Budget) -> Prototype:
    own = layer.own
    image = own.entries.get("image")
    inherited = below.values
    if isinstance(image, Mapping) and not ORIGINS.keys().isdisjoint(image.entries):
        # An image that starts from somewhere else is another image.
        inherited = _without(inherited, "image")
    if not NOT_INHERITED.isdisjoint(inherited.entries):
        for name in NOT_INHERITED:
            inherited = _without(inherited, name)
    values = _merge(inherited, own, mistakes, budget)
    return Prototype(values, layer if image is not None else below.image_of)


def _without(mapping: Mapping, name: str) -> Mapping:
    entries = {key: child for key, child in mapping.entries.items() if key != name}
    return _mapping(entries, mapping)


def _merge(below: Mapping, own: Mapping, mistakes: Mistakes, budget: Budget) -> Mapping:
    if not budget.spend(len(below.entries) + len(own.entries), own, mistakes):
        return below
    entries = dict(below.entries)
    for key, child in own.entries.items():
        name = key
        if key.endswith(ADD):
            name = key[:-1]
            child = _joined(entries.get(name), child, mistakes, budget)
        elif type(child) is Mapping:
            under = entries.get(name)
            if type(under) is Mapping:
                child = _merge(under, child, mistakes, budget)
            elif not _is_final(child):
                child = _merge(_mapping({}, child), child, mistakes, budget)
        if is_null(child):
            entries.pop(name, None)
        else:
            entries[name] = child
    return _mapping(entries, own)


def _is_final(own: Mapping) -> bool:
    """Would it be the same laid over nothing?"""
    for key, child in own.entries.items():
        if key.endswith(ADD) or is_null(child):
            return False
        if type(child) is Mapping and not _is_final(child):
            return False
    return True


def _joined(below: Node | None, added: Node, mistakes: Mistakes, budget: Budget) -> Node:
    """The list below with what is added; a single item counts as a list of one."""
    items = [*_items(below), *_items(added)]
    if not budget.spend(len(items), added, mistakes):
        return added
    joined = Sequence(items, added.line, added.column, added.source)
    if below is not None:
        earlier = below.joined if isinstance(below, Sequence) and below.joined else (below,)
        joined.joined = (*earlier, added)
    for item in items:
        joined.weight += item.weight
        if item.refers:
            joined.refers = True
    return joined


def _items(node: Node | None) -> list[Node]:
    if node is None or is_null(node):
        return []
    return node.items if isinstance(node, Sequence) else [node]


def _mapping(entries: dict[str, Node], like: Mapping) -> Mapping:
    made = Mapping(entries, like.keys, like.line, like.column, like.source)
    weight = 1
    for child in entries.values():
        if type(child) is Scalar:
            weight += 1
            refers = "${" in child.text
        else:
            weight += child.weight
            refers = child.refers
        if refers:
            made.refers = True
    made.weight = weight
    return made
