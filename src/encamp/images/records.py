"""What is written down about images, on this host and in repositories."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from encamp.home import Home
from encamp.images.reference import is_digest
from encamp.model.image import Defaults, Image, ImageFile
from encamp.small_file import read_small

RECORD = "image.json"
SIGNATURE = "image.json.minisig"
ORIGIN = "origin.json"
"""Beside the record of an image that came from a repository."""

Look = tuple[int, int, int, int]
"""What the system says about a file: both its times, its size, its number."""


class Record(msgspec.Struct, frozen=True):
    """What an image's directory says about itself."""

    digest: str
    name: str
    kernel_release: str
    created: float
    recipe: str
    files: tuple[ImageFile, ...]
    parent: str | None = None
    """Digest of the image that it is a layer over."""
    defaults: Defaults = Defaults()


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a name stands for."""

    digest: str
    recipe: str
    version: str | None = None
    """The version that is meant by a name without one."""
    name: str = ""
    """In a repository, where a signature has to cover it: the name itself."""
    pushed: float = 0.0
    """When it was put into a repository: a name moves on, never back."""
    inputs: str = ""
    """Names the files of the host that it was built from, as they were then."""


class PublishedLink(Link, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A name as a repository has it. Nothing else that was signed there, such as an image's
    record, can be taken for one."""


class Origin(msgspec.Struct, frozen=True):
    """Where an image that was not built here came from."""

    repository: str
    pulled: float


class Stamp(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an image's files looked to the system when their content was last found right."""

    directory: str
    files: dict[str, Look]
    key: str = ""
    """The public key that its record was found to be signed with."""


RECORDS = msgspec.json.Decoder(Record)
LINKS = msgspec.json.Decoder(Link)
PUBLISHED_LINKS = msgspec.json.Decoder(PublishedLink)
STAMPS = msgspec.json.Decoder(Stamp)
ORIGINS = msgspec.json.Decoder(Origin)


def look(image: Image) -> dict[str, Look]:
    """What the system says about each file that is there, without reading any."""
    looks = {}
    for name in (RECORD, ORIGIN, *(file.name for file in image.files)):
        with contextlib.suppress(FileNotFoundError):
            found = (image.directory / name).stat()
            looks[name] = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
    return looks


def names_directory(home: Home) -> Path:
    return home.images / "names"


def link_path(home: Home, tag: str) -> Path:
    return names_directory(home) / f"{tag}.json"


def stamp_path(home: Home, digest: str) -> Path:
    return home.images / "stamps" / f"{digest}.json"


def read_link(home: Home, tag: str) -> Link | None:
    try:
        link = LINKS.decode(read_small(link_path(home, tag)))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return link if is_digest(link.digest) else None


def links(home: Home) -> dict[str, Link]:
    found = {}
    for path in sorted(names_directory(home).glob("*.json")):
        tag = path.name.removesuffix(".json")
        link = None if tag.startswith(".") else read_link(home, tag)
        if link is not None:
            found[tag] = link
    return found


def directories(home: Home) -> list[Path]:
    """Where images are; of a home that others may enter but not list, where its names point."""
    try:
        found = {entry.name for entry in os.scandir(home.images)}
    except OSError:
        found = {link.digest for link in links(home).values()}
    return [home.images / name for name in sorted(found) if is_digest(name)]


def read_record(directory: Path) -> Record | None:
    try:
        record = RECORDS.decode(read_small(directory / RECORD))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if record.digest == directory.name else None


def read_origin(directory: Path) -> Origin | None:
    try:
        return ORIGINS.decode(read_small(directory / ORIGIN))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_stamp(path: Path) -> Stamp | None:
    try:
        return STAMPS.decode(read_small(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
