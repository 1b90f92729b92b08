"""Images that machines were saved as: whose they are, and how many layers they may have."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from encamp.images.placing import Readers, readers_of
from encamp.images.saved import check_room, place_saved
from encamp.images.store import ImageStore
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import Compression
from encamp.progress import Silent
from encamp.workplace import workplace
from tests.images.stock import make_image, store_in

GROUP = 4321

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def images(tmp_path: Path) -> ImageStore:
    return store_in(tmp_path / "home")


def save(images: ImageStore, name: str, over: Image, readers: Readers | None) -> Image:
    with workplace(images.home, "layer") as work:
        changes = work.directory / "changes.tar"
        with tarfile.open(changes, "w") as archive:
            archive.addfile(tarfile.TarInfo(f"./{name}"))
        return place_saved(
            *(images, work, changes, over, name),
            origin="a test",
            compression=Compression.LZ4,
            progress=Silent(),
            readers=readers,
        )


def modes(image: Image) -> tuple[int, set[int]]:
    files = {path.stat().st_mode & 0o777 for path in image.directory.iterdir()}
    return image.directory.stat().st_mode & 0o777, files


def test_saved_image_is_its_owners_alone_and_so_is_what_lies_over_it(images: ImageStore) -> None:
    base = make_image(images, "base")
    assert modes(base) == (0o755, {0o444})
    mine = save(images, "mine", base, Readers(group=None))
    assert modes(mine) == (0o700, {0o400})
    over = make_image(images, "over", over=mine)
    assert modes(over) == (0o700, {0o400})
    images.check(over)


@root_only
def test_account_of_the_machines_may_read_what_root_saved(images: ImageStore) -> None:
    saved = save(images, "saved", make_image(images, "base"), Readers(GROUP))
    assert modes(saved) == (0o750, {0o440})
    assert {path.stat().st_gid for path in saved.directory.iterdir()} == {GROUP}
    assert readers_of(saved.directory) == Readers(GROUP)


def test_image_that_is_also_made_for_everybody_is_no_secret(images: ImageStore) -> None:
    base = make_image(images, "base")
    secret = save(images, "same", base, Readers(group=None))
    public = save(images, "same", base, None)
    assert public.digest == secret.digest
    assert modes(public) == (0o755, {0o444})
    images.check(public)


def test_layers_that_surely_do_not_fit_are_not_put_together(
    images: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_image(images, "base")
    changes = tmp_path / "changes.tar"
    changes.write_bytes(bytes(10240))
    check_room(base, changes)
    full = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*full[:4], 1, *full[5:])))
    with pytest.raises(EncampError) as refused:
        check_room(base, changes)
    assert refused.value.code is Code.DISK_FULL
