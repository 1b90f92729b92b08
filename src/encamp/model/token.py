"""A token: whoever shows its secret over HTTP speaks for its owner, as far as its scope goes."""

from __future__ import annotations

import enum

import msgspec

OWNER = r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}"
"""Names of users that a token can be for."""


class Scope(enum.Enum):
    """How far a token goes. Each includes those before it."""

    READ = "read"
    """See the site, and what belongs to the owner."""
    USE = "use"
    """What the owner may do: submit requests, issue commands that the site's rights allow."""
    ADMINISTER = "administer"
    """Everything, for everybody."""

    def includes(self, other: Scope) -> bool:
        return ORDER[self] >= ORDER[other]


ORDER = {scope: number for number, scope in enumerate(Scope)}


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a token; not its secret, which only its holder has."""

    id: str
    """The part of it that is no secret."""
    owner: str
    """The user it speaks for."""
    scope: Scope
    label: str = ""
    """What it is for."""
    created: float
    creator: str
    """Who made it."""
    expires: float
    """When it ends."""
    used: float = 0.0
    """When it was last shown to the manager that is running now; 0: not since that started."""


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    token: Token
    secret: str
    """To be shown with each call. It is told once, and written down nowhere."""
