"""How a site is set up: what `encamp site init` writes and every daemon of it reads."""

from __future__ import annotations

import msgspec

from encamp.model.policy import Policy

MANAGER = "manager"
"""The manager's name on the bus; no agent may be called so."""

EVERYBODY = "agents"
"""The group that every agent is in."""


class Right(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may issue what, where. All that is not granted is refused."""

    who: tuple[str, ...]
    """Names of users, `@group` for groups of users."""
    commands: tuple[str, ...] = ("*",)
    """Patterns such as `machine.*`."""
    hosts: tuple[str, ...] = ("*",)
    """Patterns of hosts' names, `@group` for groups of hosts."""


class Presences(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When is an agent present?"""

    interval: float = 2.0
    """Seconds between two signs of life."""
    silence: float = 6.0
    """Seconds without one after which it is lost."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    limit: float | None = None
    """Messages a second, queries included, that the manager sends at most."""
    poll: float | None = None
    """Seconds between two queries of all hosts for everything. Without it only changes travel."""


class Api(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The manager's door for HTTP. Without it there is none."""

    listen: str = "127.0.0.1:7478"
    """An address and a port. Beyond this host only with a certificate."""
    certificate: str | None = None
    """The file with it, and with those that vouch for it; None: plain HTTP."""
    key: str | None = None
    """The file with its key; None: it is in the certificate's file."""
    rate: float = 50.0
    """Calls a second that each token is good for, in the long run."""
    failures: int = 10
    """Calls without a valid token that one address may make at once, and as many in each minute."""


class MeetingPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where clients on other hosts meet what runs on this one."""

    listen: str = ""
    """An address and a port, or `none`; empty: chosen by the agent, if the site has other hosts."""
    address: str = ""
    """The name or number under which clients reach it; empty: as the bus sees this host."""


class Site(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str = "site"
    bus: tuple[str, ...] = ()
    """URLs of the NATS servers; none: everything is in one process."""
    credential: str | None = None
    """The file with this participant's secret, for NATS."""
    authority: str | None = None
    """The file with the certificates that the servers' are checked against, for tls:// URLs."""
    host: str | None = None
    """This agent's name; the node's own, if it is not given."""
    groups: tuple[str, ...] = ()
    """Groups of hosts that this agent is in."""
    store: str = "sqlite"
    """`sqlite`: a file in the manager's home; or a URL such as postgresql://host/name."""
    door: str | None = None
    """The manager's socket for the command line; in the manager's home, if it is not given."""
    presence: Presences = Presences()
    traffic: Traffic = Traffic()
    api: Api | None = None
    meeting: MeetingPlace = MeetingPlace()
    rights: tuple[Right, ...] = ()
    """Beside root, the manager's own user, and triggers, which may do everything."""
    submit: tuple[str, ...] = ()
    """Users and `@group`s that may ask for machines; everybody, if nobody is named."""
    placement: Policy = Policy()
    keep_events: float = 30 * 86400.0
    """Seconds that events, commands, requests and the triggers' log are kept."""
    mail_program: tuple[str, ...] = ("/usr/sbin/sendmail", "-i", "-t")
    """Takes a mail on its standard input."""
