"""What can be said of a simulated site, and of the policies that are compared on it."""

from __future__ import annotations

from typing import Any

from encamp.describe.kinds import WRONG, ListOf, MapOf, Schema
from encamp.describe.nodes import Mapping, Mistakes, Node, shape
from encamp.describe.policy_file import PLACEMENT
from encamp.describe.records import Attribute, Record
from encamp.describe.words import Bytes, Choice, Duration, Number, Truth, Whole, Word
from encamp.model.size import MIB
from encamp.sim.site import Division, Generated, Memory, Need, Reading, Rule, Sharing

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
        "reuse": Attribute(
            Truth(), "may jobs of one owner share a machine, one after another?", "false"
        ),
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


class Triggers:
    """As they stand in `triggers.yaml`; what they mean is looked at when all of it is read."""

    words = "triggers, by their names,"

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        if isinstance(node, Mapping):
            return node
        mistakes.at(node, f"{self.words} are expected here, not {shape(node)}")
        return WRONG

    def schema(self) -> Schema:
        return {"type": "object"}


COMPARED = Record(
    "a policy",
    {
        "sharing": Attribute(Choice(Sharing), "who uses which hosts", "on demand"),
        "division": Attribute(
            Choice(Division), "how hosts are dealt to environments that own theirs", "equal"
        ),
        "reuse": Attribute(
            Truth(),
            "do jobs ask for machines that were left, where the environment allows it?",
            "true",
        ),
        "triggers": Attribute(
            Triggers(), "triggers, beside those of the site; of the same name: instead"
        ),
        **PLACEMENT.attributes,
    },
)

OURS = ("sharing", "division", "reuse", "triggers")
"""Of these, what is not of the policy of real sites."""

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
        "triggers": Attribute(Triggers(), "triggers that are at work under all policies"),
    },
    required=("hosts", "environments"),
)
