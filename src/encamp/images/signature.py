"""Signatures of images and of their names, made and checked by minisign (Ed25519).

A signature covers an image's record, whose digests cover all its files, or the record of a name.
What was built on this host is its own and needs none.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from encamp import programs
from encamp.images.content import write_file
from encamp.images.records import RECORD, SIGNATURE
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.settings import Signatures

KEY_ID = slice(2, 10)
"""Where keys and signatures say which key it is."""
UNPROTECTED = b"\0\0"
SECRET_KEY = 158
"""Bytes of one; a public key has 42."""
PROTECTION = slice(2, 4)
"""Where a secret key says how it is protected."""


def key_id(text: str) -> bytes:
    """Of a public key or a signature: its text, or the whole file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("untrusted")]
    try:
        decoded = base64.b64decode(lines[0], validate=True)
    except (binascii.Error, IndexError, ValueError):
        return b""
    return decoded[KEY_ID] if len(decoded) >= KEY_ID.stop else b""


def trusted_keys(signatures: Signatures) -> dict[bytes, str]:
    """The keys of the settings, by their ids."""
    keys = {}
    for key in signatures.keys:
        text = key
        if key.startswith("/"):
            try:
                text = Path(key).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise EncampError(
                    Code.CONFIGURATION, f"Cannot read the public key {key}: {error}."
                ) from error
        found = key_id(text)
        if not found:
            raise EncampError(
                Code.CONFIGURATION,
                f"{key[:80]!r} is not a public key of minisign.",
                "Give the line that begins with RW, or the absolute path of the .pub file.",
            )
        keys[found] = next(line for line in text.splitlines() if not line.startswith("untrusted"))
    return keys


def image_comment(digest: str) -> str:
    """What is signed along with an image's record: a signature is for one thing only."""
    return f"encamp image {digest}"


def name_comment(tag: str) -> str:
    return f"encamp name {tag}"


def verify(
    what: str, data: bytes, signature: bytes | None, signatures: Signatures, comment: str
) -> str:
    """The trusted key that signed this, and as what `comment` says; an error if none did."""
    if signature is None:
        raise EncampError(
            Code.UNTRUSTED,
            f"{what} is not signed, and this host uses signed images only.",
            "Have it signed: 'encamp image push --key FILE'.",
        )
    keys = trusted_keys(signatures)
    key = keys.get(key_id(signature.decode(errors="replace")))
    if key is None:
        raise EncampError(
            Code.UNTRUSTED,
            f"{what} is signed with a key that this host does not trust.",
            "The keys it trusts are in its settings, under signatures.",
        )
    with tempfile.TemporaryDirectory(prefix="encamp-") as directory:
        message, signed = Path(directory, "message"), Path(directory, "signature")
        message.write_bytes(data)
        signed.write_bytes(signature)
        try:
            said = programs.run(
                ["minisign", "-V", "-Q", "-P", key, "-m", message, "-x", signed],
                purpose=f"checking the signature of {what}",
                code=Code.UNTRUSTED,
            )
        except EncampError as error:
            if error.code is not Code.UNTRUSTED:
                raise
            raise EncampError(
                Code.UNTRUSTED,
                f"The signature of {what} is not good: it was changed after it was signed.",
                "Do not use it; tell whoever keeps the repository.",
                detail=error.detail,
            ) from error
    if said.rstrip("\n") != comment:
        raise EncampError(
            Code.UNTRUSTED,
            f"{what} has a signature that was made for something else.",
            "Do not use it; tell whoever keeps the repository.",
        )
    return key


def check_image(image: Image, signatures: Signatures, known: str) -> str:
    """The trusted key that signed an image on this host; `known` is the one found last time."""
    if known and known in trusted_keys(signatures).values():
        return known
    what = f"image '{image.name or image.digest[:12]}'"
    return verify(
        what[0].upper() + what[1:],
        (image.directory / RECORD).read_bytes(),
        read_signature(image.directory),
        signatures,
        image_comment(image.digest),
    )


def read_signature(directory: Path) -> bytes | None:
    try:
        return (directory / SIGNATURE).read_bytes()
    except FileNotFoundError:
        return None


def unusable_key(key: Path) -> EncampError:
    hint = "Make one with: minisign -G -s FILE -p FILE.pub"
    if key.suffix == ".pub":
        hint = f"That is the public key; sign with the secret one beside it. {hint}"
    return EncampError(Code.INPUT_MISSING, f"Cannot read {key} as a secret key of minisign.", hint)


class Signer:
    """A secret key, and the password that protects it."""

    def __init__(self, key: Path, password: str = "") -> None:
        self.key = key
        self.password = password

    @staticmethod
    def needs_password(key: Path) -> bool:
        try:
            lines = key.read_text().splitlines()
            decoded = base64.b64decode(lines[1], validate=True)
        except (OSError, IndexError, UnicodeDecodeError, binascii.Error) as error:
            raise unusable_key(key) from error
        if len(decoded) < SECRET_KEY:
            raise unusable_key(key)
        return decoded[PROTECTION] != UNPROTECTED

    def sign(self, data: bytes, comment: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="encamp-") as directory:
            message, signed = Path(directory, "message"), Path(directory, "signature")
            message.write_bytes(data)
            with self._password() as reading:
                programs.run(
                    [
                        *("minisign", "-S", "-s", self.key, "-m", message, "-x", signed),
                        *("-c", "signature of Encamp", "-t", comment),
                    ],
                    purpose=f"signing with {self.key}",
                    code=Code.NOT_PERMITTED,
                    reads=reading,
                )
            return signed.read_bytes()

    @contextlib.contextmanager
    def _password(self) -> Iterator[BinaryIO]:
        read, write = os.pipe()
        with open(read, "rb") as reading:
            with open(write, "wb") as writing:
                writing.write(f"{self.password}\n".encode())
            yield reading


def sign_image(image: Image, signer: Signer) -> None:
    """Put a signature beside the image's record."""
    data = (image.directory / RECORD).read_bytes()
    write_file(image.directory / SIGNATURE, signer.sign(data, image_comment(image.digest)))
