"""Which templates stay when another one is made."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from encamp.images import store
from encamp.images.store import ImageStore
from encamp.machines.hardware import Hardware
from encamp.machines.template import Stamp, Template, TemplateStore, punch_holes
from encamp.model.driver import DriverName
from encamp.model.image import Image
from encamp.model.size import MIB, Size
from tests.images.stock import make_image, store_in

SMALL = Hardware(DriverName.EMULATION, Size(1, 64 * MIB), "none")
LARGE = msgspec.structs.replace(SMALL, size=Size(1, 128 * MIB))


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    monkeypatch.setattr(store, "trusted", lambda shared: False)
    return store_in(tmp_path / "home")


class Made:
    """Templates, made one after another."""

    def __init__(self, images: ImageStore, directory: Path) -> None:
        self.templates = TemplateStore(images.home)
        self.directory = directory
        self.memory = 0
        """Bytes of memory that each has on disk."""

    def __call__(
        self, key: str, image: Image, hardware: Hardware = SMALL, environment: str = "mini"
    ) -> list[str]:
        """Make one; those that are there then."""
        made = self.directory / key
        made.mkdir()
        stamps = {}
        if self.memory:
            (made / "memory").write_bytes(os.urandom(self.memory))
            stamps["memory"] = Stamp.of(made / "memory")
        self.templates.keep(
            Template(key, environment, image.digest, hardware, "", 0.0, 0.0, stamps, {}), made
        )
        return self.templates.keys()


@pytest.fixture
def make(images: ImageStore, tmp_path: Path) -> Made:
    return Made(images, tmp_path)


def test_templates_of_images_that_are_asked_for_in_turn_live_side_by_side(
    images: ImageStore, make: Made
) -> None:
    for version in ("1", "2", "3"):
        make(version, make_image(images, "tools", version=version))
    assert make.templates.keys() == ["1", "2", "3"]


def test_template_goes_with_its_image(images: ImageStore, make: Made) -> None:
    make("old", make_image(images, "tools"))
    images.rm("tools")
    assert make("new", make_image(images, "mini"), environment="another") == ["new"]


def test_templates_of_an_image_that_was_built_anew_go_in_every_size(
    images: ImageStore, make: Made
) -> None:
    old = make_image(images, "mini", seed=1)
    make("small", old)
    make("large", old, LARGE)
    make("other", old, environment="other")
    new = make_image(images, "mini", seed=2)
    assert make("new", new) == ["new", "other"]


def test_images_without_a_name_do_not_drive_each_other_out(images: ImageStore, make: Made) -> None:
    first, second = (make_image(images, "mini", seed=seed) for seed in (1, 2))
    make_image(images, "mini", seed=3)
    make("first", first)
    assert make("second", second) == ["first", "second"]


def test_template_for_another_qemu_replaces_that_of_the_same_machines(
    images: ImageStore, make: Made
) -> None:
    image = make_image(images, "mini")
    make("small", image)
    make("large", image, LARGE)
    assert make("newer", image) == ["large", "newer"]


def test_what_no_longer_reads_as_a_template_goes(images: ImageStore, make: Made) -> None:
    (images.home.templates / "rubbish").mkdir()
    assert make("new", make_image(images, "mini")) == ["new"]


def test_a_template_that_is_just_being_removed_takes_no_room(
    images: ImageStore, make: Made
) -> None:
    make("going", make_image(images, "mini"))
    ((template, _),) = make.templates.ls()
    template = msgspec.structs.replace(template, stamps={"memory": Stamp(1, 1, 1)})
    make.templates.remove("going")
    assert make.templates.size(template) == 0


def test_templates_that_served_nobody_for_longest_make_room(images: ImageStore, make: Made) -> None:
    image, other = make_image(images, "mini"), make_image(images, "other")
    make.memory = MIB
    for number, of in enumerate((image, other, image, image)):
        size = msgspec.structs.replace(SMALL, size=Size(1, (64 + number) * MIB))
        make(str(number), of, size, environment=of.name)
        os.utime(make.templates.directory(str(number)), (number, number))
    make.templates.make_room(4 * MIB, ())
    assert make.templates.keys() == ["0", "1", "2", "3"]
    first = make.templates._read("0")
    assert first is not None
    make.templates.origin(first)  # A machine is cloned from it.
    make.templates.make_room(2 * MIB, ("1", "3"))
    assert make.templates.keys() == ["1", "3"]
    make.templates.make_room(0, ("1",))
    assert make.templates.keys() == ["1"]


def test_memory_of_a_template_takes_no_room_for_zeros(tmp_path: Path) -> None:
    page = os.urandom(MIB)
    memory = tmp_path / "memory"
    memory.write_bytes(page + bytes(8 * MIB) + page + bytes(MIB))
    whole = memory.read_bytes()
    punch_holes(memory)
    assert memory.read_bytes() == whole
    assert memory.stat().st_blocks * 512 == 2 * MIB
