"""Images for tests that need many and boot none: the real format around meaningless content."""

from __future__ import annotations

import random
import time
from pathlib import Path

from encamp.home import Home
from encamp.images.content import NO_DEFAULTS, describe, image_digest
from encamp.images.placing import name_image, place
from encamp.images.records import Record
from encamp.images.store import ImageStore
from encamp.model.image import Defaults, Image
from encamp.model.settings import Settings
from encamp.workplace import workplace

KIB = 1024
FILES = (Image.KERNEL, Image.MODULES, Image.ROOT)


def store_in(directory: Path, **settings: object) -> ImageStore:
    """A home of its own, which shares nothing with the system's."""
    home = Home(directory).prepare()
    return ImageStore(home, shared=None, settings=Settings(**settings))  # type: ignore[arg-type]


def make_image(
    images: ImageStore,
    name: str,
    *,
    version: str | None = None,
    over: Image | None = None,
    size: int = 64 * KIB,
    seed: int = 0,
    recipe: str = "0" * 64,
    defaults: Defaults = NO_DEFAULTS,
) -> Image:
    """An image whose root has this size; the same arguments make the same image."""
    parent = over.digest if over else None
    release = "" if over else "6.1.0-test"
    chance = random.Random(f"{name} {version} {parent} {size} {seed}")
    with workplace(images.home, f"test-{name}") as work:
        result = work.directory / "result"
        result.mkdir()
        names = FILES if over is None else (Image.ROOT,)
        for file in names:
            (result / file).write_bytes(chance.randbytes(size if file == Image.ROOT else 1000))
        files = tuple(describe(result / file) for file in sorted(names))
        record = Record(
            digest=image_digest(files, parent, defaults, release),
            name=name,
            kernel_release=release,
            created=time.time(),
            recipe=recipe,
            files=files,
            parent=parent,
            defaults=defaults,
        )
        place(images, work, result, record)
    name_image(images.home, record, name, version)
    found = images.resolve(name)
    assert found is not None
    return found
