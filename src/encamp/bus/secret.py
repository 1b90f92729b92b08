"""The one secret that a joining host needs: one line with all it has to know."""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec

from encamp.model.errors import Code, EncampError

PREFIX = "encamp1-"
LARGEST = 1024 * 1024


class Invitation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    site: str
    bus: tuple[str, ...]
    name: str
    groups: tuple[str, ...] = ()
    credential: str
    """What its credential file contains."""
    authority: str = ""
    """Certificates that the servers' are checked against."""
    presence: tuple[float, float] | None = None
    """Interval and silence, if they are not the usual ones."""


def pack(invitation: Invitation) -> str:
    # Compressed data ends with a checksum: half a secret is noticed.
    data = zlib.compress(msgspec.json.encode(invitation), 9)
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def unpack(secret: str) -> Invitation:
    text = "".join(secret.split())
    try:
        if not text.startswith(PREFIX):
            raise ValueError
        data = text.removeprefix(PREFIX)
        packed = base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True)
        reader = zlib.decompressobj()
        plain = reader.decompress(packed, LARGEST)
        if not reader.eof or reader.unused_data:
            raise ValueError
        return msgspec.json.decode(plain, type=Invitation)
    except (ValueError, binascii.Error, zlib.error, msgspec.DecodeError) as error:
        raise EncampError(
            Code.USAGE,
            "This is not a secret of 'encamp site add', or not the whole of it.",
            f"It is one line that begins with {PREFIX}",
        ) from error
