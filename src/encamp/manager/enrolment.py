"""Who belongs to a site: its keys, its servers' configuration, and everybody's credentials.

All of it is files in one directory, which `encamp site init` makes and only its owner can read:

    site.yaml               how the manager's host is set up
    nats-server.conf        for the server of the bus; nats-server-1.conf, ... for a cluster
    keys.json               what credentials are signed with: whoever has it is the site
    members.json            who has been given a credential
    credentials/NAME.creds  the manager's, and those of agents that were named from the start;
                            NAME.secret is for 'encamp site join' on such an agent's host
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from encamp.bus import secret, subjects
from encamp.bus.credentials import (
    Key,
    account_claims,
    credential_file,
    operator_claims,
    user_claims,
)
from encamp.bus.secret import Invitation
from encamp.bus.server_file import Address, Encryption, server_file
from encamp.manager.site_files import (
    CREDENTIALS,
    KEYS,
    MEMBERS,
    PRIVATE,
    PUBLIC,
    SITE,
    make_directory,
    write_whole,
    yaml_text,
)
from encamp.model.errors import Code, EncampError
from encamp.model.site import EVERYBODY, MANAGER, Presences


class Keys(msgspec.Struct, frozen=True):
    """Seeds."""

    operator: str
    account: str
    system: str
    cluster: str
    """What the servers of a cluster know each other by."""


class Member(msgspec.Struct, omit_defaults=True):
    key: str
    """The public one."""
    groups: tuple[str, ...] = ()
    added: float = 0.0
    expires: float | None = None


class Members(msgspec.Struct):
    site: str
    servers: tuple[Address, ...]
    encryption: Encryption | None = None
    authority: str = ""
    """The file with the certificates that clients check the servers' against."""
    members: dict[str, Member] = {}
    revoked: dict[str, int] = {}
    """Keys of those who were removed, and when."""
    removed: dict[str, float] = {}
    """When hosts were removed that were not added again since."""
    signed: float = 0.0
    """When the site was made."""
    changed: int = 0
    """How often this list was."""

    @property
    def identity(self) -> tuple[str, float]:
        """Tells a site from others, also from one of the same name."""
        return self.site, self.signed

    @property
    def urls(self) -> tuple[str, ...]:
        scheme = "tls" if self.encryption is not None else "nats"
        return tuple(f"{scheme}://{server}" for server in self.servers)


def latest(one: Members | None, other: Members) -> Members:
    """Of two lists the one that counts; `one`, if they are as old."""
    if one is None or (other.signed, other.changed) > (one.signed, one.changed):
        return other
    return one


def decoded(data: bytes) -> Members:
    try:
        return msgspec.json.decode(data, type=Members)
    except msgspec.DecodeError as error:
        raise EncampError(
            Code.CORRUPT, f"The list of a site's members is damaged: {error}."
        ) from error


Share = Callable[[Members | None], Members | None]
"""Asks the site's managers for the list that they know, after it has offered them one, if it has:
None if no manager answers."""


