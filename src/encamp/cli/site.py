"""Setting up a site: who belongs to it, and how its servers know."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.cli.recording import record
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.bus.server_file import Address
    from encamp.manager.enrolment import Enrolment, Members
    from encamp.model.site import Presences

BUS = "127.0.0.1:4222"

Where = Annotated[
    Path | None,
    typer.Option(
        "--directory", metavar="DIR", help="Where the site was set up, if not in /etc/encamp."
    ),
]
HostName = Annotated[
    str, typer.Argument(metavar="HOST", help="The host's name.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    site = typer.Typer(help="Set up a site: a manager, agents, and the bus between them.")
    for command in (init, add, join, remove, forget, ls, restored, record):
        site.command()(command)
    app.add_typer(site, name="site")


def init(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="/etc/encamp, if not given.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the site is called.")] = "site",
    bus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the NATS server listens, as agents reach it; again for each of a cluster."
            f" Without it: {BUS}, for this machine alone.",
        ),
    ] = None,
    agents: Annotated[
        str, typer.Option(metavar="NAME,...", help="Agents to write credentials for at once.")
    ] = "",
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's certificate: clients must use TLS."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of that certificate.")
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Certificates to check the server's against, if the system's are not.",
        ),
    ] = None,
) -> None:
    """Set up a new site.

    Writes its keys, the configuration of the NATS server, and the manager's credential.
    """
    from encamp.bus.server_file import Encryption

    if (certificate is None) != (key is None) or (authority and certificate is None):
        raise EncampError(
            Code.USAGE,
            "TLS needs --certificate and --key, and perhaps --authority.",
            "Give both, or none of them.",
        )
    for file in (certificate, key, authority):
        if file is not None and not file.is_file():
            raise EncampError(Code.INPUT_MISSING, f"There is no file {file}.")
    encryption = None
    trusted = str(authority.resolve()) if authority else ""
    if certificate and key:
        encryption = Encryption(str(certificate.resolve()), str(key.resolve()), trusted)
    enrolment = _enrolment(directory)
    servers = [_address(text) for text in bus or (BUS,)]
    named = [agent.strip() for agent in agents.split(",") if agent.strip()]
    written = enrolment.init(name, servers, named, encryption=encryption, authority=trusted)
    for path in written:
        print(path)
    _say_what_is_next(enrolment.directory, servers, "" if encryption is None else encryption.key)


def _say_what_is_next(directory: Path, servers: Sequence[Address], key: str) -> None:
    """To standard error: the output is the list of files."""
    config = shlex.quote(f"{directory}/nats-server{'-N' if len(servers) > 1 else ''}.conf")
    each = " on each of its machines" if len(servers) > 1 else ""
    if elsewhere := _elsewhere(servers):
        certificate = " and the files of its certificate" if key else ""
        each += f" ({elsewhere}; copy this file{certificate} there, if that is another host)"
    variable = _variable(directory)
    option = f" --directory {shlex.quote(str(directory))}" if variable else ""
    print(
        f"""
