"""Finding, checking and removing images."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from encamp.describe.shipped import DEBIAN12, MINI, SHIPPED
from encamp.home import Home
from encamp.images.store import ImageStore, trusted
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import Kind, Recipe
from encamp.workplace import clear_cache
from tests.builds import Told
from tests.images.conftest import left_over

pytestmark = pytest.mark.site


def own(home: Home) -> ImageStore:
    return ImageStore(home, shared=None)


def quickest(work: Callable[[], None]) -> float:
    """Seconds that it takes when nothing else on the host is in its way."""
    taken = []
    for _ in range(50):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def test_an_image_is_found_by_name_and_recipe(home: Home, mini: Image) -> None:
    assert own(home).find("mini", MINI.digest()) == mini
    assert mini.directory.name == mini.digest
    assert {file.name for file in mini.files} == {"root.squashfs", "vmlinuz", "modules.cpio"}
    assert mini.size == sum(path.stat().st_size for path in (mini.root, mini.kernel, mini.modules))


def test_another_recipe_is_another_image(home: Home, mini: Image) -> None:
    changed = Recipe(name="mini", kind=Kind.MINI, suite="trixie", packages=MINI.packages)
    assert own(home).find("mini", changed.digest()) is None
    assert own(home).find("debian12", DEBIAN12.digest()) is None
    assert len({recipe.digest() for recipe in SHIPPED.values()}) == len(SHIPPED)


def test_ensure_does_not_build_what_is_there(home: Home, mini: Image, told: Told) -> None:
    assert own(home).ensure(MINI, told) == mini
    assert told.what == []


def test_a_stamped_image_is_checked_in_well_under_a_millisecond(home: Home, mini: Image) -> None:
    store = own(home)
    store.check(mini)

    def find_and_check() -> None:
        found = store.find("mini", mini.recipe)
        assert found is not None
        store.check(found)

    assert quickest(find_and_check) < 0.001


def test_an_image_is_read_again_only_when_its_files_changed(
    home: Home, mini: Image, told: Told
) -> None:
    store = own(home)
    store.check(mini, told)
    assert told.fractions[-1] == 1.0  # copied files look different to the system
    again = Told()
    store.check(mini, again)
    assert again.what == []
    mini.root.touch()
    store.check(mini, again)
    assert again.what != []


def flip_a_bit(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shorten(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [flip_a_bit, shorten, Path.unlink])
@pytest.mark.parametrize("name", ["root.squashfs", "vmlinuz", "modules.cpio"])
def test_damage_is_found_and_named(
    home: Home, mini: Image, name: str, damage: Callable[[Path], None]
) -> None:
    store = own(home)
    store.check(mini)
    damage(mini.directory / name)
    with pytest.raises(EncampError) as raised:
        store.check(mini)
    assert raised.value.code is Code.CORRUPT
    assert name in raised.value.sentence
    assert "encamp image rm mini" in raised.value.hint
    if damage is flip_a_bit:
        expected = next(file.sha256 for file in mini.files if file.name == name)
        assert expected in raised.value.sentence


def test_damage_that_keeps_size_and_time_is_found(home: Home, mini: Image) -> None:
    store = own(home)
    store.check(mini)
    before = mini.root.stat()
    flip_a_bit(mini.root)
    os.utime(mini.root, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(EncampError):
        store.check(mini)


def test_a_removed_image_leaves_nothing(home: Home, mini: Image) -> None:
    store = own(home)
    store.check(mini)
    assert store.rm("mini") == [mini]
    assert store.ls() == []
    assert not mini.directory.exists()
    assert left_over(home) == []
    assert list(home.images.glob("*/*")) == []
    with pytest.raises(EncampError) as raised:
        store.rm("mini")
    assert raised.value.code is Code.INPUT_MISSING


def test_an_image_is_removed_by_the_beginning_of_its_digest(home: Home, mini: Image) -> None:
    store = own(home)
    with pytest.raises(EncampError):
        store.rm(mini.digest[:5])
    store.rm(mini.digest[:6])
    assert store.find("mini", mini.recipe) is None


def test_a_name_cannot_lead_out_of_the_store(home: Home, mini: Image) -> None:
    outside = home.root / "outside.json"
    outside.write_text("{}")
    with pytest.raises(EncampError):
        own(home).rm("../../outside")
    assert outside.exists()


def test_images_are_listed_with_all_their_names(home: Home, mini: Image) -> None:
    names = home.images / "names"
    shutil.copy(names / "mini.json", names / "tiny.json")
    assert [image.name for image in own(home).ls()] == ["mini", "tiny"]
    (names / "mini.json").unlink()
    (names / "tiny.json").unlink()
    assert [image.name for image in own(home).ls()] == [""]


class TestSharedImages:
    """Images in the system's home, which root keeps for everybody."""

    def test_a_shared_image_is_used(self, home: Home, mini: Image, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can make files of root")
        mine = Home(tmp_path / "mine").prepare()
        store = ImageStore(mine, shared=home.root)
        found = store.ensure(MINI)
        assert found.directory == mini.directory
        store.check(found)
        assert (mine.images / "stamps" / f"{mini.digest}.json").exists()
        assert [image.digest for image in store.ls()] == [mini.digest]
        with pytest.raises(EncampError) as raised:
            store.rm("mini")
        assert raised.value.code is Code.NOT_PERMITTED

    def test_ones_own_image_comes_first(self, home: Home, mini: Image, tmp_path: Path) -> None:
        mine = Home(tmp_path / "mine").prepare()
        shutil.copytree(home.images, mine.images, dirs_exist_ok=True)
        assert ImageStore(mine, shared=home.root).ensure(MINI).directory.is_relative_to(mine.root)

    @pytest.mark.parametrize("mode", [0o775, 0o777])
    def test_a_home_that_others_can_write_to_is_not_trusted(self, home: Home, mode: int) -> None:
        home.images.chmod(mode)
        assert not trusted(home.root)

    def test_a_home_of_somebody_else_is_not_trusted(self, home: Home) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        assert trusted(home.root)
        os.chown(home.root, 65534, 65534)
        assert not trusted(home.root)


def test_clearing_costs_nothing_when_nothing_is_left(home: Home) -> None:
    def clear() -> None:
        assert clear_cache(home) == 0

    assert quickest(clear) < 0.01
    assert clear_cache(Home(home.root / "not-there")) == 0
