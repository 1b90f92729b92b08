"""Which templates stay when another one is made."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from encamp.images import store
from encamp.images.store import ImageStore
from encamp.machines.hardware import Hardware
from encamp.machines.template import MOST_SIZES, Stamp, Template, TemplateStore
from encamp.model.image import Image
from encamp.model.size import MIB, Size
from tests.images.stock import make_image, store_in

SMALL = Hardware("tcg", Size(1, 64 * MIB), 0, "none")
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

    def __call__(
        self, key: str, image: Image, hardware: Hardware = SMALL, environment: str = "mini"
    ) -> list[str]:
        """Make one; those that are there then."""
        made = self.directory / key
        made.mkdir()
        self.templates.keep(
            Template(key, environment, image.digest, hardware, "", 0.0, 0.0, {}, {}), made
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


def test_templates_of_few_sizes_are_kept_those_that_were_used_last(
    images: ImageStore, make: Made
) -> None:
    image, other = make_image(images, "mini"), make_image(images, "other")
    make("other", other, environment="other")
    for number in range(MOST_SIZES):
        size = msgspec.structs.replace(SMALL, size=Size(1, (64 + number) * MIB))
        make(f"size-{number}", image, size)
        os.utime(make.templates.directory(f"size-{number}"), (number, number))
    assert len(make.templates.keys()) == 1 + MOST_SIZES
    first = make.templates._read("size-0")
    assert first is not None
    make.templates.origin(first)
    left = make("newest", image, msgspec.structs.replace(SMALL, size=Size(2, 64 * MIB)))
    assert {*left} >= {"newest", "size-0", "other"}, "a machine was cloned from it"
    assert "size-1" not in left
    assert len(left) == 1 + MOST_SIZES
