"""`site.yaml`: how this host's part of a site is set up."""

from __future__ import annotations

import re

from encamp.describe import places
from encamp.describe.kinds import ListOf, Unusable
from encamp.describe.nodes import Mistakes
from encamp.describe.reading import read_mapping
from encamp.describe.records import Attribute, Record
from encamp.describe.setting_files import refuse_references
from encamp.describe.sources import Level, Source
from encamp.describe.words import Duration, HostPath, Whole, Word
from encamp.model.errors import Code, EncampError
from encamp.model.host import NAME
from encamp.model.site import MANAGER, Presences, Right, Site, Traffic

SITE = "site.yaml"

NAMES = ListOf(Word("a name", pattern=NAME))
PATTERN = Word("a name, or a pattern such as node*,", pattern=r"[^\s]{1,254}")

PRESENCE = Record(
    "'presence'",
    {
        "interval": Attribute(
            Duration("a time such as 2s"), "between two signs of life of an agent", "2s"
        ),
        "silence": Attribute(
            Duration("a time such as 6s"), "without one, after which an agent is lost", "6s"
        ),
    },
    Presences,
)

TRAFFIC = Record(
    "'traffic'",
    {
        "limit": Attribute(
            Whole("messages a second", least=1), "messages a second that the manager sends at most"
        ),
        "poll": Attribute(
            Duration("a time such as 10s"),
            "between two queries of all hosts for everything; without it only changes travel",
        ),
    },
    Traffic,
)

RIGHT = Record(
    "a right",
    {
        "who": Attribute(
            ListOf(Word("a user or @group", pattern=r"@?[^\s@:]{1,254}")),
            "users, @groups of users",
        ),
        "commands": Attribute(
            ListOf(PATTERN), "patterns of commands' names, such as machine.*", "['*']"
        ),
        "hosts": Attribute(ListOf(PATTERN), "patterns of hosts' names, @group for groups", "['*']"),
    },
    Right,
    required=("who",),
)

SITE_FILE = Record(
    "the site's file",
    {
        "name": Attribute(Word("a name", pattern=NAME), "what the site is called", "site"),
        "bus": Attribute(
            ListOf(
                Word(
                    "a URL such as nats://host:4222 or tls://host:4222",
                    pattern=r"(nats|tls)://[^\s/@]+:[0-9]{1,5}",
                )
            ),
            "the NATS servers; without any, manager and agent are in one process",
        ),
        "credential": Attribute(
            HostPath("a file"),
            "the secret shown to the NATS servers; {name} stands for whose it is",
        ),
        "authority": Attribute(
            HostPath("a file"), "the certificates that the servers' are checked against"
        ),
        "host": Attribute(
            Word("a name", pattern=NAME), "what this host is called; the node's own name"
        ),
        "groups": Attribute(NAMES, "groups of hosts that this host is in"),
        "store": Attribute(
            Word("'sqlite', or a URL such as postgresql://host/name", pattern=r"[^\s]+"),
            "where the manager writes everything down",
            "sqlite",
        ),
        "door": Attribute(HostPath("a file"), "the manager's socket for the command line"),
        "presence": Attribute(PRESENCE, "when an agent counts as present"),
        "traffic": Attribute(TRAFFIC, "how much the manager sends"),
        "rights": Attribute(
            ListOf(RIGHT),
            "who may issue commands, beside root and the manager's own user",
        ),
        "keep_events": Attribute(
            Duration("a time such as 30d"), "how long what happened is kept", "30d"
        ),
        "mail_program": Attribute(
            ListOf(Word("a word of the command")),
            "takes a mail on its standard input",
            "[/usr/sbin/sendmail, -i, -t]",
        ),
    },
    Site,
)


def load_site() -> Site | None:
    """How this host's part of a site is set up, or the site of one's own; None if there is none."""
    system = places.Place(f"{places.site_directory()}/{SITE}", Level.SITE)
    found = places.look([*places.daemon_places(SITE), system])
    files = places.read(found)
    for entry in found:
        if entry.refused:
            raise EncampError(
                Code.CONFIGURATION, entry.refused, "This file decides who is listened to here."
            )
    return read_site(*files[0]) if files else None


def read_site(source: Source, data: bytes) -> Site:
    mistakes = Mistakes()
    site: Site | Unusable | None = None
    root = read_mapping(source, data, mistakes)
    if root is not None:
        refuse_references(root, mistakes)
        site = SITE_FILE.read(root, mistakes)
        if isinstance(site, Site):
            for key, wrong in _contradictions(site):
                mistakes.at_key(root, key, wrong)
    mistakes.raise_any()
    assert isinstance(site, Site)
    return site


def _contradictions(site: Site) -> list[tuple[str, str]]:
    """What makes no sense together: the key, and why."""
    found = []
    presence = site.presence
    if presence.silence < 2 * presence.interval:
        found.append(
            (
                "presence",
                "'silence' must be at least twice 'interval': one sign of life may be late",
            )
        )
    if site.host == MANAGER:
        found.append(("host", f"'{MANAGER}' is the manager's name on the bus; choose another"))
    if site.authority and not any(url.startswith("tls:") for url in site.bus):
        found.append(("authority", "no server in 'bus' has a tls:// URL to be checked"))
    elif not site.credential and any(not _is_local(url) for url in site.bus):
        found.append(
            ("bus", "a server on another machine needs a 'credential': see 'encamp site join'")
        )
    return found


def _is_local(url: str) -> bool:
    return re.match(r"\w+://(127\.|localhost:|\[::1\])", url) is not None