class Enrolment:
    """The directory of a site that was set up here."""

    def __init__(self, directory: Path, share: Share = lambda members: None) -> None:
        """`share`: with the managers, who may have been told of a later list elsewhere."""
        self.directory = directory
        self._share = share

    # ── making it ────────────────────────────────────────────────────────────────────────────────

    def init(
        self,
        name: str,
        servers: Sequence[Address],
        agents: Sequence[str],
        *,
        encryption: Encryption | None = None,
        authority: str = "",
    ) -> list[Path]:
        """Returns the files that were written."""
        subjects.token(name)
        for agent in agents:
            _check_agent(agent)
        for file in (SITE, KEYS, MEMBERS):
            if (self.directory / file).exists():
                raise EncampError(
                    Code.WRONG_STATE,
                    f"There is a {file} in {self.directory} already.",
                    "'encamp site ls' shows who belongs to it; a new site needs a directory of its"
                    " own, or this one empty.",
                )
        make_directory(self.directory, 0o755)
        make_directory(self.directory / CREDENTIALS, 0o700)
        keys = Keys(
            Key.operator().seed, Key.account().seed, Key.account().seed, secrets.token_hex(16)
        )
        members = Members(
            name, tuple(servers), encryption, authority, signed=time.time(), members={}, revoked={}
        )
        write_whole(self.directory / KEYS, msgspec.json.encode(keys), PRIVATE)
        self._keep(members)
        written = [self.directory / KEYS, self.directory / MEMBERS]
        written += self._write_server_files(keys, members)
        written.append(self._write_credential(MANAGER, self._sign_manager(keys)))
        for agent in agents:
            invitation = self._invite(keys, members, agent, (), None)
            written.append(self._write_credential(agent, invitation.credential))
            path = self.directory / CREDENTIALS / f"{agent}.secret"
            write_whole(path, f"{secret.pack(invitation)}\n".encode(), PRIVATE)
            written.append(path)
        self._keep(members)
        # Last: what is there is whole.
        site = self.directory / SITE
        write_whole(site, self._site_file(members).encode(), PUBLIC)
        return [*written, site]

    def _site_file(self, members: Members) -> str:
        lines = [
            f"# The site '{members.site}', as the manager's host is part of it.",
            f"name: {members.site}",
            "bus:",
            *(f"  - {url}" for url in members.urls),
            f"credential: {CREDENTIALS}/{{name}}.creds",
        ]
        if members.authority:
            lines.append(f"authority: {yaml_text(members.authority)}")
        return "\n".join(lines) + "\n"

    # ── who belongs to it ────────────────────────────────────────────────────────────────────────

    def add(
        self,
        name: str,
        groups: Sequence[str],
        lifetime: float | None,
        presence: Presences | None = None,
    ) -> str:
        """Give an agent a credential; returns its secret, which is kept nowhere."""
        return self.add_all([name], groups, lifetime, presence)[name]

    def add_all(
        self,
        names: Sequence[str],
        groups: Sequence[str],
        lifetime: float | None,
        presence: Presences | None = None,
    ) -> dict[str, str]:
        """The same for several: all of them, or none."""
        for name in names:
            _check_agent(name)
        with self._locked():
            keys, members = self._load()
            for name in names:
                if name in members.members:
                    raise EncampError(
                        Code.WRONG_STATE,
                        f"'{name}' belongs to the site already.",
                        f"Its secret is shown only once. 'encamp site remove {name}' makes the old"
                        " one worthless; then it can be added again.",
                    )
            expires = time.time() + lifetime if lifetime is not None else None
            secrets_of = {}
            for name in dict.fromkeys(names):
                invitation = self._invite(keys, members, name, tuple(groups), expires)
                if presence is not None and presence != Presences():
                    invitation = msgspec.structs.replace(
                        invitation, presence=(presence.interval, presence.silence)
                    )
                secrets_of[name] = secret.pack(invitation)
            self._change(members)
            return secrets_of

    def remove(self, name: str) -> list[Path]:
        """Make a credential worthless, as soon as the servers have read the files returned."""
        with self._locked():
            keys, members = self._load()
            member = members.members.pop(name, None)
            if member is None:
                known = ", ".join(sorted(members.members)[:20]) or "nobody"
                raise EncampError(
                    Code.USAGE,
                    f"'{name}' does not belong to the site.",
                    f"Those who do: {known}.",
                )
            # A second more: one signed in this very second is meant, too.
            members.revoked[member.key] = int(time.time()) + 1
            members.removed[name] = time.time()
            self._change(members)
            for kind in ("creds", "secret"):
                (self.directory / CREDENTIALS / f"{name}.{kind}").unlink(missing_ok=True)
            return self._write_server_files(keys, members)

    def members(self) -> Members:
        """Those that this directory or a manager knows of, whoever has the keys."""
        return self._latest()

    # ── credentials ──────────────────────────────────────────────────────────────────────────────

    def _invite(
        self,
        keys: Keys,
        members: Members,
        name: str,
        groups: tuple[str, ...],
        expires: float | None,
    ) -> Invitation:
        now = time.time()
        user = Key.user()
        permissions = subjects.permissions(name, (EVERYBODY, *groups), speaks_to=(MANAGER,))
        account = Key.from_seed(keys.account)
        claims = user_claims(account, user.public, name, permissions, now, expires=expires)
        members.members[name] = Member(user.public, groups, now, expires)
        members.removed.pop(name, None)
        authority = Path(members.authority).read_text() if members.authority else ""
        return Invitation(
            site=members.site,
            bus=members.urls,
            name=name,
            groups=groups,
            credential=credential_file(claims, user),
            authority=authority,
        )

    def _sign_manager(self, keys: Keys) -> str:
        user = Key.user()
        permissions = subjects.permissions(MANAGER, (), speaks_to=("*",), watches=True)
        account = Key.from_seed(keys.account)
        claims = user_claims(account, user.public, MANAGER, permissions, time.time())
        return credential_file(claims, user)

    def _write_credential(self, name: str, content: str) -> Path:
        path = self.directory / CREDENTIALS / f"{name}.creds"
        write_whole(path, content.encode(), PRIVATE)
        return path

    def _write_server_files(self, keys: Keys, members: Members) -> list[Path]:
        operator, account = Key.from_seed(keys.operator), Key.from_seed(keys.account)
        system = Key.from_seed(keys.system)
        now = time.time()
        accounts = {
            account.public: account_claims(operator, account, members.site, now, members.revoked),
            system.public: account_claims(operator, system, "servers", members.signed, {}),
        }
        is_cluster = len(members.servers) > 1
        written = []
        for number, server in enumerate(members.servers, 1):
            text = server_file(
                members.site,
                server,
                operator=operator_claims(operator, members.site, system, members.signed),
                system=system.public,
                accounts=accounts,
                encryption=members.encryption,
                cluster=members.servers,
                cluster_secret=keys.cluster,
            )
            name = f"nats-server-{number}.conf" if is_cluster else "nats-server.conf"
            write_whole(self.directory / name, text.encode(), PRIVATE if is_cluster else PUBLIC)
            written.append(self.directory / name)
        return written

    # ── its files ────────────────────────────────────────────────────────────────────────────────

    def _load(self) -> tuple[Keys, Members]:
        """What it takes to change something."""
        members = self._latest()
        try:
            data = self._read(KEYS)
        except FileNotFoundError as error:
            raise EncampError(
                Code.INPUT_MISSING,
                f"The keys of site '{members.site}' are not here: there is no {KEYS} in"
                f" {self.directory}.",
                "Hosts are added and removed where 'encamp site init' was run, or where its"
                f" {KEYS} was copied to.",
            ) from error
        try:
            return msgspec.json.decode(data, type=Keys), members
        except msgspec.DecodeError as error:
            path = self.directory / KEYS
            raise EncampError(Code.CORRUPT, f"{path} is damaged: {error}.") from error

    def _latest(self) -> Members:
        here: Members | None = None
        with suppress(FileNotFoundError):
            here = decoded(self._read(MEMBERS))
        shared = self._share(None)
        if shared is None or (here is not None and here.identity != shared.identity):
            found = here
        else:
            found = latest(here, shared)
        if found is None:
            raise EncampError(
                Code.INPUT_MISSING,
                f"No site was set up in {self.directory}: there is no {MEMBERS}, and no manager"
                " that knows of its members answers here.",
                "'encamp site init' sets one up; --directory says where that was done.",
            )
        return found

    def _read(self, name: str) -> bytes:
        path = self.directory / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"{path} cannot be read: {error.strerror}.",
                "Only whoever set up the site can add and remove.",
            ) from error

    def _change(self, members: Members) -> None:
        """Managers first: one of them may know of a later change, and refuse this one."""
        members.changed += 1
        self._share(members)
        self._keep(members)

    def _keep(self, members: Members) -> None:
        write_whole(self.directory / MEMBERS, msgspec.json.encode(members), PRIVATE)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise EncampError(
                Code.INPUT_MISSING,
                f"No site was set up in {self.directory}: it cannot be opened: {error.strerror}.",
                "'encamp site init' sets one up; --directory says where that was done.",
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _check_agent(name: str) -> None:
    subjects.token(name)
    if name == MANAGER:
        raise EncampError(
            Code.USAGE,
            f"No agent can be called '{MANAGER}': that is the manager's name.",
            "Choose another name for the host's agent.",
        )
