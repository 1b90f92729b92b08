"""A repository: where images are shared, as a directory or an HTTP server with the same files.

images/DIGEST/image.json, and beside it its files and perhaps its signature
names/NAME.json, names/NAME:VERSION.json
index.json, which lists both
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from encamp.images.records import RECORD, SIGNATURE, Link, Record
from encamp.images.reference import is_beginning, is_digest, is_tag, nearest, only
from encamp.images.repository_files import Medium
from encamp.images.repository_records import (
    LARGEST_INDEX,
    LARGEST_LINK,
    LARGEST_RECORD,
    Index,
    parse_index,
    parse_link,
    parse_record,
    wrong,
)
from encamp.images.store import DEEPEST
from encamp.model.errors import Code, EncampError

INDEX = "index.json"
SIGNED = ".minisig"


class Described(msgspec.Struct, frozen=True):
    """An image of a repository: its record as it is there, and its signature if it has one."""

    record: Record
    data: bytes
    signature: bytes | None


class Named(msgspec.Struct, frozen=True):
    """A name of a repository."""

    link: Link
    data: bytes
    signature: bytes | None


class Repository:
    def __init__(self, medium: Medium) -> None:
        self.medium = medium
        self.where = medium.where

    @classmethod
    def open(cls, where: str, patience: float | None = None) -> Repository:
        """`patience`: seconds that a server may stay silent, if they are to be fewer than usual."""
        if where.startswith(("http://", "https://")):
            # Costs as much to import as a machine takes to be cloned.
            from encamp.images.repository_http import HttpMedium

            return cls(HttpMedium(where, patience))
        if "://" in where:
            raise EncampError(
                Code.USAGE,
                f"'{where}' cannot be a repository.",
                "A repository is a directory, or begins with http:// or https://.",
            )
        from encamp.images.repository_directory import DirectoryMedium

        return cls(DirectoryMedium(Path(where).absolute()))

    def index(self) -> Index:
        data = self.medium.read(INDEX, LARGEST_INDEX)
        return Index() if data is None else parse_index(data, self.where)

    def named(self, tag: str) -> Named | None:
        path = f"names/{tag}.json"
        data = self.medium.read(path, LARGEST_LINK)
        if data is None:
            return None
        link = parse_link(data, tag, self.where)
        return Named(link, data, self.medium.read(path + SIGNED, LARGEST_LINK))

    def described(self, digest: str) -> Described | None:
        data = self.medium.read(f"images/{digest}/{RECORD}", LARGEST_RECORD)
        if data is None:
            return None
        record = parse_record(data, digest, self.where)
        return Described(
            record, data, self.medium.read(f"images/{digest}/{SIGNATURE}", LARGEST_LINK)
        )

    def locate(self, reference: str) -> tuple[str, Named | None] | None:
        """What a reference stands for here: a digest, and the name if it was one."""
        if is_tag(reference):
            named = self.named(reference)
            if named is not None:
                return named.link.digest, named
        if is_digest(reference):
            return (reference, None) if self.described(reference) else None
        if is_beginning(reference):
            digest = only(reference, self.index().images)
            return None if digest is None else (digest, None)
        return None

    def lineage(self, digest: str, have: Callable[[str], bool]) -> list[Described]:
        """An image and what it is a layer over, as far as that is not there yet; the first
        layer last."""
        found: list[Described] = []
        wanted: str | None = digest
        while wanted is not None and not have(wanted):
            if len(found) > DEEPEST:
                raise wrong(self.where, f"image {digest[:12]} has more than {DEEPEST} layers below")
            described = self.described(wanted)
            if described is None:
                raise wrong(self.where, f"it has no image {wanted[:12]}, though it speaks of it")
            found.append(described)
            wanted = described.record.parent
        return found

    def missing(self, reference: str) -> EncampError:
        hint = ""
        with contextlib.suppress(EncampError):
            hint = nearest(reference, self.index().names)
        return EncampError(
            Code.INPUT_MISSING,
            f"There is no image '{reference}' in {self.where}.",
            f"{hint} See 'encamp image ls --from {self.where}'.".lstrip(),
        )
