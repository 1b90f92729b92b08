"""The images on this host: finding, checking, listing and removing them.

An image is a directory named by its digest; names point to digests. On the way of every
machine, so whatever only building needs is imported where it is used.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import NoReturn

import msgspec

from encamp.home import SYSTEM_HOME, Home
from encamp.model.errors import Code, EncampError
from encamp.model.image import Defaults, Image, ImageFile
from encamp.model.recipe import Recipe
from encamp.progress import Progress, Silent

RECORD = "image.json"
DIGEST_LENGTH = 64
DEEPEST = 8
"""How many layers an image may have below its own."""
SHORTEST_DIGEST = 6
"""How much of a digest names an image."""


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


class Link(msgspec.Struct, frozen=True):
    """What a name stands for."""

    digest: str
    recipe: str


class Stamp(msgspec.Struct, frozen=True):
    """How an image's files looked to the system when their content was last found right."""

    directory: str
    files: dict[str, tuple[int, int, int, int]]


RECORDS = msgspec.json.Decoder(Record)
LINKS = msgspec.json.Decoder(Link)
STAMPS = msgspec.json.Decoder(Stamp)


class ImageStore:
    """The images of one home, and those of the system's home, which all users share."""

    def __init__(self, home: Home, shared: Path | None = SYSTEM_HOME) -> None:
        self.home = home
        self.shared = None
        if shared is not None and shared != home.root and trusted(shared):
            self.shared = Home(shared)

    def find(self, name: str, recipe_digest: str) -> Image | None:
        """The image of this name, if it was made by this very recipe."""
        for home in (self.home, self.shared):
            if home is None:
                continue
            link = read_link(home, name)
            if link is None or link.recipe != recipe_digest:
                continue
            image = self.read(home.images / link.digest)
            if image is not None:
                return msgspec.structs.replace(image, name=name, recipe=link.recipe)
        return None

    def read(self, directory: Path, depth: int = 0) -> Image | None:
        """The image in a directory, and what it is a layer over."""
        record = read_record(directory)
        if record is None or depth > DEEPEST:
            return None
        parent = None
        if record.parent is not None:
            parent = self.by_digest(record.parent, depth + 1)
            if parent is None:
                return None
        return Image(
            digest=record.digest,
            name=record.name,
            kernel_release=record.kernel_release,
            created=record.created,
            recipe=record.recipe,
            files=record.files,
            directory=directory,
            parent=parent,
            defaults=record.defaults,
        )

    def by_digest(self, digest: str, depth: int = 0) -> Image | None:
        for home in (self.home, self.shared):
            if home is not None:
                image = self.read(home.images / digest, depth)
                if image is not None:
                    return image
        return None

    def ensure(self, recipe: Recipe, progress: Progress | None = None) -> Image:
        """The image of this recipe, built if it is not there; by one process if many ask."""
        image = self.find(recipe.name, recipe.digest())
        if image is not None:
            return image
        from encamp.images.building import build_once

        return build_once(self, recipe, progress or Silent())

    def ls(self) -> list[Image]:
        """Every image, named ones under each of their names; own ones first."""
        found: list[Image] = []
        for home in (self.home, self.shared):
            if home is None:
                continue
            named = links(home)
            for directory in directories(home):
                image = self.read(directory)
                if image is None:
                    continue
                names = [name for name, link in named.items() if link.digest == image.digest]
                found += [
                    msgspec.structs.replace(image, name=name, recipe=named[name].recipe)
                    for name in names
                ] or [msgspec.structs.replace(image, name="")]
        return found

    def rm(self, wanted: str) -> list[Image]:
        """Remove an image by its name or (the beginning of) its digest; what was removed."""
        named = links(self.home)
        if wanted in named:
            digests = {named[wanted].digest}
        else:
            digests = {path.name for path in directories(self.home) if names(path.name, wanted)}
        if not digests:
            self.refuse_removal(wanted)
        if len(digests) > 1:
            raise EncampError(
                Code.USAGE,
                f"'{wanted}' is the beginning of more than one image's digest.",
                "Give more of it; see 'encamp image ls'.",
            )
        removed = [image for image in self.ls() if image.digest in digests and self.owns(image)]
        from encamp.images.placing import discard

        discard(self.home, {name for name in named if named[name].digest in digests}, digests)
        return removed

    def owns(self, image: Image) -> bool:
        return image.directory.parent == self.home.images

    def refuse_removal(self, wanted: str) -> NoReturn:
        for image in self.ls():
            if image.name == wanted or names(image.digest, wanted):
                raise EncampError(
                    Code.NOT_PERMITTED,
                    f"Image '{wanted}' belongs to the system ({image.directory}), not to you.",
                    "Only root can remove it.",
                )
        raise EncampError(
            Code.INPUT_MISSING, f"There is no image '{wanted}'.", "See 'encamp image ls'."
        )

    def check(self, image: Image, progress: Progress | None = None) -> None:
        """Make sure that the image, and all it is a layer over, is what it was when it was built.

        Content is read again only if anything about its files changed since the last time.
        """
        for part in image.lineage:
            looks = look(part)
            if self.stamped(part, looks):
                continue
            from encamp.images.content import check_content

            check_content(part, looks, progress or Silent())
            self.stamp(part, looks)

    def stamped(self, image: Image, looks: dict[str, tuple[int, int, int, int]]) -> bool:
        try:
            stamp = STAMPS.decode(stamp_path(self.home, image.digest).read_bytes())
        except (OSError, msgspec.DecodeError):
            return False
        return stamp.files == looks and stamp.directory == str(image.directory)

    def stamp(self, image: Image, looks: dict[str, tuple[int, int, int, int]]) -> None:
        from encamp.images.content import write_file

        # A stamp only saves time: on a full disk, do without.
        with contextlib.suppress(OSError):
            stamp = Stamp(str(image.directory), looks)
            write_file(stamp_path(self.home, image.digest), msgspec.json.encode(stamp))


def look(image: Image) -> dict[str, tuple[int, int, int, int]]:
    """What the system says about each file that is there, without reading any."""
    looks = {}
    for file in image.files:
        with contextlib.suppress(FileNotFoundError):
            found = (image.directory / file.name).stat()
            looks[file.name] = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
    return looks


def trusted(shared: Path) -> bool:
    """Whether only root can have put images there."""
    for path in (shared, shared / "images"):
        try:
            found = path.stat()
        except OSError:
            return False
        if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return True


def names(digest: str, wanted: str) -> bool:
    """Whether somebody who says `wanted` means this digest."""
    return len(wanted) >= SHORTEST_DIGEST and digest.startswith(wanted)


def link_path(home: Home, name: str) -> Path:
    return home.images / "names" / f"{name}.json"


def stamp_path(home: Home, digest: str) -> Path:
    return home.images / "stamps" / f"{digest}.json"


def read_link(home: Home, name: str) -> Link | None:
    try:
        return LINKS.decode(link_path(home, name).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def links(home: Home) -> dict[str, Link]:
    found = {}
    for path in sorted((home.images / "names").glob("*.json")):
        link = read_link(home, path.stem)
        if link is not None:
            found[path.stem] = link
    return found


def directories(home: Home) -> list[Path]:
    """Where images are; of a home that others may enter but not list, where its names point."""
    try:
        found = {entry.name for entry in os.scandir(home.images)}
    except OSError:
        found = {link.digest for link in links(home).values()}
    return [home.images / name for name in sorted(found) if len(name) == DIGEST_LENGTH]


def read_record(directory: Path) -> Record | None:
    try:
        record = RECORDS.decode((directory / RECORD).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return record if record.digest == directory.name else None
