"""Tickets: whoever shows one to an agent may speak with what it is for, and with nothing else.

The manager derives the secret of each from a key that only it has, and gives it to the owner. Hosts
are told a digest of it: it recognises the secret, and opens nothing to whoever reads it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

KEY_LENGTH = 32


def new_key() -> bytes:
    return secrets.token_bytes(KEY_LENGTH)


def secret_for(key: bytes, id: str) -> str:
    """The secret of the ticket to a part of a request, or to a command, by its id."""
    return hmac.digest(key, id.encode(), "sha256").hex()


def digest(secret: str) -> str:
    """What the host is told."""
    return hashlib.sha256(secret.encode()).hexdigest()


def matches(known: str, shown: str) -> bool:
    """Is this the secret with that digest? Takes as long for a wrong one as for the right one."""
    return bool(known) and hmac.compare_digest(known.encode(), digest(shown).encode())
