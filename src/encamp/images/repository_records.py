"""Reading what a repository says, which anybody may have written: nothing of it is believed before
it is checked, and nothing of it can name a path, take memory without end, or lead in circles."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TypeVar

import msgspec

from encamp.images.content import image_digest
from encamp.images.printable import printable
from encamp.images.records import PUBLISHED_LINKS, RECORDS, Link, Record
from encamp.images.reference import check_tag, is_digest, is_tag, version_of
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image, ImageFile

T = TypeVar("T")

LARGEST_RECORD = 1 << 20
LARGEST_LINK = 1 << 16
LARGEST_INDEX = 64 << 20
"""Bytes; about 200,000 images."""
MOST_FILES = 16
LARGEST_FILE = 1 << 42
LATEST = 253402300800.0
"""The year 10000, which no calendar of the host's knows."""
FILE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?", re.ASCII)
RESERVED = frozenset({"image.json", "image.json.minisig", "origin.json", "parent"})
RECIPE = re.compile(r"[A-Za-z0-9 ._:-]{0,200}", re.ASCII)
"""The digest of one, or words for what was made without any."""
RELEASE = re.compile(r"[A-Za-z0-9.+~_-]{0,100}", re.ASCII)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a repository's index says about one image."""

    recipe: str
    size: int
    created: float
    kernel_release: str = ""
    parent: str | None = None


class Index(msgspec.Struct, frozen=True):
    """All that a repository has; names by what they stand for."""

    images: dict[str, Entry] = {}
    names: dict[str, str] = {}

    def tags(self, digest: str) -> list[str]:
        return sorted(tag for tag, named in self.names.items() if named == digest)


INDEXES = msgspec.json.Decoder(Index)


def wrong(where: str, what: str) -> EncampError:
    return EncampError(
        Code.CORRUPT,
        f"Repository {where} makes no sense: {printable(what)}.",
        "Nothing of it is used. Is the address right? If so, tell whoever keeps it.",
    )


def parse_record(data: bytes, digest: str, where: str) -> Record:
    path = f"images/{digest}/image.json"
    record = _decode(RECORDS, data, LARGEST_RECORD, path, where)
    named = image_digest(record.files, record.parent, record.defaults, record.kernel_release)
    if record.digest != digest or named != digest:
        raise wrong(where, f"{path} describes another image")
    if record.parent is not None and not is_digest(record.parent):
        raise wrong(where, f"{path} names a parent that is none")
    if record.name and not is_tag(record.name):
        raise wrong(where, f"{path} gives the image a name that cannot be one")
    if not RELEASE.fullmatch(record.kernel_release) or not RECIPE.fullmatch(record.recipe):
        raise wrong(where, f"{path} has a kernel or a recipe that cannot be one")
    check_time(record.created, path, where)
    check_files(record.files, path, where)
    if not is_image({file.name for file in record.files}, layer=record.parent is not None):
        raise wrong(where, f"{path} lists files of which no machine can be made")
    return record


def is_image(names: Collection[str], *, layer: bool) -> bool:
    """Whether these files are a whole disk, a root with its kernel, or a layer over one."""
    if layer:
        return Image.ROOT in names and Image.DISK not in names
    return Image.DISK in names or {Image.ROOT, Image.KERNEL, Image.MODULES} <= set(names)


def check_time(moment: float, path: str, where: str) -> None:
    if not 0 <= moment < LATEST:
        raise wrong(where, f"{path} has a time that cannot be")


def check_files(files: tuple[ImageFile, ...], path: str, where: str) -> None:
    if not 0 < len(files) <= MOST_FILES:
        raise wrong(where, f"{path} lists {len(files)} files")
    for file in files:
        if not FILE_NAME.fullmatch(file.name) or file.name in RESERVED:
            raise wrong(where, f"{path} lists a file {file.name[:80]!r}, which no image has")
        if not 0 <= file.size <= LARGEST_FILE or not is_digest(file.sha256):
            raise wrong(where, f"{path} gives {file.name} a size or a SHA-256 that cannot be")
    if len({file.name for file in files}) < len(files):
        raise wrong(where, f"{path} lists a file twice")


def parse_link(data: bytes, tag: str, where: str) -> Link:
    path = f"names/{tag}.json"
    link = _decode(PUBLISHED_LINKS, data, LARGEST_LINK, path, where)
    if not is_digest(link.digest) or link.name != tag:
        raise wrong(where, f"{path} is not about '{tag}'")
    check_time(link.pushed, path, where)
    version = version_of(tag)
    if link.version is not None:
        if version not in (None, link.version):
            raise wrong(where, f"{path} is about another version")
        check_tag(f"{tag.partition(':')[0]}:{link.version}")
    return link


def parse_index(data: bytes, where: str) -> Index:
    """The index without those entries that cannot be true."""
    index = _decode(INDEXES, data, LARGEST_INDEX, "index.json", where)
    images = {
        digest: entry
        for digest, entry in index.images.items()
        if is_digest(digest)
        and (entry.parent is None or is_digest(entry.parent))
        and RELEASE.fullmatch(entry.kernel_release)
        and RECIPE.fullmatch(entry.recipe)
        and 0 <= entry.created < LATEST
        and 0 <= entry.size <= MOST_FILES * LARGEST_FILE
    }
    names = {tag: named for tag, named in index.names.items() if is_tag(tag) and named in images}
    return Index(images, names)


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, limit: int, path: str, where: str) -> T:
    if len(data) > limit:
        raise wrong(where, f"{path} is larger than {limit} bytes")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise wrong(where, f"{path} cannot be read ({error})") from error
