"""Reading the description of a simulated site, and of the policies that are compared on it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from encamp.describe import places
from encamp.describe.kinds import Unusable
from encamp.describe.nodes import Mapping, Mistakes, Node, Sequence
from encamp.describe.policy_file import contradictions
from encamp.describe.reading import read_mapping
from encamp.describe.setting_files import refuse_references
from encamp.describe.sources import Level, Source
from encamp.describe.trigger_files import definitions_in
from encamp.model.errors import Code, EncampError
from encamp.model.policy import Policy
from encamp.model.trigger import TriggerDefinition
from encamp.sim.attributes import COMPARED, MOST_HOSTS, OURS, SITE
from encamp.sim.site import Compared, HostKind, SimulatedSite, Wanted


def read_site(path: Path) -> SimulatedSite:
    """The site that a file describes; all mistakes at once, if there are any."""
    mistakes = Mistakes()
    root, text = _root(path, "a simulated site", mistakes)
    read = SITE.read(root, mistakes)
    site: SimulatedSite | None = None
    if not isinstance(read, Unusable):
        _check_names(root, read, mistakes)
        site = _site(read, str(path), text, mistakes)
        if sum(kind.count for kind in site.hosts) > MOST_HOSTS:
            mistakes.at_key(root, "hosts", f"these are more than {MOST_HOSTS:,} hosts")
    mistakes.raise_any()
    assert site is not None
    return site


def read_policy(path: Path) -> Compared:
    """The policy that a file describes; it is called like the file."""
    mistakes = Mistakes()
    root, text = _root(path, "a policy", mistakes)
    read = COMPARED.read(root, mistakes)
    compared = Compared()
    if not isinstance(read, Unusable):
        _check_policy(root, read, mistakes)
        compared = _compared(path.stem, read, text, mistakes)
    mistakes.raise_any()
    return compared


def _root(path: Path, what: str, mistakes: Mistakes) -> tuple[Mapping, str]:
    """The file as a mapping, and all of its text."""
    found = places.look([places.Place(str(path), Level.HERE)])
    files = places.read(found, anybody=True)
    if not files:
        raise EncampError(
            Code.INPUT_MISSING,
            found[0].refused or f"There is no file {os.fspath(path)}.",
            f"Name a file that describes {what}; 'encamp simulate --help' has examples.",
        )
    source: Source
    [(source, data)] = files
    root = read_mapping(source, data, mistakes)
    if root is None:
        raise mistakes.error()
    refuse_references(root, mistakes)
    return root, data.decode(errors="replace")


def _site(read: dict[str, Any], path: str, text: str, mistakes: Mistakes) -> SimulatedSite:
    return SimulatedSite(
        hosts=tuple(_kind(name, given) for name, given in read["hosts"].items()),
        environments={
            name: Wanted(name=name, **given) for name, given in read["environments"].items()
        },
        trace=read.get("trace"),
        jobs=read.get("jobs"),
        policies=tuple(
            _compared(name, given, text, mistakes)
            for name, given in read.get("policies", {}).items()
        ),
        triggers=_triggers(read, text, mistakes),
        path=path,
    )


def _kind(name: str, given: dict[str, Any]) -> HostKind:
    groups = tuple(dict.fromkeys((name, *given.get("groups", ()))))
    return HostKind(name=name, **{**given, "groups": groups})


def _compared(name: str, given: dict[str, Any], text: str, mistakes: Mistakes) -> Compared:
    ours = {key: given[key] for key in OURS if key in given}
    ours["triggers"] = _triggers(given, text, mistakes)
    return Compared(name=name, policy=_policy(given), **ours)


def _triggers(
    given: dict[str, Any], text: str, mistakes: Mistakes
) -> tuple[TriggerDefinition, ...]:
    root = given.get("triggers")
    return () if root is None else tuple(definitions_in(root, text, mistakes))


def _policy(given: dict[str, Any]) -> Policy:
    return Policy(**{key: value for key, value in given.items() if key not in OURS})


def _check_policy(node: Node | None, given: dict[str, Any], mistakes: Mistakes) -> None:
    assert isinstance(node, Mapping)
    for key, wrong in contradictions(_policy(given)):
        mistakes.at_key(node, key, wrong)


def _check_names(root: Mapping, read: dict[str, Any], mistakes: Mistakes) -> None:
    """Environments and groups that nobody has described."""
    known = read["environments"]
    groups = set(read["hosts"])
    groups.update(group for kind in read["hosts"].values() for group in kind.get("groups", ()))

    def check(node: Node | None, names: Iterable[str], known: Collection[str], what: str) -> None:
        for name in names:
            if name not in known:
                assert node is not None
                mistakes.at(node, f"there is no {what} '{name}'{mistakes.near(name, known)}")

    for name, kind in read["hosts"].items():
        check(_at(root, "hosts", name, "images"), kind.get("images", ()), known, "environment")
    for name, given in read["environments"].items():
        node = _at(root, "environments", name, "hosts")
        check(node, given.get("hosts", ()), groups, "group of hosts")
    trace, jobs = read.get("trace"), read.get("jobs")
    if trace is not None:
        for rule, node in zip(trace.rules, _items(_at(root, "trace", "rules")), strict=False):
            check(_at(node, "environment"), [rule.environment], known, "environment")
        for need, node in zip(trace.needs, _items(_at(root, "trace", "needs")), strict=False):
            check(_at(node, "hosts"), need.hosts, groups, "group of hosts")
        if trace.environment:
            node = _at(root, "trace", "environment")
            check(node, [trace.environment], known, "environment")
    if jobs is not None:
        check(_at(root, "jobs", "environments"), jobs.environments, known, "environment")
    for name, given in read.get("policies", {}).items():
        _check_policy(_at(root, "policies", name), given, mistakes)


def _items(node: Node | None) -> list[Node]:
    """Of a list; one item may stand there without a list around it."""
    if node is None:
        return []
    return [*node.items] if isinstance(node, Sequence) else [node]


def _at(node: Node | None, *path: str) -> Node | None:
    for key in path:
        node = node.entries.get(key) if isinstance(node, Mapping) else None
    return node
