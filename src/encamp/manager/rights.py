"""Who is an administrator, and who else may issue which command to which host. All that is not
granted is refused."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Sequence

from encamp.core.picture import joined
from encamp.door.peer import Peer
from encamp.door.questions import Asker
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host
from encamp.model.site import Right
from encamp.model.token import Scope, Token


def is_administrator(peer: Peer) -> bool:
    """With a token, its scope decides, whoever its owner is."""
    if peer.scope is not None:
        return peer.scope is Scope.ADMINISTER
    return peer.uid in (0, os.geteuid())


def asker(peer: Peer, token: Token | None = None) -> Asker:
    """Whom somebody is taken for. `token`: the one that was shown."""
    return Asker(
        user=peer.user,
        administrator=is_administrator(peer),
        scope=peer.scope,
        expires=token.expires if token is not None else 0.0,
    )


def administrators_only(peer: Peer, what: str) -> None:
    if not is_administrator(peer):
        raise EncampError(
            Code.NOT_PERMITTED, f"{peer.user} may not {what}.", "Ask an administrator of this site."
        )


def check_right(
    rights: Sequence[Right], user: str, groups: Collection[str], command: str, host: Host
) -> None:
    """Refuse what nobody has granted to this user."""
    if any(
        fits_user(right.who, user, groups)
        and any(fnmatch.fnmatchcase(command, pattern) for pattern in right.commands)
        and fits_host(right.hosts, host)
        for right in rights
    ):
        return
    raise EncampError(
        Code.NOT_PERMITTED,
        f"{user} may not issue {command} to host {host.name}.",
        "An administrator can grant it under 'rights' in site.yaml.",
    )


def fits_user(named: Sequence[str], user: str, groups: Collection[str]) -> bool:
    """Is somebody named, or in one of the `@group`s?"""
    return any(who[1:] in groups if who.startswith("@") else who == user for who in named)


def check_submit(named: Sequence[str], user: str, groups: Collection[str]) -> None:
    """Refuse machines to whom the site does not give any."""
    if named and not fits_user(named, user, groups):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"{user} may not ask for machines of this site.",
            "An administrator can name you under 'submit' in site.yaml.",
        )


def fits_host(patterns: Sequence[str], host: Host) -> bool:
    """Is a host named by one of the patterns, or in one of the `@group`s?"""
    return any(
        pattern[1:] in host.groups
        if pattern.startswith("@")
        else fnmatch.fnmatchcase(host.name, pattern)
        for pattern in patterns
    )


def present_hosts(patterns: Sequence[str], hosts: Sequence[Host]) -> tuple[list[Host], list[Host]]:
    """Those that are to be told something, and those that are left out. Whoever means many means
    those that are there; one that is named is not left out, and has to be there."""
    kept = [host for host in hosts if joined(host) or host.name in patterns]
    left_out = [host for host in hosts if host not in kept]
    if kept:
        return kept, left_out
    raise EncampError(
        Code.UNREACHABLE,
        f"None of the {len(left_out)} hosts that are meant is joined to the site.",
        "'encamp hosts' tells why. Commands can be issued to them when they are back.",
        transient=True,
    )


def chosen_hosts(patterns: Sequence[str], hosts: Collection[Host]) -> list[Host]:
    """Those that the patterns name, in order; all, if there are none. Each must name one."""
    if not patterns:
        return sorted(hosts, key=lambda host: host.name)
    for pattern in patterns:
        if any(fits_host((pattern,), host) for host in hosts):
            continue
        what = f"is in group '{pattern[1:]}'" if pattern.startswith("@") else f"is '{pattern}'"
        raise EncampError(Code.USAGE, f"No host of this site {what}.", "'encamp hosts' lists them.")
    return sorted((host for host in hosts if fits_host(patterns, host)), key=lambda host: host.name)
