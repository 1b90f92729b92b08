"""`batch.yaml`: how the hosts of a site work with its batch system."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from encamp.describe import places
from encamp.describe.kinds import WRONG, ListOf, MapOf, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar, Sequence
from encamp.describe.reading import read_mapping
from encamp.describe.records import Attribute, Record
from encamp.describe.setting_files import refuse_references
from encamp.describe.sources import Level, Source
from encamp.describe.words import Bytes, Duration, Truth, Whole, Word
from encamp.model.batch import CLOSE, ENVIRONMENT, OPEN, BatchSettings, Rule, Threshold, with_nodes
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, Size

BATCH = "batch.yaml"

NONE = "none"
"""How a rule says that a job is left alone."""

ACCOUNT = Word("a name without blanks", pattern=r"[A-Za-z0-9_.][A-Za-z0-9_.@+$-]{0,253}")
FREE = Bytes("a size such as 512M", zero=True)
TIME = Duration("a time such as 5m")


class _Environment(Word):
    """Its name travels on the first line of a script: a few characters only."""

    def __init__(self) -> None:
        super().__init__(f"an environment's name, or '{NONE}',", pattern=ENVIRONMENT)

    def make(self, node: Scalar) -> Any:
        made = super().make(node)
        return "" if made == NONE else made


class _Shared(Word):
    """A directory that is the same inside."""

    def __init__(self) -> None:
        super().__init__("an absolute path such as /home", pattern=r"/[^\0\n]*", most=4096)

    def make(self, node: Scalar) -> Any:
        made = super().make(node)
        if made is WRONG:
            return WRONG
        path = os.path.normpath(made)
        return WRONG if path.strip("/") == "" else "/" + path.lstrip("/")

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        if node.text and node.text.strip("/.") == "":
            return "all of the host cannot be shared; name the directories that jobs need"
        return super().complaint(node, mistakes)


RULE = Record(
    "a rule",
    {
        "environment": Attribute(
            _Environment(), f"what jobs get that this fits and that name none; {NONE}: no machine"
        ),
        "queue": Attribute(ACCOUNT, "the partition or queue they were submitted to"),
        "account": Attribute(ACCOUNT, "their account or project"),
        "user": Attribute(ACCOUNT, "whose they are"),
        "group": Attribute(ACCOUNT, "the group they run as"),
    },
    Rule,
    required=("environment",),
)


def _threshold(name: str, default: Threshold) -> Record:
    """What is not said is as it would be if nothing was."""
    return Record(
        f"'{name}'",
        {
            "memory": Attribute(FREE, "memory", f"{default.memory // MIB}M"),
            "disk": Attribute(FREE, "disk", f"{default.disk // MIB}M"),
        },
        partial(Threshold, memory=default.memory, disk=default.disk),
    )


SIZE = Record(
    "'size'",
    {
        "cpus": Attribute(Whole("a number from 1", least=1, most=4096), "processors"),
        "memory": Attribute(Bytes("a size such as 512M or 2G", least=96 * MIB), "memory"),
        "disk": Attribute(
            Bytes("a size such as 10G", least=16 * MIB, zero=True),
            "room for what it writes; 0: in its memory",
            "0",
        ),
    },
    Size,
    required=("cpus", "memory"),
)

BATCH_FILE = Record(
    "the file of the batch system",
    {
        "system": Attribute(
            Word("a batch system such as slurm or gridengine", pattern=r"[a-z][a-z0-9_]{0,63}"),
            "the batch system: slurm, gridengine or pbs",
        ),
        "shares": Attribute(
            ListOf(_Shared(), most=100), "directories that jobs find inside, live", "[/home]"
        ),
        "rules": Attribute(
            ListOf(RULE), "which environment jobs get that name none; the first that fits decides"
        ),
        "environments": Attribute(
            ListOf(Word("an environment's name", pattern=ENVIRONMENT)),
            "those that jobs may name; others are refused when they are submitted; all that are"
            " described by default",
        ),
        "features": Attribute(
            Truth(), "Slurm: does -C NAME name one of these environments, too?", "false"
        ),
        "bait_feature": Attribute(
            Word("a feature of Slurm's", pattern=ENVIRONMENT),
            "Slurm: a feature of the hosts with agents alone, which jobs then ask for that get a"
            " machine",
        ),
        "close": Attribute(
            _threshold("close", CLOSE), "with less free than this, no more jobs come"
        ),
        "open": Attribute(_threshold("open", OPEN), "with at least this, they come again"),
        "machines": Attribute(
            Whole("a number from 1", least=1, most=100_000), "at most so many at a time on a host"
        ),
        "every": Attribute(
            TIME, "between two looks at whether jobs should come, and at worker nodes", "5s"
        ),
        "tries": Attribute(
            Whole("a number from 1", least=1, most=100),
            "how often a job that has not begun is tried on the spot",
            "3",
        ),
        "restarts": Attribute(
            Whole("a number", most=1000),
            "after so many, a job that fails for want of a machine is held, not queued again",
            "3",
        ),
        "failures": Attribute(
            Whole("a number from 1", least=1, most=1000),
            "so many machines of an environment in a row that did not come up keep jobs away",
            "3",
        ),
        "pause": Attribute(TIME, "for so long", "5m"),
        "watch": Attribute(
            Truth(), "does this host look at the queue for the whole site?", "false"
        ),
        "size": Attribute(
            SIZE,
            "of machines whose job was granted nothing in particular; the environment's by default",
        ),
        "programs": Attribute(
            MapOf(
                "where something of the batch system is",
                r"[a-z][a-z_]{0,63}",
                Word("a path or a name", pattern=r"[^\0\n]+", most=4096),
            ),
            "where the batch system's own things are, if not where its packages put them",
        ),
    },
    BatchSettings,
    required=("system",),
)


def load_batch_settings(*, of_host: bool = False) -> BatchSettings | None:
    """How this host works with its batch system; None if it has none. `of_host`: whoever asks, for
    what an ordinary account may want to know; its own agent has no batch system. As the file only
    informs that account, it may be told of another directory."""
    wanted = places.daemon_places(BATCH)
    if of_host:
        directory = os.environ.get("ENCAMP_SITE_CONFIG") or places.site_directory()
        wanted = [places.Place(f"{directory}/{BATCH}", Level.SITE)]
    found = places.look(wanted)
    files = places.read(found)
    for entry in found:
        if entry.refused:
            raise EncampError(
                Code.CONFIGURATION,
                entry.refused,
                "This file decides which machines other people's jobs run in.",
            )
    return read_batch_settings(*files[0]) if files else None


def read_batch_settings(source: Source, data: bytes) -> BatchSettings:
    mistakes = Mistakes()
    settings: BatchSettings | Unusable | None = None
    root = read_mapping(source, data, mistakes)
    if root is not None:
        refuse_references(root, mistakes)
        settings = BATCH_FILE.read(root, mistakes)
        if isinstance(settings, BatchSettings):
            _report_contradictions(settings, root, mistakes)
    mistakes.raise_any()
    assert isinstance(settings, BatchSettings)
    return settings


def _report_contradictions(settings: BatchSettings, root: Mapping, mistakes: Mistakes) -> None:
    for what in ("memory", "disk"):
        if getattr(settings.open, what) < getattr(settings.close, what):
            where = "open" if "open" in root.entries else "close"
            mistakes.at_key(
                root, where, f"with this {what}, what opens would close again: 'open' is the larger"
            )
    if settings.features and not settings.environments:
        mistakes.at_key(
            root, "features", "which features are environments is not said: list 'environments'"
        )
    if settings.bait_feature and settings.bait_feature in settings.environments:
        mistakes.at_key(root, "bait_feature", "it is an environment, too: choose another name")
    if settings.bait_feature and settings.system not in ("slurm", "pbs"):
        mistakes.at_key(root, "bait_feature", f"{settings.system} has no features: leave it out")
    rules = _rules(root)
    for number, rule in enumerate(settings.rules[:-1]):
        if not (rule.queue or rule.account or rule.user or rule.group):
            mistakes.at(
                rules[number + 1], "no job comes to this rule: the one before it fits every job"
            )
            break
    for node, rule in zip(rules, settings.rules, strict=True):
        name = rule.environment
        if not name or not settings.environments or name in settings.environments:
            continue
        if settings.system == "gridengine" and rule.queue:
            continue  # That is decided on the host, which takes the rule's word.
        if isinstance(node, Mapping) and not _may_have_nodes(name, settings.system):
            mistakes.at_key(
                node,
                "environment",
                f"every job of this rule would be refused: '{name}' is not among 'environments'",
            )


def _may_have_nodes(name: str, system: str) -> bool:
    """Are its machines worker nodes, whose jobs the batch system sees to? What is wrong with its
    description others tell."""
    from encamp.describe.environments import find_environment

    try:
        enrolment = find_environment(name).enrol
    except EncampError as error:
        return error.code is not Code.UNKNOWN_ENVIRONMENT
    return enrolment is not None and enrolment.system == with_nodes(system)


def _rules(root: Mapping) -> list[Node]:
    node = root.entries.get("rules")
    if isinstance(node, Sequence):
        return list(node.items)
    return [node] if isinstance(node, Mapping) else []  # One needs no list.
