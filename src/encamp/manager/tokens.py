"""The tokens of a site: making them, knowing them again, and taking them back.

A secret is 256 bits of randomness, so its plain SHA-256 is as good as no trace of it: there is
nothing to guess that a slow hash would have to hold up, and every call has to be checked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from functools import partial

import msgspec

from encamp.manager.store import tokens as table
from encamp.manager.store.store import Store
from encamp.model.errors import Code, EncampError
from encamp.model.quantity import duration, quantity
from encamp.model.token import OWNER, NewToken, Scope, Token

PREFIX = "encamp"
"""So that a token that was left lying about is recognised as one."""
SECRET = re.compile(rf"{PREFIX}_([0-9a-f]{{12}})_([A-Za-z0-9_-]{{43}})")
SHORTEST, LONGEST = 1.0, 10 * 365 * 86400.0
"""Seconds that a token lives."""
LONGEST_LABEL = 200
MOST_OF_ONE = 100
"""Tokens of one owner that are valid at the same time."""


class Tokens:
    """All of them are in memory, too: what is taken back is worth nothing at that moment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[Token, bytes]] = {}

    async def load(self) -> None:
        found = await self._store.read(table.read_all)
        self._known = {token.id: (token, digest) for token, digest in found}

    def all(self) -> list[Token]:
        now = time.time()
        valid = (token for token, _ in self._known.values() if token.expires > now)
        return sorted(valid, key=lambda token: (token.owner, token.created))

    def recognise(self, shown: str) -> Token | None:
        """The token whose secret this is, if it is still valid."""
        match = SECRET.fullmatch(shown)
        known = self._known.get(match[1]) if match else None
        digest = _digest(shown)
        # As long for a token that there is not as for one with another secret.
        right = hmac.compare_digest(known[1] if known else b"\0" * len(digest), digest)
        now = time.time()
        if known is None or not right or known[0].expires <= now:
            return None
        token = msgspec.structs.replace(known[0], used=now)
        self._known[token.id] = (token, digest)
        return token

    async def create(
        self, owner: str, scope: Scope, label: str, lifetime: float, creator: str
    ) -> NewToken:
        if not re.fullmatch(OWNER, owner):
            raise EncampError(Code.USAGE, f"{owner[:64]!r} is not the name of a user.")
        if not SHORTEST <= lifetime <= LONGEST:
            raise EncampError(
                Code.USAGE,
                f"A token cannot be valid for {quantity(lifetime, 'seconds')}.",
                f"Give from {duration(SHORTEST)} to {duration(LONGEST)}.",
            )
        if len(label) > LONGEST_LABEL or not label.isprintable():
            raise EncampError(
                Code.USAGE, f"A label is one line of at most {LONGEST_LABEL} characters."
            )
        if sum(token.owner == owner for token in self.all()) >= MOST_OF_ONE:
            raise EncampError(
                Code.NO_ROOM,
                f"{owner} has {MOST_OF_ONE} tokens already.",
                "Revoke some of them: 'encamp token ls' lists them.",
            )
        await self._forget_old()
        now = time.time()
        name = secrets.token_hex(6)
        secret = f"{PREFIX}_{name}_{secrets.token_urlsafe(32)}"
        token = Token(
            id=name,
            owner=owner,
            scope=scope,
            label=label,
            created=now,
            creator=creator,
            expires=now + lifetime,
        )
        digest = _digest(secret)
        await self._store.write(partial(table.add, token=token, digest=digest))
        self._known[name] = (token, digest)
        return NewToken(token=token, secret=secret)

    def find(self, name: str) -> Token | None:
        known = self._known.get(name)
        return known[0] if known else None

    def is_valid(self, name: str) -> bool:
        known = self.find(name)
        return known is not None and known.expires > time.time()

    async def revoke(self, token: Token) -> None:
        """It is worth nothing from now on, whether that can be written down or not."""
        self._known.pop(token.id, None)
        await self._store.write(partial(table.remove, ids=[token.id]))

    async def revoke_all(self) -> int:
        """How many there were."""
        names = list(self._known)
        self._known.clear()
        if names:
            await self._store.write(partial(table.remove, ids=names))
        return len(names)

    async def _forget_old(self) -> None:
        now = time.time()
        old = [token.id for token, _ in self._known.values() if token.expires <= now]
        if old:
            await self._store.write(partial(table.remove, ids=old))
            for name in old:
                self._known.pop(name, None)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
