"""How a site shares its hosts: the section `placement` of `site.yaml`, or a file of its own."""

from __future__ import annotations

from encamp.describe import places
from encamp.describe.kinds import ListOf, MapOf, Unusable
from encamp.describe.nodes import Mistakes
from encamp.describe.reading import read_mapping
from encamp.describe.records import Attribute, Record
from encamp.describe.setting_files import refuse_references
from encamp.describe.sources import Level, Source
from encamp.describe.words import Bytes, Choice, Duration, Number, Whole, Word
from encamp.model.errors import Code, EncampError
from encamp.model.policy import Limit, Per, Policy

NAME = r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}"
OWNER = r"@?[^\s@:]{1,254}"
TIME = Duration("a time such as 10m")

LIMIT = Record(
    "a limit",
    {
        "name": Attribute(
            Word("a name of letters, digits, ' ', '.', '_' and '-'", pattern=NAME),
            "what it is called where something waits for it",
        ),
        "owners": Attribute(
            ListOf(Word("a user, a pattern or @group", pattern=OWNER)),
            "whose machines are counted: users, patterns, @groups of users",
            "['*']",
        ),
        "environments": Attribute(
            ListOf(Word("an environment or a pattern", pattern=r"[^\s]{1,254}")),
            "machines of which environments are counted",
            "['*']",
        ),
        "classes": Attribute(
            ListOf(Word("a class", pattern=r"[^\s]{1,254}")),
            "only machines of environments of one of these classes",
        ),
        "per": Attribute(Choice(Per), "counted for each owner, or for all together", "owner"),
        "machines": Attribute(Whole("a number of machines"), "machines at a time"),
        "cpus": Attribute(Whole("a number of processors"), "processors at a time"),
        "memory": Attribute(Bytes("a size such as 64G"), "memory at a time"),
    },
    Limit,
    required=("name",),
)

PLACEMENT = Record(
    "'placement'",
    {
        "rank": Attribute(
            ListOf(Word("a rank's name or an expression", pattern=r"[\s\S]*\S[\s\S]*", most=4000)),
            "what hosts are sorted by after the request's own rank: `ready`, `pack`, `spread`,"
            " `fastest`, or expressions about a host",
            "[ready, pack]",
        ),
        "overcommit": Attribute(
            Number("a number such as 1.5", least=0.01, most=100.0),
            "processors promised for each one that a host has",
            "1",
        ),
        "memory_reserve": Attribute(
            Bytes("a size such as 512M", zero=True),
            "of each host's memory, not for machines; at most an eighth of it",
            "512M",
        ),
        "disk_reserve": Attribute(
            Bytes("a size such as 1G", zero=True), "of each host's disk, not for machines", "1G"
        ),
        "shares": Attribute(
            MapOf("an owner", OWNER, Number("a number such as 2", least=0.001, most=1e6)),
            "how much more than others some get when not all can: users, @groups; 1 for the rest",
        ),
        "half_life": Attribute(TIME, "after which what somebody has used counts half", "1d"),
        "aging": Attribute(
            TIME, "of waiting, after which a request comes before newer ones of anybody", "1h"
        ),
        "limits": Attribute(ListOf(LIMIT), "at most so much at a time"),
        "pause": Attribute(
            TIME,
            "for which a host is spared an environment that has just failed there; doubled by each"
            " further failure",
            "15s",
        ),
        "longest_pause": Attribute(TIME, "up to which", "1h"),
        "tries": Attribute(
            Whole("a number from 1", least=1),
            "how often machines of a request may fail to be made before it has failed",
            "8",
        ),
        "claim": Attribute(TIME, "for which a host keeps its promise of room", "30s"),
        "patience": Attribute(
            TIME, "for which a lost host is waited for before the jobs on it are lost", "10m"
        ),
        "reservation": Attribute(
            TIME,
            "of waiting, after which room is kept free for the first in the queue",
            "5m",
        ),
        "queued": Attribute(
            Whole("a number of requests, from 1,", least=1),
            "jobs and machines that one owner may have in the queue and under way",
            "100000",
        ),
    },
    Policy,
)


def load_policy(path: str) -> Policy:
    """From a file that says what `placement` in site.yaml could, at its top level."""
    found = places.look([places.Place(path, Level.HERE)])
    files = places.read(found, anybody=True)
    if not files:
        raise EncampError(
            Code.INPUT_MISSING,
            found[0].refused or f"There is no file {path}.",
            "Name a file with a policy.",
        )
    return read_policy(*files[0])


def read_policy(source: Source, data: bytes) -> Policy:
    mistakes = Mistakes()
    policy: Policy | Unusable | None = None
    root = read_mapping(source, data, mistakes)
    if root is not None:
        refuse_references(root, mistakes)
        policy = PLACEMENT.read(root, mistakes)
        if isinstance(policy, Policy):
            for key, wrong in contradictions(policy):
                mistakes.at_key(root, key, wrong)
    mistakes.raise_any()
    assert isinstance(policy, Policy)
    return policy


def contradictions(policy: Policy) -> list[tuple[str, str]]:
    """What makes no sense together: the key, and why."""
    found = []
    names = [limit.name for limit in policy.limits]
    for limit in policy.limits:
        if limit.machines is limit.cpus is limit.memory is None:
            what = f"limit '{limit.name}' bounds nothing: give machines, cpus or memory"
            found.append(("limits", what))
        if names.count(limit.name) > 1:
            found.append(("limits", f"there is more than one limit '{limit.name}'"))
            break
    if policy.longest_pause < policy.pause:
        found.append(("longest_pause", "'longest_pause' must not be shorter than 'pause'"))
    return found
