"""Reading the description of a simulated site, and of the policies that are compared on it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from encamp.describe import places
from encamp.describe.kinds import ListOf, MapOf, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Node, Sequence
from encamp.describe.policy_file import PLACEMENT, contradictions
from encamp.describe.reading import read_mapping
from encamp.describe.records import Attribute, Record
from encamp.describe.setting_files import refuse_references
from encamp.describe.sources import Level, Source
from encamp.describe.words import Bytes, Choice, Duration, Number, Truth, Whole, Word
from encamp.model.errors import Code, EncampError
from encamp.model.policy import Policy
from encamp.model.size import MIB
from encamp.sim.site import (
    Compared,
    Division,
    Generated,
    HostKind,
    Memory,
    Need,
    Reading,
    Rule,
    Sharing,
    SimulatedSite,
    Wanted,
)

NAME = r"[A-Za-z][A-Za-z0-9._-]{0,62}"
MOST_HOSTS = 100_000
MOST_JOBS = 10_000_000


TIME = Duration("a time such as 0.2s, 5m or 1h")
WORDS = ListOf(Word("a name", pattern=NAME))
PATTERNS = ListOf(Word("a name, or a pattern such as q_*,", pattern=r"[^\s]{1,254}"))
COUNT = Whole("a whole number", least=1, most=MOST_HOSTS)
EXPRESSION = Word("an expression about a host")

HOST_KIND = Record(
    "a kind of hosts",
    {
        "count": Attribute(COUNT, "how many there are", "1"),
        "cpus": Attribute(Whole("a number of processors", least=1), "processors of each"),
        "memory": Attribute(Bytes("a size such as 64G", least=16 * MIB), "memory of each"),
        "disk": Attribute(Bytes("a size such as 1T"), "disk of each", "1T"),
        "groups": Attribute(WORDS, "groups of hosts that they are in, beside one of their name"),
        "images": Attribute(WORDS, "environments whose images they have from the beginning"),
        "network": Attribute(
            Bytes("bytes a second, such as 100M,", least=1),
            "bytes a second at which each copies an image",
            "119M",
        ),
        "claims": Attribute(
            Bytes("a size such as 64G"), "memory that each says it has, if that is not true"
        ),
    },
    required=("cpus", "memory"),
)

ENVIRONMENT = Record(
    "an environment",
    {
        "cpus": Attribute(Whole("a number of processors", least=1), "of a machine", "1"),
        "memory": Attribute(Bytes("a size such as 512M", least=1), "of a machine", "512M"),
        "disk": Attribute(Bytes("a size such as 4G"), "of a machine", "0"),
        "image": Attribute(Bytes("a size such as 33M"), "what has to be copied to a host", "33M"),
        "templates": Attribute(Truth(), "may machines be cloned from a template?", "true"),
        "clone": Attribute(TIME, "to make a machine from a template", "0.248s"),
        "boot": Attribute(TIME, "to make a machine without one", "3.681s"),
        "template": Attribute(TIME, "to make a template", "5.784s"),
        "end": Attribute(TIME, "to end a machine", "0.006s"),
        "classes": Attribute(WORDS, "classes it is in"),
        "hosts": Attribute(
            WORDS, "groups of hosts that are its own where hosts are divided; else they are dealt"
        ),
    },
)

RULE = Record(
    "a rule",
    {
        "environment": Attribute(Word("a name", pattern=NAME), "what such a job runs in"),
        "properties": Attribute(PATTERNS, "it asks for one of these"),
        "queues": Attribute(PATTERNS, "it was in one of these queues, by name or number"),
        "users": Attribute(PATTERNS, "it was one of these users', by number"),
        "user_groups": Attribute(PATTERNS, "its user was in one of these groups, by number"),
        "programs": Attribute(PATTERNS, "it ran one of these programs, by number"),
        "requirements": Attribute(EXPRESSION, "what must be true of its hosts"),
        "rank": Attribute(EXPRESSION, "by what its hosts are sorted"),
        "priority": Attribute(Whole("a whole number", least=-1000, most=1000), "its priority"),
    },
    Rule,
    required=("environment",),
)

NEED = Record(
    "a need",
    {
        "property": Attribute(Word("a pattern", pattern=r"[^\s]{1,254}"), "that a job asks for"),
        "hosts": Attribute(WORDS, "groups of hosts, of which it wants one then"),
        "requirements": Attribute(EXPRESSION, "what must be true of its hosts then"),
    },
    Need,
    required=("property",),
)

RETRIES = Attribute(
    Whole("a whole number", most=100), "how often a job may be begun anew that was lost", "0"
)

READING = Record(
    "'trace'",
    {
        "rules": Attribute(ListOf(RULE), "which jobs run in what; the first that matches counts"),
        "environment": Attribute(Word("a name", pattern=NAME), "for all other jobs"),
        "needs": Attribute(ListOf(NEED), "what else jobs ask for; all that match count"),
        "machine_cpus": Attribute(
            Whole("a number of processors", least=1), "of one machine: a larger job gets several"
        ),
        "memory": Attribute(
            Choice(Memory), "what the field for memory means in this trace", "KiB per processor"
        ),
        "faster": Attribute(
            Number("a number such as 1.5", least=0.001, most=1000.0),
            "so many times more jobs an hour",
            "1",
        ),
        "retries": RETRIES,
    },
    Reading,
)

NUMBERS = ListOf(Whole("a whole number", least=1, most=10_000))
PART = Number("a number", least=0.0, most=1.0)

GENERATED = Record(
    "'jobs'",
    {
        "jobs": Attribute(Whole("a whole number", least=1, most=MOST_JOBS), "how many", "1000"),
        "every": Attribute(TIME, "between two jobs, on average", "10s"),
        "run": Attribute(TIME, "that half of them run for at most", "5m"),
        "spread": Attribute(
            Number("a number", least=0.0, most=5.0), "deviation of the logarithm of that", "1"
        ),
        "cpus": Attribute(NUMBERS, "processors of a machine: one of these", "[1]"),
        "machines": Attribute(NUMBERS, "machines of a job: one of these", "[1]"),
        "apart": Attribute(Truth(), "are a job's machines on different hosts?", "false"),
        "environments": Attribute(
            MapOf("an environment", NAME, Number("a number", least=0.0, most=1e6)),
            "how many jobs want each of them; as many if nothing is said",
        ),
        "turn": Attribute(
            TIME, "after which the next environment is wanted as much as the one before was"
        ),
        "owners": Attribute(Whole("a whole number", least=1, most=100_000), "users", "4"),
        "retries": RETRIES,
        "cancelled": Attribute(PART, "part of the jobs that somebody cancels", "0"),
        "standing": Attribute(
            PART, "part that is machines without a job, which somebody ends after its run time", "0"
        ),
    },
    Generated,
)

COMPARED = Record(
    "a policy",
    {
        "sharing": Attribute(Choice(Sharing), "who uses which hosts", "on demand"),
        "division": Attribute(
            Choice(Division), "how hosts are dealt to environments that own theirs", "equal"
        ),
        **PLACEMENT.attributes,
    },
)

SITE = Record(
    "a simulated site",
    {
        "hosts": Attribute(MapOf("a kind of hosts", NAME, HOST_KIND), "the hosts, by kinds"),
        "environments": Attribute(
            MapOf("an environment", NAME, ENVIRONMENT), "what jobs can ask for"
        ),
        "trace": Attribute(READING, "how a trace is read"),
        "jobs": Attribute(GENERATED, "jobs that are made up, if there is no trace"),
        "policies": Attribute(
            MapOf("a policy", r"[^\s].{0,60}", COMPARED), "policies that are compared"
        ),
    },
    required=("hosts", "environments"),
)


def read_site(path: Path) -> SimulatedSite:
    """The site that a file describes; all mistakes at once, if there are any."""
    mistakes = Mistakes()
    root = _root(path, "a simulated site", mistakes)
    read = SITE.read(root, mistakes)
    site: SimulatedSite | None = None
    if not isinstance(read, Unusable):
        _check_names(root, read, mistakes)
        site = _site(read, str(path))
        if sum(kind.count for kind in site.hosts) > MOST_HOSTS:
            mistakes.at_key(root, "hosts", f"these are more than {MOST_HOSTS:,} hosts")
    mistakes.raise_any()
    assert site is not None
    return site


def read_policy(path: Path) -> Compared:
    """The policy that a file describes; it is called like the file."""
    mistakes = Mistakes()
    root = _root(path, "a policy", mistakes)
    read = COMPARED.read(root, mistakes)
    if not isinstance(read, Unusable):
        _check_policy(root, read, mistakes)
    mistakes.raise_any()
    return _compared(path.stem, read)


def _root(path: Path, what: str, mistakes: Mistakes) -> Mapping:
    found = places.look([places.Place(str(path), Level.HERE)])
    files = places.read(found, anybody=True)
    if not files:
        raise EncampError(
            Code.INPUT_MISSING,
            found[0].refused or f"There is no file {os.fspath(path)}.",
            f"Name a file that describes {what}; docs/simulation.md says how.",
        )
    source: Source
    [(source, data)] = files
    root = read_mapping(source, data, mistakes)
    if root is None:
        raise mistakes.error()
    refuse_references(root, mistakes)
    return root


def _site(read: dict[str, Any], path: str) -> SimulatedSite:
    return SimulatedSite(
        hosts=tuple(_kind(name, given) for name, given in read["hosts"].items()),
        environments={
            name: Wanted(name=name, **given) for name, given in read["environments"].items()
        },
        trace=read.get("trace"),
        jobs=read.get("jobs"),
        policies=tuple(_compared(name, given) for name, given in read.get("policies", {}).items()),
        path=path,
    )


def _kind(name: str, given: dict[str, Any]) -> HostKind:
    groups = tuple(dict.fromkeys((name, *given.get("groups", ()))))
    return HostKind(name=name, **{**given, "groups": groups})


OURS = ("sharing", "division")


def _compared(name: str, given: dict[str, Any]) -> Compared:
    ours = {key: given[key] for key in OURS if key in given}
    return Compared(name=name, policy=_policy(given), **ours)


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