Next:
  1. Start the server of the bus{each}:  nats-server -c {config}
  2. Start the manager here:  {variable}encamp manager
  3. For each host:  encamp site add{option} HOST
     and on the host, with the secret that this prints:  encamp site join SECRET""",
        file=sys.stderr,
    )


def _elsewhere(servers: Sequence[Address]) -> str:
    """Where the servers of the bus are, if it is not known that they are here."""
    here = ("localhost", "127.0.0.1", "::1")
    return ", ".join(server.host for server in servers if server.host not in here)


def _variable(directory: Path) -> str:
    """What a daemon of the same account has to be told to read its files there."""
    from encamp.describe.places import SITE_CONFIG

    if str(directory) == SITE_CONFIG:
        return ""
    level = "SITE" if os.geteuid() == 0 else "USER"
    return f"ENCAMP_{level}_CONFIG={shlex.quote(str(directory))} "


def add(
    names: Annotated[
        list[str],
        typer.Argument(metavar="HOST...", help="The hosts' names.", show_default=False),
    ],
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group of hosts it is in; again.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Worth nothing after so long, e.g. 12h.")
    ] = None,
    directory: Where = None,
) -> None:
    """Let hosts join: print the one secret each needs.

    It is shown only once. With several hosts, each has a line with its name and its secret.
    """
    from encamp.bus import subjects
    from encamp.cli.options import parse_duration

    for each in group or ():
        subjects.token(each)
    lifetime = parse_duration(expires) if expires else None
    enrolment = _enrolment(directory)
    presence = _presence(enrolment.directory)
    for name, secret in enrolment.add_all(names, tuple(group or ()), lifetime, presence).items():
        print(secret if len(names) == 1 else f"{name} {secret}")
    where = f"'{names[0]}'" if len(names) == 1 else "each of them"
    print(
        f"On {where}, as root:  encamp site join SECRET   (or: encamp site join - < FILE)",
        file=sys.stderr,
    )


def join(
    secret: Annotated[
        str,
        typer.Argument(
            metavar="SECRET",
            help="What 'encamp site add' printed; '-' reads it from standard input.",
            show_default=False,
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="To write to, if not /etc/encamp."),
    ] = None,
) -> None:
    """Make this host part of a site."""
    from encamp.bus.secret import unpack
    from encamp.manager.joining import join as join_site

    # Others on the machine can see what a command is started with.
    text = sys.stdin.read(1 << 20) if secret == "-" else secret
    invitation = unpack(text)
    where = (directory or Path(_usual_directory())).absolute()
    for path in join_site(where, invitation):
        print(path)
    variable = _variable(where)
    unit = "" if variable else "   (or: systemctl enable --now encamp-agent)"
    print(
        f"This host is '{invitation.name}' of the site '{invitation.site}'."
        f" Start its agent:  {variable}encamp agent{unit}",
        file=sys.stderr,
    )


def remove(name: HostName, directory: Where = None) -> None:
    """Take a host out of the site.

    Its credential is worth nothing any more. As soon as it is cut off, the manager forgets it, and
    nothing waits for it.
    """
    enrolment = _enrolment(directory)
    for path in enrolment.remove(name):
        print(path)
    elsewhere = _elsewhere(enrolment.members().servers)
    where = f" on {elsewhere}" if elsewhere else ""
    copy = ". Copy it there, if that is another host; then, there" if elsewhere else ""
    print(
        f"'{name}' is refused as soon as the server{where} has read this file again{copy}:"
        "  systemctl reload nats-server   (or: nats-server --signal reload)",
        file=sys.stderr,
    )


def forget(name: HostName) -> None:
    """Have the manager forget a host that is gone.

    It has to be lost, or to have left; all that is known of it goes with it. Should its agent come
    back, it is a new host. 'encamp site remove' keeps it from coming back.
    """
    from encamp.cli.asking import asked
    from encamp.door.questions import ForgetHost
    from encamp.model.host import Host

    for host in asked(ForgetHost(host=name), Host):
        print(host.name)


def restored(
    cancel_waiting: Annotated[
        bool, typer.Option("--cancel-waiting", help="Cancel the jobs and machines that wait.")
    ] = False,
    keep_waiting: Annotated[
        bool,
        typer.Option(
            "--keep-waiting", help="Start what waits, also what has run since the backup."
        ),
    ] = False,
    keep_tokens: Annotated[
        bool,
        typer.Option(
            "--keep-tokens", help="Keep all tokens valid, also those revoked since the backup."
        ),
    ] = False,
) -> None:
    """Go on after the manager's store was put back from a backup.

    The store does not know which of the jobs that wait in it ran since the backup was made, nor
    which tokens were revoked. Say what becomes of the jobs; all tokens are revoked, unless
    --keep-tokens is given.

    Example: encamp site restored --cancel-waiting
    """
    from encamp.cli.asking import asked_one
    from encamp.door.questions import GoneOn, GoOn

    if cancel_waiting is keep_waiting:
        raise EncampError(
            Code.USAGE,
            "What becomes of the jobs and machines that wait has to be said.",
            "Give --cancel-waiting, or --keep-waiting if none of them has run since the backup.",
        )
    done = asked_one(GoOn(cancel_waiting=cancel_waiting, keep_tokens=keep_tokens), GoneOn)
    print(f"{done.waiting} waiting: {'cancelled' if cancel_waiting else 'kept'}")
    print("tokens: kept" if keep_tokens else f"{done.tokens} tokens: revoked")


def ls(as_json: AsJson = False, directory: Where = None) -> None:
    """List the hosts that have a credential."""
    import time

    found = _enrolment(directory).members()
    rows = [
        {
            "name": name,
            "groups": list(member.groups),
            "added": member.added,
            "expires": member.expires,
            "key": member.key,
        }
        for name, member in sorted(found.members.items())
    ]
    if as_json:
        from encamp.cli.machines import print_json

        print_json({"site": found.site, "bus": list(found.urls), "hosts": rows})
        return
    from encamp.cli.tables import moment, show, table

    made = table("host", "groups", "added", "expires")
    for name, member in sorted(found.members.items()):
        ends = "never" if member.expires is None else moment(member.expires)
        if member.expires is not None and member.expires < time.time():
            ends += " (over)"
        made.add_row(name, ", ".join(member.groups), moment(member.added), ends)
    show(made)


def _presence(directory: Path) -> Presences | None:
    """What the manager's site.yaml says about presence: agents must send signs as often."""
    from encamp.describe.site_file import SITE, read_site
    from encamp.describe.sources import Level, Source

    path = directory / SITE
    try:
        data = path.read_bytes()
    except OSError:
        return None
    source = Source(str(path), Level.SITE, 0, str(directory), str(path))
    return read_site(source, data).presence


