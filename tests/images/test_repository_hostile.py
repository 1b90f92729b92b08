"""Repositories that lie: nothing they say is believed before it is checked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encamp import programs
from encamp.images.content import describe, image_digest
from encamp.images.placing import link_name
from encamp.images.pulling import fetch_made_by, pull
from encamp.images.pushing import push
from encamp.images.records import Link, Record
from encamp.images.reference import check_reference, is_beginning, is_tag
from encamp.images.repository import Repository
from encamp.images.repository_records import parse_index, parse_link, parse_record
from encamp.images.store import DEEPEST, ImageStore
from encamp.model.errors import Code, EncampError
from encamp.model.image import Defaults, Image, ImageFile
from encamp.model.recipe import Recipe
from encamp.progress import Silent
from tests.images.stock import make_image, store_in

DIGEST = "1" * 64
FILES = tuple(ImageFile(name, 5, DIGEST) for name in (Image.KERNEL, Image.MODULES, Image.ROOT))


def record(**changes: object) -> Record:
    """A record whose digest is right, whatever else is wrong with it."""
    values: dict[str, object] = {
        "name": "analysis",
        "kernel_release": "6.1.0",
        "created": 1.0,
        "recipe": DIGEST,
        "files": FILES,
        "parent": None,
        "defaults": Defaults(),
        **changes,
    }
    covered = ("files", "parent", "defaults", "kernel_release")
    digest = image_digest(*(values[field] for field in covered))  # type: ignore[arg-type]
    return Record(digest=digest, **values)  # type: ignore[arg-type]


def parse(made: Record) -> Record:
    return parse_record(msgspec.json.encode(made), made.digest, "/repository")


def test_an_honest_record_is_read() -> None:
    assert parse(record()) == record()
    saved = record(name="analysis:2", recipe=f"saved {DIGEST[:32]}", kernel_release="")
    assert parse(saved) == saved


@pytest.mark.parametrize(
    "changes",
    [
        {"files": (ImageFile("../../../etc/passwd", 5, DIGEST),)},
        {"files": (ImageFile("/etc/passwd", 5, DIGEST),)},
        {"files": (ImageFile("..", 5, DIGEST),)},
        {"files": (ImageFile("", 5, DIGEST),)},
        {"files": (ImageFile("a\x1b[2Jb", 5, DIGEST),)},
        {"files": (ImageFile("image.json", 5, DIGEST),)},
        {"files": (ImageFile("origin.json", 5, DIGEST),)},
        {"files": (ImageFile("root.squashfs", -1, DIGEST),)},
        {"files": (ImageFile("root.squashfs", 1 << 60, DIGEST),)},
        {"files": (ImageFile("root.squashfs", 5, "../x"),)},
        {"files": (ImageFile("root.squashfs", 5, DIGEST),) * 2},
        {"files": tuple(ImageFile(f"file{n}", 5, DIGEST) for n in range(1000))},
        {"files": ()},
        {"files": (ImageFile("a.txt", 5, DIGEST),)},
        {"files": (ImageFile(Image.ROOT, 5, DIGEST),)},
        {"files": (ImageFile(Image.KERNEL, 5, DIGEST),), "parent": DIGEST},
        {"files": (*FILES, ImageFile("parent", 5, DIGEST))},
        {"files": (*FILES[1:], ImageFile(Image.KERNEL, 1 << 43, DIGEST))},
        {"created": 1e300},
        {"created": -1.0},
        {"parent": "../../elsewhere"},
        {"name": "../../elsewhere"},
        {"kernel_release": "6.1 init=/bin/sh"},
        {"kernel_release": "../../../etc"},
        {"recipe": "../x"},
        {"recipe": "x" * 1000},
    ],
)
def test_a_record_that_cannot_be_true_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(EncampError) as raised:
        parse(record(**changes))
    assert raised.value.code is Code.CORRUPT
    assert "/repository" in raised.value.sentence


def test_a_record_of_another_image_is_refused() -> None:
    with pytest.raises(EncampError):
        parse_record(msgspec.json.encode(record()), "2" * 64, "/repository")
    forged = msgspec.structs.replace(record(), digest="2" * 64)
    with pytest.raises(EncampError):
        parse_record(msgspec.json.encode(forged), "2" * 64, "/repository")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
KEYS = st.sampled_from(
    [
        *("digest", "name", "kernel_release", "created", "recipe", "files", "parent", "defaults"),
        *("images", "names", "pushed", "version", "size", DIGEST, "analysis"),
    ]
)
WORDS = st.sampled_from([DIGEST, "analysis", "../x", "a/b", "analysis:1", ":", "1", "\0"])
OBJECTS = st.dictionaries(KEYS, ANYTHING | WORDS | st.dictionaries(KEYS, WORDS | ANYTHING))
DATA = st.binary() | OBJECTS.map(lambda value: json.dumps(value).encode())


@given(data=DATA)
@settings(max_examples=150, deadline=None)
def test_whatever_a_repository_says_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(EncampError):
        found = parse_record(data, DIGEST, "/repository")
        assert found.digest == DIGEST
    with contextlib.suppress(EncampError):
        link = parse_link(data, "analysis", "/repository")
        assert link.name == "analysis"
    with contextlib.suppress(EncampError):
        index = parse_index(data, "/repository")
        assert all(len(digest) == 64 for digest in index.images)
        assert all(is_tag(tag) and named in index.images for tag, named in index.names.items())


def test_nesting_without_end_is_refused() -> None:
    for data in (b"[" * 200_000, b'{"defaults":' * 200_000, b'{"x":[' + b"[" * 100_000):
        with pytest.raises(EncampError):
            parse_record(data, DIGEST, "/repository")


def test_a_record_without_end_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "images" / DIGEST
    directory.mkdir(parents=True)
    with (directory / "image.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(EncampError) as raised:
        Repository.open(str(tmp_path)).described(DIGEST)
    assert "larger than" in raised.value.sentence


@given(text=st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_names_are_file_names_and_nothing_else(text: str) -> None:
    if is_tag(text):
        assert Path(f"{text}.json").name == f"{text}.json"
        assert not text.startswith(".")
        assert len(f"{text}.json.minisig".encode()) < 255
    if not is_tag(text) and not is_beginning(text):
        with pytest.raises(EncampError):
            check_reference(text)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/b", ".hidden", "a.", "a:", ":1", "a:b:c", "a b", "a\n"),
        *("é", "1" * 64, "a" * 101, "-a", "a\0"),
    ],
)
def test_what_cannot_be_a_name_is_refused_everywhere(name: str, tmp_path: Path) -> None:
    images = store_in(tmp_path / "home")
    with pytest.raises(EncampError) as raised:
        link_name(images.home, name, Link(DIGEST, DIGEST))
    assert raised.value.code is Code.USAGE
    if not is_beginning(name):
        for ask in (images.resolve, images.fetch, images.get):
            with pytest.raises(EncampError):
                ask(name)
    assert list(images.home.images.iterdir()) == []


# ── in whole repositories ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def images(tmp_path: Path) -> ImageStore:
    return store_in(tmp_path / "home")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "repository"
    directory.mkdir()
    return directory


def write(directory: Path, made: Record) -> None:
    path = directory / "images" / made.digest / "image.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(made))


def test_thousands_of_layers_are_refused(images: ImageStore, directory: Path) -> None:
    made = record()
    for _ in range(DEEPEST + 2):
        write(directory, made)
        made = record(parent=made.digest)
    write(directory, made)
    with pytest.raises(EncampError) as raised:
        pull(images, Repository.open(str(directory)), made.digest, Silent())
    assert f"more than {DEEPEST} layers" in raised.value.sentence


def test_a_name_that_leads_to_another_name_is_refused(images: ImageStore, directory: Path) -> None:
    (directory / "names").mkdir()
    link = Link(DIGEST, DIGEST, name="other")
    (directory / "names" / "analysis.json").write_bytes(msgspec.json.encode(link))
    with pytest.raises(EncampError) as raised:
        pull(images, Repository.open(str(directory)), "analysis", Silent())
    assert raised.value.code is Code.CORRUPT


def test_a_size_beyond_the_disk_is_refused_before_anything_is_read(
    images: ImageStore, directory: Path
) -> None:
    kept = make_image(images, "unused")
    made = record(files=(*FILES[:2], ImageFile("root.squashfs", 1 << 41, DIGEST)))
    write(directory, made)
    with pytest.raises(EncampError) as raised:
        pull(images, Repository.open(str(directory)), made.digest, Silent())
    assert raised.value.code is Code.NO_ROOM
    assert "2.0 TiB" in raised.value.sentence
    # Nothing is given up for what would not fit in any case.
    assert images.by_digest(kept.digest) is not None


def test_a_pipe_in_a_directory_does_not_hold_anybody_up(
    images: ImageStore, directory: Path
) -> None:
    (directory / "names").mkdir()
    os.mkfifo(directory / "names" / "analysis.json")
    with pytest.raises(EncampError) as raised:
        pull(images, Repository.open(str(directory)), "analysis", Silent())
    assert raised.value.code is Code.INPUT_MISSING


def test_an_index_that_lies_about_recipes_leads_to_no_wrong_image(
    tmp_path: Path, directory: Path
) -> None:
    here = store_in(tmp_path / "here")
    image = make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent())
    recipe = Recipe(name="tool")
    index = (directory / "index.json").read_text().replace(image.recipe, recipe.digest())
    (directory / "index.json").write_text(index)
    there = store_in(tmp_path / "there", repositories=(str(directory),))
    assert fetch_made_by(there, recipe, Silent()) is None
    assert there.resolve("tool") is None


def test_a_disk_that_names_files_of_the_host_is_refused(tmp_path: Path, directory: Path) -> None:
    """Neither pulled nor, from a directory that is used in place, booted."""
    base, disk = tmp_path / "secret", tmp_path / Image.DISK
    base.write_bytes(bytes(1 << 20))
    options = ("-f", "qcow2", "-b", str(base), "-F", "raw")
    programs.run(["qemu-img", "create", "-q", *options, disk], purpose="making a disk")
    described = describe(disk)
    made = record(files=(described,), kernel_release="")
    write(directory, made)
    shutil.copy(disk, directory / "images" / made.digest)
    repository = Repository.open(str(directory))
    for name, in_place in (("copying", False), ("in-place", True)):
        images = store_in(tmp_path / name, repositories=(str(directory),), in_place=in_place)
        with pytest.raises(EncampError) as raised:
            pull(images, repository, made.digest, Silent())
        assert raised.value.code is Code.CORRUPT
        assert "another file" in raised.value.sentence
        assert images.ls() == []


def test_what_an_image_brings_along_cannot_be_changed_under_its_digest(
    tmp_path: Path, directory: Path
) -> None:
    here = store_in(tmp_path / "here")
    image = make_image(here, "analysis", defaults=Defaults(workdir="/data"))
    other = make_image(here, "analysis", defaults=Defaults(workdir="/elsewhere"))
    assert image.digest != other.digest
    push(here, Repository.open(str(directory)), image.digest, Silent(), tags=["analysis"])
    path = directory / "images" / image.digest / "image.json"
    doctored = msgspec.json.decode(path.read_bytes())
    for changes in ({"defaults": {"command": ["evil"]}}, {"kernel_release": "5.0"}):
        path.write_bytes(msgspec.json.encode({**doctored, **changes}))
        with pytest.raises(EncampError) as raised:
            pull(
                store_in(tmp_path / "there"), Repository.open(str(directory)), "analysis", Silent()
            )
        assert raised.value.code is Code.CORRUPT
        # Neither is it used where it lies.
        host = store_in(tmp_path / "in-place", repositories=(str(directory),), in_place=True)
        with pytest.raises(EncampError) as raised:
            host.check(host.get(image.digest))
        assert raised.value.code is Code.CORRUPT


def test_a_name_says_nothing_else_and_no_impossible_time() -> None:
    good = Link(DIGEST, DIGEST, name="analysis", pushed=1.0)
    parse_link(msgspec.json.encode(good), "analysis", "/repository")
    impossible: tuple[dict[str, object], ...] = (
        {"pushed": 1e300},
        {"pushed": -1},
        {"files": []},
        {"\x1b[31m": 1},
    )
    for wrong in impossible:
        data = msgspec.json.encode({**msgspec.to_builtins(good), **wrong})
        with pytest.raises(EncampError) as raised:
            parse_link(data, "analysis", "/repository")
        assert raised.value.sentence.isprintable()


@pytest.mark.parametrize("planted", [".lock", "images", "names"])
def test_links_that_somebody_planted_are_not_followed(
    tmp_path: Path, directory: Path, images: ImageStore, planted: str
) -> None:
    """Root pushes into a directory of somebody else's."""
    elsewhere = tmp_path / "elsewhere"
    if planted != ".lock":
        elsewhere.mkdir()
    (directory / planted).symlink_to(elsewhere)
    make_image(images, "analysis")
    with pytest.raises(EncampError) as raised:
        push(images, Repository.open(str(directory)), "analysis", Silent())
    assert raised.value.code is Code.NOT_PERMITTED
    assert str(directory / planted) in raised.value.sentence
    assert not elsewhere.exists() or not list(elsewhere.iterdir())
