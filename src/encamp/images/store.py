"""The images on this host: finding, checking, listing and removing them.

An image is a directory named by its digest; names point to digests. On the way of every
machine, so whatever only building or pulling needs is imported where it is used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from encamp.home import SYSTEM_HOME, Home
from encamp.images.holding import using
from encamp.images.ownership import files_of, ours_alone, trusted
from encamp.images.records import (
    ORIGIN,
    RECORD,
    Link,
    Look,
    Origin,
    Record,
    Stamp,
    directories,
    link_path,
    links,
    look,
    read_link,
    read_origin,
    read_record,
    read_stamp,
    stamp_path,
)
from encamp.images.reference import check_reference, is_beginning, is_digest, is_tag, only
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import Recipe
from encamp.model.settings import Settings
from encamp.progress import Progress, Silent

DEEPEST = 8
"""How many layers an image may have below its own."""


class ImageStore:
    """The images of one home, and those of the system's home, which all users share."""

    def __init__(
        self, home: Home, shared: Path | None = SYSTEM_HOME, settings: Settings | None = None
    ) -> None:
        self.home = home
        self.shared = None
        if shared is not None and shared != home.root and trusted(shared):
            self.shared = Home(shared)
        self._settings = settings

    @property
    def settings(self) -> Settings:
        """Not read unless something depends on them: most machines' images are just there."""
        if self._settings is None:
            from encamp.describe.settings import load_settings

            self._settings = load_settings()
        return self._settings

    @property
    def homes(self) -> tuple[Home, ...]:
        return (self.home,) if self.shared is None else (self.home, self.shared)

    # ── finding ──────────────────────────────────────────────────────────────────────────────────

    def find(self, name: str, recipe_digest: str) -> Image | None:
        """The image of this name, if it was made by this very recipe."""
        for home in self.homes:
            link = read_link(home, name)
            if link is None or link.recipe != recipe_digest:
                continue
            image = self.by_digest(link.digest)
            if image is not None:
                return msgspec.structs.replace(image, name=name, recipe=link.recipe)
        return None

    def resolve(self, reference: str) -> Image | None:
        """The image that is on this host by this name, NAME:VERSION, or beginning of a digest."""
        check_reference(reference)
        if is_tag(reference):
            for home in self.homes:
                link = read_link(home, reference)
                image = None if link is None else self.by_digest(link.digest)
                if link is not None and image is not None:
                    return msgspec.structs.replace(image, name=reference, recipe=link.recipe)
        if not is_beginning(reference):
            return None
        here = {path.name for home in self.homes for path in directories(home)}
        for images in self.in_place():
            with contextlib.suppress(OSError):
                here |= {entry.name for entry in os.scandir(images) if is_digest(entry.name)}
        digest = only(reference, here)
        return None if digest is None else self.by_digest(digest)

    def get(self, reference: str) -> Image:
        """The image on this host; an error that names those nearest if there is none."""
        image = self.resolve(reference)
        if image is None:
            from encamp.images.reference import nearest

            known = nearest(reference, (tag for home in self.homes for tag in links(home)))
            raise EncampError(
                Code.INPUT_MISSING,
                f"There is no image '{reference}' on this host.",
                f"{known} See 'encamp image ls'.".lstrip(),
            )
        return image

    def fetch(self, reference: str, progress: Progress | None = None) -> Image:
        """The image of this name, from the configured repositories if it is not on this host."""
        image = self.resolve(reference)
        if image is not None:
            return image
        from encamp.images.pulling import pull_anywhere

        return pull_anywhere(self, reference, progress or Silent())

    def ensure(self, recipe: Recipe, progress: Progress | None = None) -> Image:
        """The image of this recipe; if it is not there it is pulled, or else built, by one
        process if many ask."""
        image = self.made_by(recipe)
        if image is not None:
            return image
        if self.settings.repositories:
            from encamp.images.pulling import fetch_made_by

            image = fetch_made_by(self, recipe, progress or Silent())
            if image is not None:
                return image
        from encamp.images.building import build_once

        return build_once(self, recipe, progress or Silent())

    def made_by(self, recipe: Recipe) -> Image | None:
        digest = recipe.digest()
        image = self.find(recipe.name, digest)
        if image is None and recipe.version is not None:
            # Another version was built since, and has the plain name now.
            image = self.find(f"{recipe.name}:{recipe.version}", digest)
        return image

    def by_digest(self, digest: str, depth: int = 0) -> Image | None:
        for home in self.homes:
            image = self.read(home.images / digest, depth)
            if image is not None:
                return image
        for images in self.in_place():
            if ours_alone(images / digest, *files_of(images / digest)):
                image = self.read(images / digest, depth)
                if image is not None:
                    return image
        return None

    def in_place(self) -> Iterator[Path]:
        """Directories of repositories whose images are used without a copy."""
        if not self.settings.in_place:
            return
        for where in self.settings.repositories:
            images = Path(where) / "images"
            # What others can write to is copied, and checked on the way.
            if where.startswith("/") and ours_alone(images.parent, images):
                yield images

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

    def ls(self) -> list[Image]:
        """Every image, named ones under each of their names; own ones first."""
        found: list[Image] = []
        for home in self.homes:
            named = links(home)
            here = {path.name: self.read(path) for path in directories(home)}
            # What is used in place is listed by the names it has here.
            elsewhere = {link.digest for link in named.values() if link.digest not in here}
            for image in (*here.values(), *map(self.by_digest, sorted(elsewhere))):
                if image is None:
                    continue
                tags = [tag for tag, link in named.items() if link.digest == image.digest]
                found += [
                    msgspec.structs.replace(image, name=tag, recipe=named[tag].recipe)
                    for tag in tags
                ] or [msgspec.structs.replace(image, name="")]
        return found

    def owns(self, image: Image) -> bool:
        return image.directory.parent == self.home.images

    def rm(self, wanted: str) -> list[Image]:
        """Remove an image by its name or (the beginning of) its digest; what was removed, under
        each of its names."""
        from encamp.images.removing import remove

        return remove(self, wanted)

    # ── checking ─────────────────────────────────────────────────────────────────────────────────

    def check(self, image: Image, progress: Progress | None = None) -> None:
        """Make sure that the image, and all it is a layer over, is what it was when it was made,
        and signed if that is required; and note that it is being used.

        Content is read again only if anything about its files changed since the last time.
        """
        for part in image.lineage:
            looks = look(part)
            stamp = self.stamped(part, looks)
            if stamp is None:
                self.check_content(part, looks, progress or Silent())
                stamp = self.stamp(part, looks)
            if self.foreign(part, looks) and self.settings.signatures.required:
                from encamp.images.signature import check_image

                key = check_image(part, self.settings.signatures, stamp.key)
                if key != stamp.key:
                    self.stamp(part, looks, key)
        with contextlib.suppress(OSError):
            os.utime(self.stamp_path(image))

    def check_content(self, image: Image, looks: dict[str, Look], progress: Progress) -> None:
        from encamp.images.content import check_content

        try:
            check_content(image, looks, progress)
        except EncampError as error:
            if not self.kept(image):
                error.hint = "It is used where it lies; tell whoever keeps that directory."
            raise

    def kept(self, image: Image) -> bool:
        """Whether it lies in a home, and not in a repository."""
        return any(image.directory.parent == home.images for home in self.homes)

    def foreign(self, image: Image, looks: dict[str, Look]) -> bool:
        """Whether it came from a repository; what was built here is the host's own."""
        return ORIGIN in looks or not self.kept(image)

    def relies_on(self, directory: Path) -> bool:
        """Whether what an image says it was made by can be believed: it was made here, or came
        from a repository that is configured, and not just from one that somebody once named."""
        origin = read_origin(directory)
        configured = {where.rstrip("/") for where in self.settings.repositories}
        return origin is None or origin.repository in configured

    def stamp_path(self, image: Image) -> Path:
        """Several hosts may share a home; what one of them has read in a directory that they
        share as well, the others have not."""
        mark = "" if self.kept(image) else f"@{os.uname().nodename}"
        return stamp_path(self.home, f"{image.digest}{mark}")

    def stamped(self, image: Image, looks: dict[str, Look]) -> Stamp | None:
        stamp = read_stamp(self.stamp_path(image))
        if stamp is None or stamp.files != looks or stamp.directory != str(image.directory):
            return None
        return stamp

    def stamp(self, image: Image, looks: dict[str, Look], key: str = "") -> Stamp:
        from encamp.images.content import write_file

        stamp = Stamp(str(image.directory), looks, key)
        # A stamp only saves time: on a full disk, do without.
        with contextlib.suppress(OSError):
            write_file(self.stamp_path(image), msgspec.json.encode(stamp))
        return stamp

    def using(self, image: Image) -> AbstractContextManager[None]:
        """Nobody removes the image to make room, from now until its machine is written down."""
        return using(image)


__all__ = [
    "RECORD",
    "ImageStore",
    "Link",
    "Origin",
    "Record",
    "Stamp",
    "link_path",
    "look",
    "read_origin",
    "stamp_path",
    "trusted",
]