def _enrolment(directory: Path | None) -> Enrolment:
    from encamp.manager.enrolment import Enrolment

    return Enrolment((directory or Path(_usual_directory())).absolute(), _shared)


def _shared(changed: Members | None) -> Members | None:
    """Who belongs to the site as the manager on this host knows it, which asks the one that leads;
    after it was told of a change, if there is one."""
    import msgspec

    from encamp.cli.asking import near_door
    from encamp.cli.cleaning import remark
    from encamp.door.client import UnansweredError, ask
    from encamp.door.questions import AskMembers, ChangeMembers, SiteMembers
    from encamp.manager.enrolment import decoded

    question = (
        AskMembers() if changed is None else ChangeMembers(members=msgspec.json.encode(changed))
    )
    try:
        [found] = ask(near_door(), question, SiteMembers)
    except UnansweredError:
        return None  # There is none here, or none yet: it reads the file when it starts.
    except EncampError as error:
        if error.code is not Code.UNREACHABLE:
            raise
        remark(
            f"No manager that leads was reached: {error.sentence} The manager on this host tells"
            " the others when it leads."
        )
        return None
    return decoded(found.members) if found.members else None


def _usual_directory() -> str:
    from encamp.describe.places import daemon_directory

    return daemon_directory()


def _address(text: str) -> Address:
    import re

    from encamp.bus.server_file import Address

    plain = text.removeprefix("nats://").removeprefix("tls://")
    match = re.fullmatch(r"\[([0-9a-fA-F:]+)\](?::(\d+))?|([A-Za-z0-9._-]+)(?::(\d+))?", plain)
    port = int(match[2] or match[4] or 4222) if match else 0
    if match is None or not 0 < port < 65536:
        raise EncampError(
            Code.USAGE,
            f"'{text}' is no address of a server.",
            "It looks like --bus node1.example.org:4222",
        )
    return Address(match[1] or match[3], port)
