"""`site.yaml`: how this host's part of a site is set up."""

from __future__ import annotations

import ipaddress
import re

from encamp.describe import places
from encamp.describe.kinds import ListOf, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Scalar
from encamp.describe.policy_file import OWNER, PLACEMENT
from encamp.describe.policy_file import contradictions as policy_contradictions
from encamp.describe.reading import read_mapping
from encamp.describe.records import Attribute, Record
from encamp.describe.setting_files import refuse_references
from encamp.describe.sources import Level, Source
from encamp.describe.words import Duration, HostPath, Whole, Word
from encamp.model.errors import Code, EncampError
from encamp.model.host import NAME
from encamp.model.site import MANAGER, Api, MeetingPlace, Presences, Right, Site, Traffic

SITE = "site.yaml"

A_NAME = Word("a name of letters, digits, '.', '_' and '-'", pattern=NAME)
NAMES = ListOf(A_NAME)
PATTERN = Word("a name, or a pattern such as node*,", pattern=r"[^\s]{1,254}")


class StoreAddress(Word):
    """What is wrong with one is not shown: there may be a password in it."""

    def __init__(self) -> None:
        super().__init__(
            "'sqlite', or a URL such as postgresql://host/name,",
            pattern=r"sqlite|(sqlite|postgres|postgresql)(\+[a-z]+)?://[^\s]*",
        )

    def complaint(self, node: Scalar, mistakes: Mistakes) -> str:
        return f"{self.words} is expected here"


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
            Whole("a number of messages a second, from 1,", least=1),
            "messages a second that the manager sends at most",
        ),
        "poll": Attribute(
            Duration("a time such as 10s"),
            "between two queries of all hosts for everything; without it only changes travel",
        ),
    },
    Traffic,
)

API = Record(
    "'api'",
    {
        "listen": Attribute(
            Word(
                "an address and a port such as 127.0.0.1:7478 or [::]:7478",
                pattern=r"([0-9.]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}",
            ),
            "where the manager answers over HTTP",
            "127.0.0.1:7478",
        ),
        "certificate": Attribute(
            HostPath("a file"), "its certificate, and those that vouch for it: HTTPS, then"
        ),
        "key": Attribute(
            HostPath("a file"), "the certificate's key, if it is not in the same file"
        ),
        "rate": Attribute(
            Whole("a number of calls a second, from 1,", least=1),
            "calls a second that each token is good for",
            "50",
        ),
        "failures": Attribute(
            Whole("a number of calls, from 1,", least=1),
            "calls without a valid token that one address may make in a minute",
            "10",
        ),
    },
    Api,
)

RIGHT = Record(
    "a right",
    {
        "who": Attribute(
            ListOf(Word("a user or @group", pattern=OWNER)),
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

MEETING = Record(
    "'meeting'",
    {
        "listen": Attribute(
            Word(
                "an address and a port such as 0.0.0.0:7479, or 'none',",
                pattern=r"none|(\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):[0-9]{1,5}",
            ),
            "where clients on other hosts come in, always with TLS; by default on the address from"
            " which this host reaches the bus, on a free port, if the bus is on another host",
        ),
        "address": Attribute(
            Word("a name or an address", pattern=r"[^\s/@]{1,254}"),
            "under which clients reach this host; by default as the bus sees it",
        ),
    },
    MeetingPlace,
)

SITE_FILE = Record(
    "the site's file",
    {
        "name": Attribute(A_NAME, "what the site is called", "site"),
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
        "host": Attribute(A_NAME, "what this host is called; the node's own name"),
        "groups": Attribute(NAMES, "groups of hosts that this host is in"),
        "store": Attribute(
            StoreAddress(),
            "where the manager writes everything down",
            "sqlite",
        ),
        "door": Attribute(HostPath("a file"), "the manager's socket for the command line"),
        "presence": Attribute(PRESENCE, "when an agent counts as present"),
        "traffic": Attribute(TRAFFIC, "how much the manager sends"),
        "api": Attribute(API, "the manager's door for HTTP; without it there is none"),
        "meeting": Attribute(MEETING, "where clients meet what runs on this host"),
        "rights": Attribute(
            ListOf(RIGHT),
            "who may issue commands, beside root and the manager's own user",
        ),
        "submit": Attribute(
            ListOf(Word("a user or @group", pattern=OWNER)),
            "who may ask for machines: users, @groups; everybody, if nobody is named",
        ),
        "placement": Attribute(PLACEMENT, "how the hosts are shared"),
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
            policy = policy_contradictions(site.placement)
            for section, key, wrong in (
                *_contradictions(site),
                *(("placement", key, wrong) for key, wrong in policy),
            ):
                mapping = root.entries.get(section) if section else root
                if isinstance(mapping, Mapping):
                    mistakes.at_key(mapping, key, wrong)
    mistakes.raise_any()
    assert isinstance(site, Site)
    return site


def _contradictions(site: Site) -> list[tuple[str, str, str]]:
    """What makes no sense together: the section, the key in it, and why."""
    found = []
    presence = site.presence
    if presence.silence < 2 * presence.interval:
        found.append(
            (
                "presence",
                "silence",
                "'silence' must be at least twice 'interval': one sign of life may be late",
            )
        )
    if site.host == MANAGER:
        found.append(("", "host", f"'{MANAGER}' is the manager's name on the bus; choose another"))
    if site.authority and not any(url.startswith("tls:") for url in site.bus):
        found.append(("", "authority", "no server in 'bus' has a tls:// URL to be checked"))
    elif not site.credential and any(not _is_local(url) for url in site.bus):
        found.append(
            ("", "bus", "a server on another machine needs a 'credential': see 'encamp site join'")
        )
    if site.api is not None and site.api.certificate is None:
        if site.api.key is not None:
            found.append(("api", "key", "a 'key' is of no use without its 'certificate'"))
        if not _is_loopback(site.api.listen):
            found.append(
                (
                    "api",
                    "listen",
                    (
                        f"'listen: {site.api.listen}' is open to other machines, where tokens would"
                        " be read by everybody on the way: give a 'certificate', or listen on"
                        " 127.0.0.1"
                    ),
                )
            )
    if not site.mail_program or not site.mail_program[0] or "\0" in "".join(site.mail_program):
        found.append(
            ("", "mail_program", "the name of a program is expected here, and its options")
        )
    return found


def _is_loopback(listen: str) -> bool:
    try:
        return ipaddress.ip_address(listen.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        return False


def _is_local(url: str) -> bool:
    return re.match(r"\w+://(127\.|localhost:|\[::1\])", url) is not None
