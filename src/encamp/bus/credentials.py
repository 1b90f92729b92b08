"""Credentials of NATS: keys, and claims about them that somebody trusted has signed.

An operator vouches for accounts, an account for its users. The servers know the operator and the
accounts; a user shows what its account has signed, which says what it may do. So the servers need
not be told of a new user.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from encamp.bus.bus import LARGEST_MESSAGE
from encamp.bus.subjects import Permissions
from encamp.model.errors import Code, EncampError

LARGEST_PAYLOAD = 1024 * 1024
"""What a server takes unless it is told otherwise; a message and what stands before it fit."""
assert LARGEST_MESSAGE < LARGEST_PAYLOAD

UNLIMITED = -1

_NO_LIMITS = {
    "subs": UNLIMITED,
    "data": UNLIMITED,
    "payload": UNLIMITED,
    "imports": UNLIMITED,
    "exports": UNLIMITED,
    "wildcards": True,
    "conn": UNLIMITED,
    "leaf": UNLIMITED,
}

SUBSCRIPTIONS = 256
"""Of one user."""


class Key(msgspec.Struct, frozen=True):
    """One key: who has the seed can speak for it."""

    seed: str
    public: str

    @classmethod
    def operator(cls) -> Key:
        import nkeys

        return cls._make(nkeys.PREFIX_BYTE_OPERATOR)

    @classmethod
    def account(cls) -> Key:
        import nkeys

        return cls._make(nkeys.PREFIX_BYTE_ACCOUNT)

    @classmethod
    def user(cls) -> Key:
        import nkeys

        return cls._make(nkeys.PREFIX_BYTE_USER)

    @classmethod
    def from_seed(cls, seed: str) -> Key:
        import nkeys

        try:
            pair = nkeys.from_seed(bytearray(seed.strip(), "ascii"))
            return cls(seed.strip(), pair.public_key.decode())
        except (nkeys.NkeysError, ValueError, TypeError) as error:
            raise EncampError(Code.CORRUPT, f"This is not the seed of a key: {error}.") from error

    @classmethod
    def _make(cls, prefix: int) -> Key:
        import nkeys

        return cls.from_seed(nkeys.encode_seed(secrets.token_bytes(32), prefix).decode())

    def sign(self, data: bytes) -> bytes:
        import nkeys

        signature: bytes = nkeys.from_seed(bytearray(self.seed, "ascii")).sign(data)
        return signature


def operator_claims(key: Key, name: str, system: Key, now: float) -> str:
    about = {"type": "operator", "system_account": system.public}
    return _signed(key, key.public, name, about, now)


def account_claims(
    operator: Key, account: Key, name: str, now: float, revocations: Mapping[str, int]
) -> str:
    """Of users in `revocations`, what was signed until then is worth nothing."""
    about: dict[str, Any] = {"type": "account", "limits": _NO_LIMITS}
    if revocations:
        about["revocations"] = dict(revocations)
    return _signed(operator, account.public, name, about, now)


def user_claims(
    account: Key,
    user: str,
    name: str,
    permissions: Permissions,
    now: float,
    *,
    expires: float | None = None,
) -> str:
    about = {
        "type": "user",
        "pub": {"allow": list(permissions.publish)},
        "sub": {"allow": list(permissions.subscribe)},
        "subs": SUBSCRIPTIONS,
        "data": UNLIMITED,
        "payload": LARGEST_PAYLOAD,
    }
    return _signed(account, user, name, about, now, expires)


def credential_file(claims: str, user: Key) -> str:
    """In the form that every client of NATS reads."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{claims}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )


def name_in(credential: str) -> str | None:
    """Whose credential it is, of a file in that form; None if it cannot be read."""
    try:
        _, _, rest = credential.partition("BEGIN NATS USER JWT")
        said = rest.split()[1].split(".")[1]
        data = base64.urlsafe_b64decode(said + "=" * (-len(said) % 4))
        return msgspec.json.decode(data, type=_Whose).name
    except (IndexError, ValueError, msgspec.MsgspecError):
        return None


class _Whose(msgspec.Struct, frozen=True):
    name: str


def _signed(
    issuer: Key,
    subject: str,
    name: str,
    about: dict[str, Any],
    now: float,
    expires: float | None = None,
) -> str:
    claims: dict[str, Any] = {
        "iat": int(now),
        "iss": issuer.public,
        "name": name,
        "sub": subject,
        "nats": {**about, "version": 2},
    }
    if expires is not None:
        claims["exp"] = int(expires)
    digest = hashlib.sha256(msgspec.json.encode(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    head = _base64(msgspec.json.encode({"typ": "JWT", "alg": "ed25519-nkey"}))
    said = f"{head}.{_base64(msgspec.json.encode(claims))}"
    return f"{said}.{_base64(issuer.sign(said.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
