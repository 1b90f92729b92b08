"""Making a host part of a site, with the secret it was given."""

from __future__ import annotations

from pathlib import Path

from encamp.bus import subjects
from encamp.bus.secret import Invitation
from encamp.describe.site_file import read_site
from encamp.describe.sources import Level, Source
from encamp.manager.enrolment import Enrolment
from encamp.manager.site_files import (
    CREDENTIALS,
    KEYS,
    PRIVATE,
    PUBLIC,
    SITE,
    make_directory,
    write_whole,
    yaml_text,
)
from encamp.model.errors import Code, EncampError
from encamp.model.site import Site


def join(directory: Path, invitation: Invitation) -> list[Path]:
    """Make this host part of a site; returns the files that were written."""
    subjects.token(invitation.name)
    if (directory / KEYS).exists() and Enrolment(directory).members().site == invitation.site:
        return _join_beside_manager(directory, invitation)
    site, credential = directory / SITE, _credential(directory, invitation)
    again = site.exists()
    if again:
        _check_is_same(site, invitation)
    elif credential.exists():
        raise _is_part_already(credential)
    make_directory(directory, 0o755)
    make_directory(directory / CREDENTIALS, 0o700)
    write_whole(credential, invitation.credential.encode(), PRIVATE)
    written = [credential]
    if invitation.authority:
        authority = directory / "authority.pem"
        write_whole(authority, invitation.authority.encode(), PUBLIC)
        written.append(authority)
    if not again:
        write_whole(site, _joined_site_file(invitation).encode(), PUBLIC)
        written.append(site)
    return written


def _check_is_same(site: Path, invitation: Invitation) -> None:
    """A host that was removed, or whose credential has expired, is given another secret: what its
    site.yaml says stays. That of another site, or another host, is not to be mixed with it."""
    before = site.read_bytes()
    found = _read(site, before)
    if (found.name, found.host) != (invitation.site, invitation.name):
        raise _is_part_already(site)
    if set(found.bus) != set(invitation.bus):
        raise EncampError(
            Code.WRONG_STATE,
            f"{site} names other servers of the bus than the secret: {', '.join(invitation.bus)}.",
            "Change 'bus' there, and join again.",
        )
    _check_says(site, before, invitation)


def _join_beside_manager(directory: Path, invitation: Invitation) -> list[Path]:
    """The manager's site.yaml is the agent's, too: it only has to say what the host is called."""
    site, credential = directory / SITE, _credential(directory, invitation)
    content = invitation.credential.encode()
    is_there = credential.exists() and credential.read_bytes() == content
    before = site.read_bytes()
    found = _read(site, before)
    if found.host not in (None, invitation.name):
        raise EncampError(
            Code.WRONG_STATE,
            f"{site} says that this host is '{found.host}', and the secret is for"
            f" '{invitation.name}'.",
            "A host has one name. Change 'host' first if it shall have another.",
        )
    # What is there is somebody's own writing, with its comments: it is only added to.
    lines = []
    if found.host is None:
        lines.append(f"host: {yaml_text(invitation.name)}")
    if invitation.groups and not found.groups:
        lines.append(_groups_line(invitation))
    after = before + (b"" if before.endswith(b"\n") else b"\n") + "\n".join([*lines, ""]).encode()
    _check_says(site, after, invitation)
    written = []
    if not is_there:
        write_whole(credential, content, PRIVATE)
        written.append(credential)
    if lines:
        write_whole(site, after, PUBLIC)
        written.append(site)
    if not written:
        raise _is_part_already(credential)
    return written


def _check_says(site: Path, data: bytes, invitation: Invitation) -> None:
    """Is that the host's name and groups now? The file may be written in a form that nothing can
    be added to, or name other groups."""
    try:
        found = _read(site, data)
    except EncampError:
        found = None
    if found is None or (found.host, set(found.groups)) != (
        invitation.name,
        set(invitation.groups),
    ):
        wanted = [f"host: {yaml_text(invitation.name)}", _groups_line(invitation)]
        raise EncampError(
            Code.WRONG_STATE,
            f"{site} cannot be made to say what this host is called and which groups it is in.",
            f"Let it say {' and '.join(wanted)}, and join again.",
        )


def _read(path: Path, data: bytes) -> Site:
    source = Source(str(path), Level.SITE, 0, str(path.parent), str(path))
    return read_site(source, data)


def _credential(directory: Path, invitation: Invitation) -> Path:
    return directory / CREDENTIALS / f"{invitation.name}.creds"


def _is_part_already(path: Path) -> EncampError:
    return EncampError(
        Code.WRONG_STATE,
        f"{path} is there already: this host is part of a site.",
        "Remove the file first if it shall join another, or be another host.",
    )


def _groups_line(invitation: Invitation) -> str:
    return f"groups: [{', '.join(yaml_text(group) for group in invitation.groups)}]"


def _joined_site_file(invitation: Invitation) -> str:
    lines = [
        f"# This host is '{invitation.name}' of the site '{invitation.site}'.",
        f"name: {yaml_text(invitation.site)}",
        "bus:",
        *(f"  - {yaml_text(url)}" for url in invitation.bus),
        f"credential: {CREDENTIALS}/{{name}}.creds",
        f"host: {yaml_text(invitation.name)}",
    ]
    if invitation.groups:
        lines.append(_groups_line(invitation))
    if invitation.authority:
        lines.append("authority: authority.pem")
    if invitation.presence is not None:
        interval, silence = invitation.presence
        lines.append(f"presence: {{ interval: {interval:g}s, silence: {silence:g}s }}")
    return "\n".join(lines) + "\n"
