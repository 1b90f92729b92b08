"""Putting images where machines find them, and giving them names."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.home import Home
from encamp.images import eviction, store
from encamp.images.content import check_content, settle, write_file
from encamp.images.records import ORIGIN, SIGNATURE, Link, Record, link_path, read_link
from encamp.images.reference import check_tag, tags, version_of
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import Recipe
from encamp.progress import Silent
from encamp.workplace import Workplace


class Readers(msgspec.Struct, frozen=True):
    """Who may read an image besides its owner, where not everybody may."""

    group: int | None
    """The one that the owner's machines run as, if that is not the owner's own account."""

    def admit(self, directory: Path) -> None:
        for path, mode in (*((file, 0o440) for file in directory.iterdir()), (directory, 0o750)):
            if self.group is None:
                path.chmod(mode & 0o700)
            else:
                os.chown(path, -1, self.group)
                path.chmod(mode)


def admit_all(directory: Path) -> None:
    for path in directory.iterdir():
        path.chmod(0o444)
    directory.chmod(0o755)


def readers_of(image: Path) -> Readers | None:
    """Who may read the image in a directory; None: everybody."""
    try:
        found = image.stat()
    except FileNotFoundError:
        return None
    if found.st_mode & 0o005:
        return None
    return Readers(found.st_gid if found.st_mode & 0o050 else None)


def place(
    images: store.ImageStore,
    work: Workplace,
    result: Path,
    record: Record,
    readers: Readers | None = None,
) -> Image:
    """Move a directory with an image's files, whose content is known to be right, to its place.

    The same image may be there already; a damaged one goes. A record that is in the directory
    stays as it is, byte for byte, since somebody may have signed it. Everybody may read it, if
    `readers` does not say otherwise and everybody may read what it is a layer over."""
    if not (result / store.RECORD).exists():
        (result / store.RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    if readers is None and record.parent is not None:
        readers = readers_of(images.home.images / record.parent)
    if readers is None:
        admit_all(result)
    else:
        readers.admit(result)
    target = images.home.images / record.digest
    if not target.exists():
        needed = sum(file.size for file in record.files)
        keep = {record.digest, *([record.parent] if record.parent else ())}
        purpose = f"keep image '{record.name}'"
        eviction.make_room(images, needed, purpose, keep, Silent(), to_write=0)
    settle(result)
    with locked(images.home, f"place-{record.digest}", "waiting to place an image", Silent()):
        if not _whole(images, target):
            # Whoever clears up may be faster.
            with suppress(FileNotFoundError):
                target.rename(work.directory / f"damaged-{record.digest}")
            result.rename(target)
        else:
            # It has no name yet, so that it may be taken away from now on.
            with suppress(FileNotFoundError):
                _add_to(target, result)
                if readers is None and readers_of(target) is not None:
                    # Built or pulled as well, so it is no secret.
                    admit_all(target)
    image = images.read(target)
    if image is None:
        # If it is there, nobody could use it, and nobody would remove it.
        with suppress(FileNotFoundError):
            target.rename(work.directory / f"orphan-{record.digest}")
        raise EncampError(
            Code.WRONG_STATE,
            f"Image '{record.name}', or what it is a layer over, was removed while it was being"
            " made.",
            "Try again.",
            transient=True,
        )
    images.stamp(image, store.look(image))
    return image


def _add_to(target: Path, result: Path) -> None:
    """What is new about an image that is in its place already."""
    if not (result / ORIGIN).exists():
        # Built here as well, so it is the host's own now.
        (target / ORIGIN).unlink(missing_ok=True)
    elif (result / SIGNATURE).exists():
        # Signed since. The record goes with its signature, in an order that a kill between the
        # two leaves without any rather than with a wrong one.
        (target / SIGNATURE).unlink(missing_ok=True)
        (result / store.RECORD).replace(target / store.RECORD)
        (result / SIGNATURE).replace(target / SIGNATURE)


def _whole(images: store.ImageStore, target: Path) -> bool:
    there = images.read(target)
    if there is None:
        return False
    try:
        check_content(there, store.look(there), Silent())
    except EncampError:
        return False
    return True


def check_free(home: Home, tag: str, digest: str) -> None:
    """A version stays what it is; only a name without one moves on by itself."""
    known = read_link(home, tag) if version_of(tag) else None
    if known is not None and known.digest != digest and (home.images / known.digest).exists():
        raise taken(tag, known)


def check_version(home: Home, recipe: Recipe) -> None:
    """Refuse to build what its version's name could not be given to: another recipe's image has
    it. An image of the same recipe by an older Encamp does not count."""
    if recipe.version is None:
        return
    tag = f"{recipe.name}:{recipe.version}"
    link = read_link(home, tag)
    if link is None or link.recipe in older(recipe):
        return
    if (home.images / link.digest).exists():
        raise taken(tag, link)


def older(recipe: Recipe) -> set[str]:
    """What the recipe's digest was with each builder there has been."""

    def built_by(recipe: Recipe, builder: int) -> Recipe:
        parent = recipe.parent
        if isinstance(parent, Recipe):
            parent = built_by(parent, builder)
        return msgspec.structs.replace(recipe, builder=builder, parent=parent)

    return {built_by(recipe, builder).digest() for builder in range(1, recipe.builder + 1)}


def taken(tag: str, known: Link) -> EncampError:
    return EncampError(
        Code.WRONG_STATE,
        f"'{tag}' is another image on this host already ({known.digest[:12]}), and a version"
        " stays what it is.",
        f"Choose another version, use --force with 'encamp image pull' or 'build', or take the"
        f" name away: 'encamp image untag {tag}'.",
    )


def name_image(
    home: Home,
    made: Record | Link,
    name: str,
    version: str | None = None,
    *,
    force: bool = True,
) -> None:
    """Let NAME, and NAME:VERSION if there is one, stand for an image from now on; without `force`
    only if that version is no other image's."""
    link = made if isinstance(made, Link) else Link(made.digest, made.recipe)
    if not force and version is not None:
        check_free(home, f"{name}:{version}", link.digest)
    for tag in tags(name, version):
        link_name(home, tag, msgspec.structs.replace(link, version=version, name=""))


def link_name(home: Home, tag: str, link: Link) -> None:
    write_file(link_path(home, check_tag(tag)), msgspec.json.encode(link))
