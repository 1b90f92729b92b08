"""The files that define a site's properties, commands and triggers: `NAME.yaml`, `NAME.ini`, both.

They say what is run on every host of a site, so only an administrator's are read, and one that is
refused is an error: what it would have defined must not be missing in silence.
"""

from __future__ import annotations

from encamp.describe import places
from encamp.describe.ini import read_ini
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar
from encamp.describe.places import Found, Place
from encamp.describe.reading import read_mapping
from encamp.describe.sources import Source
from encamp.model.errors import Code, EncampError

INI = ".ini"
ENDINGS = (".yaml", INI)


def definition_places(name: str) -> list[Place]:
    """Where a site's definitions are: of `properties`, `commands` or `triggers`."""
    return places.daemon_places(*(f"{name}{ending}" for ending in ENDINGS))


def stamps(found: list[Found]) -> tuple[tuple[bytes | int, ...], ...]:
    """Differ whenever one of the files does: for whoever wants to read them again only then."""
    return tuple(entry.stamp for entry in found)


def read_files(found: list[Found]) -> list[tuple[Source, bytes]]:
    """What stands in the files that are there; an error if one of them is not to be believed."""
    files = places.read(found)
    for entry in found:
        if entry.refused:
            raise EncampError(
                Code.CONFIGURATION,
                entry.refused,
                "It would decide what is run on this host; make it root's alone.",
            )
    return files


def read_roots(files: list[tuple[Source, bytes]], mistakes: Mistakes) -> list[Mapping]:
    """Each file as a mapping of names, whichever way it is written. A name that two files of one
    level define is reported. References are no part of these files: what looks like one is text."""
    roots: list[Mapping] = []
    for source, data in files:
        read = read_ini if source.path.endswith(INI) else read_mapping
        root = read(source, data, mistakes)
        if root is None:
            continue
        _settle(root)
        for other in roots:
            _report_twice(root, other, mistakes)
        roots.append(root)
    return roots


def _report_twice(root: Mapping, other: Mapping, mistakes: Mistakes) -> None:
    if root.source.level is not other.source.level:
        return
    for name in root.entries.keys() & other.entries.keys():
        place = f"{other.source.path}:{other.where(name)[0]}"
        mistakes.at_key(root, name, f"'{name}' was given already, at {place}")


def _settle(node: Node) -> None:
    if not node.refers:
        return
    if isinstance(node, Scalar):
        node.settled = True
        return
    for child in node.entries.values() if isinstance(node, Mapping) else node.items:
        _settle(child)
