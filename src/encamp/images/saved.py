"""Placing what a machine changed as an image: a layer over the one that it was made of."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from encamp.images import store
from encamp.images.content import describe, image_digest
from encamp.images.placing import Readers, name_image, place
from encamp.images.portion import Forward, Portion
from encamp.images.reference import name_of, version_of
from encamp.images.squash import squash, unsquash
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import Compression
from encamp.model.size import format_bytes
from encamp.progress import Progress
from encamp.workplace import Workplace


def place_saved(
    images: store.ImageStore,
    work: Workplace,
    changes: Path,
    parent: Image,
    tag: str,
    *,
    origin: str,
    compression: Compression,
    progress: Progress,
    readers: Readers | None = None,
) -> Image:
    """Make an image of `changes`, a layer's archive, and let `tag` (NAME or NAME:VERSION) stand
    for it. The archive is used up. `origin` stands for the recipe it does not have. Nobody but
    its `readers` may read it, and everybody if there are none given."""
    whole = Portion(Forward(progress))
    result = work.directory / "result"
    result.mkdir()
    below: Image | None = parent
    if len(parent.layers) >= store.DEEPEST:
        # Too many to put over one another: all of it in one.
        flatten(parent, changes, work, whole.part(0, 0.3))
        for file in (parent.kernel, parent.modules):
            shutil.copyfile(file, result / file.name)
        below = None
    squash(
        changes,
        result / Image.ROOT,
        whole.part(0.3, 0.95),
        compression=compression,
        hold=(work.lock,),
    )
    changes.unlink()
    files = tuple(describe(path) for path in sorted(result.iterdir()))
    under = below.digest if below else None
    record = store.Record(
        digest=image_digest(files, under, parent.defaults, parent.kernel_release),
        name=tag,
        kernel_release=parent.kernel_release,
        created=time.time(),
        recipe=origin,
        files=files,
        parent=under,
        defaults=parent.defaults,
    )
    name = name_of(tag)
    whole.update("writing the image", 0.95)
    with locked(images.home, f"image-{name}", f"waiting: another encamp makes '{name}'", progress):
        image = place(images, work, result, record, readers)
        name_image(images.home, record, name, version_of(tag))
    whole.update(f"image '{tag}' ready", 1.0)
    return image


def flatten(parent: Image, changes: Path, work: Workplace, progress: Portion) -> None:
    """Put the changes into the whole tree that they were made in."""
    from encamp.images import tree

    check_room(parent, changes)
    archives = []
    for number, layer in enumerate(parent.layers):
        progress.update("putting the image's layers together", number / len(parent.layers))
        archive = work.directory / f"layer-{number}.tar"
        unsquash(layer, archive, hold=(work.lock,))
        archives.append(archive)
    merged = work.directory / "merged.tar"
    tree.write(tree.merge(tree.read(archive) for archive in (*archives, changes)), merged)
    for archive in archives:
        archive.unlink()
    merged.rename(changes)


def check_room(parent: Image, changes: Path) -> None:
    """Refuse what surely does not fit, before the disk is filled: every layer is unpacked, which
    makes it no smaller, and then all of them are written once more as one."""
    room = os.statvfs(changes.parent)
    least = sum(layer.stat().st_size for layer in parent.layers) + changes.stat().st_blocks * 512
    if room.f_bavail * room.f_frsize < 2 * least:
        raise EncampError(
            Code.DISK_FULL,
            f"There is no room to put the {len(parent.layers)} layers of '{parent.name}' and what"
            f" is new into one: {format_bytes(2 * least)} are needed at least.",
            "Make room and try again.",
        )
