"""Sharing images: a directory and a web server, pushed to and pulled from in the same way."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from encamp.images import pulling, transfer
from encamp.images.building import build_once
from encamp.images.placing import check_version
from encamp.images.pulling import pull
from encamp.images.pushing import push
from encamp.images.recognising import found_again
from encamp.images.records import read_origin
from encamp.images.repository import Repository
from encamp.images.repository_http import HttpMedium
from encamp.images.repository_removing import remove
from encamp.images.store import ImageStore
from encamp.images.verifying import verify_repository
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import AddedFile, Kind, Recipe
from encamp.progress import Progress, Silent
from tests.builds import Told
from tests.images.conftest import left_over
from tests.images.servers import Nginx, nginx
from tests.images.stock import KIB, make_image, store_in

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        yield server


@pytest.fixture(params=["directory", "web"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty repository, of either kind."""
    if request.param == "directory":
        (tmp_path / "repository").mkdir()
        return str(tmp_path / "repository")
    server: Nginx = request.getfixturevalue("web")
    return f"{server.url}/{tmp_path.name}"


def root_of(where: str, web: Nginx) -> Path:
    """Where a repository's files are, to look at them and to damage them."""
    return web.root / where.rsplit("/", 1)[1] if where.startswith("http") else Path(where)


@pytest.fixture
def here(tmp_path: Path) -> ImageStore:
    return store_in(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path, where: str) -> ImageStore:
    """Another host, where the repository is configured."""
    return store_in(tmp_path / "there", repositories=(where,))


def test_what_was_pushed_is_pulled_as_it_was(
    where: str, here: ImageStore, there: ImageStore, told: Told
) -> None:
    image = make_image(here, "analysis", version="1.0")
    pushed = push(here, Repository.open(where), "analysis", told)
    assert (pushed.digest, pushed.names) == (image.digest, ("analysis", "analysis:1.0"))
    assert pushed.sent == image.size
    found = there.fetch("analysis", told)
    there.check(found)
    assert (found.digest, found.files, found.recipe) == (image.digest, image.files, image.recipe)
    assert found.directory.parent == there.home.images
    origin = read_origin(found.directory)
    assert origin is not None
    assert origin.repository == where
    assert [image.name for image in there.ls()] == ["analysis", "analysis:1.0"]
    assert left_over(there.home) == []
    assert told.fractions[-1] == 1.0
    assert any(f"pulling 'analysis' from {where}" in what for what in told.what)


def test_every_kind_of_reference_is_pulled(where: str, here: ImageStore, tmp_path: Path) -> None:
    image = make_image(here, "analysis", version="1.0")
    push(here, Repository.open(where), image.digest, Silent())
    for number, reference in enumerate(
        ("analysis", "analysis:1.0", image.digest, image.digest[:6], image.digest[:40])
    ):
        other = store_in(tmp_path / f"host{number}", repositories=(where,))
        assert other.fetch(reference).digest == image.digest
        assert other.resolve(reference) is not None


def test_first_version_that_is_pulled_serves_those_who_ask_for_the_name(
    where: str, here: ImageStore, there: ImageStore
) -> None:
    repository = Repository.open(where)
    recipe = Recipe(name="analysis", kind=Kind.MINI)
    first = make_image(here, "analysis", version="1", recipe=recipe.digest())
    push(here, repository, "analysis:1", Silent())
    second = make_image(here, "analysis", version="2")
    push(here, repository, "analysis:2", Silent())
    pull(there, repository, "analysis:1", Silent())
    made = there.made_by(recipe)
    assert made is not None
    assert made.digest == first.digest
    pull(there, repository, "analysis:2", Silent())
    named = there.resolve("analysis")
    assert named is not None
    assert named.digest == first.digest != second.digest


def test_a_version_asked_for_does_not_move_the_name(
    where: str, here: ImageStore, there: ImageStore
) -> None:
    repository = Repository.open(where)
    old = make_image(here, "analysis", version="1")
    push(here, repository, "analysis:1", Silent())
    new = make_image(here, "analysis", version="2")
    push(here, repository, "analysis:2", Silent())
    assert there.fetch("analysis").digest == new.digest
    assert there.fetch("analysis:1").digest == old.digest
    assert there.get("analysis").digest == new.digest
    assert there.get("analysis:2").digest == new.digest


def test_only_missing_layers_are_transferred(
    where: str, web: Nginx, here: ImageStore, there: ImageStore
) -> None:
    repository = Repository.open(where)
    base = make_image(here, "base", size=300 * KIB)
    assert push(here, repository, "base", Silent()).sent == base.size
    top = make_image(here, "top", over=base)
    assert push(here, repository, "top", Silent()).sent == top.size
    assert push(here, repository, "top", Silent()).sent == 0
    there.fetch("base")
    directory = root_of(where, web) / "images" / base.digest
    shutil.rmtree(directory)  # it must not be needed any more
    found = there.fetch("top")
    assert [image.digest for image in found.lineage] == [top.digest, base.digest]
    there.check(found)


def test_a_layer_brings_what_it_lies_over(where: str, here: ImageStore, there: ImageStore) -> None:
    image = make_image(here, "base")
    for number in range(3):
        image = make_image(here, f"layer{number}", over=image)
    push(here, Repository.open(where), "layer2", Silent())
    found = there.fetch("layer2")
    assert len(found.lineage) == 4
    there.check(found)
    names = [image.name for image in there.ls()]
    assert sorted(names) == ["", "", "", "layer2"]


def test_a_version_stays_what_it_is(where: str, here: ImageStore) -> None:
    repository = Repository.open(where)
    make_image(here, "analysis", version="1")
    push(here, repository, "analysis", Silent())
    other = make_image(here, "analysis", version="1", seed=1)
    with pytest.raises(EncampError) as raised:
        push(here, repository, "analysis", Silent())
    assert raised.value.code is Code.WRONG_STATE
    assert "--force" in raised.value.hint
    push(here, repository, "analysis", Silent(), force=True)
    located = repository.locate("analysis:1")
    assert located is not None
    assert located[0] == other.digest


def test_an_image_gets_other_names_in_the_repository(
    where: str, here: ImageStore, there: ImageStore
) -> None:
    image = make_image(here, "mine")
    push(here, Repository.open(where), "mine", Silent(), tags=["theirs", "theirs:7"])
    assert there.fetch("theirs:7").digest == image.digest
    with pytest.raises(EncampError) as raised:
        there.fetch("mine")
    assert raised.value.code is Code.INPUT_MISSING


def test_what_is_not_there_is_said_with_the_nearest_name(
    where: str, here: ImageStore, there: ImageStore
) -> None:
    make_image(here, "analysis")
    repository = Repository.open(where)
    push(here, repository, "analysis", Silent())
    with pytest.raises(EncampError) as raised:
        pull(there, repository, "analisys", Silent())
    assert raised.value.code is Code.INPUT_MISSING
    assert "'analysis'" in raised.value.hint
    with pytest.raises(EncampError) as raised:
        here.get("analisys")
    assert "'analysis'" in raised.value.hint


def test_the_index_keeps_what_others_pushed(where: str, here: ImageStore, tmp_path: Path) -> None:
    repository = Repository.open(where)
    for number in range(4):
        other = store_in(tmp_path / f"pusher{number}")
        make_image(other, f"image{number}")
        push(other, repository, f"image{number}", Silent())
    index = repository.index()
    assert sorted(index.names) == [f"image{number}" for number in range(4)]
    assert len(index.images) == 4


def push_one(directory: Path, where: str, name: str) -> None:
    images = store_in(directory)
    make_image(images, name)
    push(images, Repository.open(where), name, Silent())


def test_a_lock_that_was_let_go_when_it_was_looked_for_is_waited_for(
    web: Nginx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it is not there says nothing: it may be another's again."""
    order = []
    first, second = (HttpMedium(f"{web.url}/{tmp_path.name}") for _ in range(2))
    first.write("there", b"")
    monkeypatch.setattr(second, "_exists", lambda path: False)

    def change() -> None:
        with second.changing(Silent()):
            order.append("second")

    waiting = threading.Thread(target=change)
    with first.changing(Silent()):
        waiting.start()
        waiting.join(1.0)
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]
    assert [path.name for path in (web.root / tmp_path.name).iterdir()] == ["there"]


def test_pushers_at_the_same_time_do_not_lose_each_other(where: str, tmp_path: Path) -> None:
    names = [f"image{number}" for number in range(6)]
    processes = [
        multiprocessing.get_context("fork").Process(
            target=push_one, args=(tmp_path / f"pusher-{name}", where, name)
        )
        for name in names
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(names)
    assert sorted(Repository.open(where).index().names) == names


def test_an_image_is_taken_out_of_a_repository(
    where: str, web: Nginx, here: ImageStore, there: ImageStore
) -> None:
    repository = Repository.open(where)
    base = make_image(here, "base")
    top = make_image(here, "top", version="1", over=base)
    push(here, repository, "base", Silent())
    push(here, repository, "top", Silent())
    with pytest.raises(EncampError) as raised:
        remove(repository, "base", Silent())
    assert "top" in raised.value.sentence
    assert remove(repository, "top:1", Silent()) == (top.digest, ["top", "top:1"])
    assert remove(repository, base.digest[:8], Silent()) == (base.digest, ["base"])
    assert repository.index().images == {}
    left = [path for path in root_of(where, web).rglob("*") if path.is_file()]
    assert {path.name for path in left} <= {"index.json", ".lock"}
    with pytest.raises(EncampError):
        there.fetch("top")


def test_damage_in_a_repository_is_found_and_nothing_of_it_is_used(
    where: str, web: Nginx, here: ImageStore, there: ImageStore, told: Told
) -> None:
    image = make_image(here, "analysis")
    repository = Repository.open(where)
    push(here, repository, "analysis", Silent())
    verify_repository(here, repository, image.digest, told)
    path = root_of(where, web) / "images" / image.digest / Image.ROOT
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    for verify in (
        lambda: verify_repository(here, repository, image.digest, told),
        lambda: there.fetch("analysis"),
    ):
        with pytest.raises(EncampError) as raised:
            verify()
        assert raised.value.code is Code.CORRUPT
        assert image.files[1].sha256 in str(raised.value)
    assert there.ls() == []
    push(here, repository, "analysis", Silent(), force=True)
    there.check(there.fetch("analysis"))


@pytest.mark.parametrize("change", [b"more", b""])
def test_a_file_of_another_length_is_not_used(
    where: str, web: Nginx, here: ImageStore, there: ImageStore, change: bytes
) -> None:
    image = make_image(here, "analysis")
    push(here, Repository.open(where), "analysis", Silent())
    path = root_of(where, web) / "images" / image.digest / Image.ROOT
    data = path.read_bytes()
    path.write_bytes(data + change if change else data[:-1])
    with pytest.raises(EncampError) as raised:
        there.fetch("analysis")
    assert raised.value.code is Code.CORRUPT
    assert "bytes" in raised.value.sentence
    assert there.ls() == []


def test_a_pull_goes_on_where_it_stopped(
    where: str, web: Nginx, here: ImageStore, there: ImageStore
) -> None:
    image = make_image(here, "analysis", size=500 * KIB)
    push(here, Repository.open(where), "analysis", Silent())
    root = next(file for file in image.files if file.name == Image.ROOT)
    partial = transfer.partial(there.home, image.digest, root)
    partial.write_bytes(image.root.read_bytes()[: 300 * KIB])
    there.check(there.fetch("analysis"))
    if where.startswith("http"):
        ranges = [line.split(" ", 3)[3] for line in web.requests() if image.digest in line]
        assert f"bytes={300 * KIB}-" in ranges


def test_a_start_that_belongs_to_something_else_is_thrown_away(
    where: str, here: ImageStore, there: ImageStore
) -> None:
    image = make_image(here, "analysis", size=500 * KIB)
    push(here, Repository.open(where), "analysis", Silent())
    root = next(file for file in image.files if file.name == Image.ROOT)
    for start in (bytes(300 * KIB), bytes(500 * KIB), bytes(900 * KIB)):
        transfer.partial(there.home, image.digest, root).write_bytes(start)
        there.check(there.fetch("analysis"))
        there.rm("analysis")


class Crowd:
    """Lets the one that pulls go on only when all the others wait for it, and again only when all
    of them have seen that it went on."""

    def __init__(self, others: int) -> None:
        self._others = others
        self._seen = [multiprocessing.Semaphore(0), multiprocessing.Semaphore(0)]

    def waits(self, different: int) -> None:
        """One of the others has said so many different things while it waited."""
        if different <= len(self._seen):
            self._seen[different - 1].release()

    def pulls(self, time: int) -> None:
        if time <= len(self._seen):
            for _ in range(self._others):
                assert self._seen[time - 1].acquire(timeout=60), "not all of them wait"


class OneOfMany(Told):
    def __init__(self, crowd: Crowd) -> None:
        super().__init__()
        self._crowd = crowd

    def update(self, what: str, fraction: float | None = None) -> None:
        new = what not in self.what
        super().update(what, fraction)
        for word, met in (("waiting", self._crowd.waits), ("pulling", self._crowd.pulls)):
            if new and what.startswith(word):
                met(len({said for said in self.what if said.startswith(word)}))


def fetch_one(
    directory: Path, where: str, crowd: Crowd, results: multiprocessing.queues.Queue[object]
) -> None:
    told = OneOfMany(crowd)
    images = store_in(directory, repositories=(where,))
    image = images.fetch("analysis", told)
    images.check(image)
    results.put((image.digest, told.what))


def test_a_storm_of_pulls_fetches_each_file_once(
    tmp_path: Path, here: ImageStore, web: Nginx
) -> None:
    image = make_image(here, "analysis", size=3000 * KIB)
    where = f"{web.url}/{tmp_path.name}"
    push(here, Repository.open(where), "analysis", Silent())
    before = len(web.requests())
    context = multiprocessing.get_context("fork")
    results: multiprocessing.queues.Queue[tuple[str, list[str]]] = context.Queue()
    crowd = Crowd(others=7)
    processes = [
        context.Process(target=fetch_one, args=(tmp_path / "node", where, crowd, results))
        for _ in range(8)
    ]
    for process in processes:
        process.start()
    answers = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    gets = [line.split()[1] for line in web.requests()[before:] if line.startswith("GET")]
    assert {digest for digest, _ in answers} == {image.digest}
    for file in image.files:
        assert gets.count(f"/{tmp_path.name}/images/{image.digest}/{file.name}") == 1
    # Seven waited, and each of them saw the other one's progress.
    waited = [{said for said in what if said.startswith("waiting")} for _, what in answers]
    assert sorted(len(said) > 1 for said in waited) == [False, *[True] * 7]


def test_a_recipe_that_somebody_has_built_is_pulled_and_not_built(
    where: str, here: ImageStore, there: ImageStore, told: Told
) -> None:
    recipe = Recipe(name="tool", kind=Kind.MINI, version="3")
    image = make_image(here, "whatever", recipe=recipe.digest())
    push(here, Repository.open(where), "whatever", Silent())
    found = there.ensure(recipe, told)
    assert found.digest == image.digest
    assert there.made_by(recipe) is not None
    assert there.get("tool:3").digest == image.digest


def test_without_its_repository_a_recipe_is_built_and_that_is_said(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = store_in(tmp_path / "host", repositories=(str(tmp_path / "not-mounted"),))
    monkeypatch.setattr(
        "encamp.images.building.build_once",
        lambda images, recipe, progress: make_image(images, recipe.name),
    )
    assert images.ensure(Recipe(name="tool", kind=Kind.MINI), told).name == "tool"
    assert any("building it here" in what and "not there" in what for what in told.what)


def test_a_repository_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    images = store_in(tmp_path / "host", repositories=(str(tmp_path / "not-mounted"),))
    with pytest.raises(EncampError) as raised:
        images.fetch("analysis")
    assert (raised.value.code, raised.value.transient) == (Code.UNREACHABLE, True)
    assert "not-mounted" in raised.value.sentence


def test_the_second_repository_is_asked_when_the_first_cannot_be(
    tmp_path: Path, where: str, here: ImageStore, told: Told
) -> None:
    make_image(here, "analysis")
    push(here, Repository.open(where), "analysis", Silent())
    gone = str(tmp_path / "not-mounted")
    images = store_in(tmp_path / "host", repositories=(gone, where))
    assert images.fetch("analysis", told).name == "analysis"
    assert any(gone in what for what in told.what)


class TestInPlace:
    """A directory that all hosts see, whose images are used without a copy."""

    @pytest.fixture
    def directory(self, tmp_path: Path, here: ImageStore) -> Path:
        directory = tmp_path / "shared"
        directory.mkdir()
        base = make_image(here, "base")
        make_image(here, "analysis", over=base)
        push(here, Repository.open(str(directory)), "analysis", Silent())
        return directory

    def host(self, tmp_path: Path, directory: Path) -> ImageStore:
        return store_in(tmp_path / "host", repositories=(str(directory),), in_place=True)

    def test_images_are_read_where_they_are(self, tmp_path: Path, directory: Path) -> None:
        images = self.host(tmp_path, directory)
        found = images.fetch("analysis")
        assert found.directory.is_relative_to(directory)
        assert all(part.directory.is_relative_to(directory) for part in found.lineage)
        images.check(found)
        assert images.resolve("analysis") == found
        assert not [path for path in images.home.images.iterdir() if len(path.name) == 64]

    def test_what_was_read_once_is_known_on_that_host_only(
        self, tmp_path: Path, directory: Path
    ) -> None:
        images = self.host(tmp_path, directory)
        images.check(images.fetch("analysis"))
        stamps = [path.name for path in (images.home.images / "stamps").iterdir()]
        assert len(stamps) == 2
        assert all(name.endswith(f"@{os.uname().nodename}.json") for name in stamps)

    def test_a_swapped_image_is_not_used(self, tmp_path: Path, directory: Path) -> None:
        images = self.host(tmp_path, directory)
        found = images.fetch("analysis")
        images.check(found)
        data = bytearray(found.root.read_bytes())
        data[0] ^= 1
        found.root.write_bytes(data)
        with pytest.raises(EncampError) as raised:
            images.check(found)
        assert raised.value.code is Code.CORRUPT

    @pytest.mark.parametrize("part", ["", "images", "images/*", "images/*/root.squashfs"])
    def test_what_others_can_write_to_is_copied(
        self, tmp_path: Path, directory: Path, part: str
    ) -> None:
        for path in directory.parent.glob(f"{directory.name}/{part}"):
            path.chmod(path.stat().st_mode | 0o022)
        images = self.host(tmp_path, directory)
        found = images.fetch("analysis")
        assert found.directory.parent == images.home.images
        images.check(found)


def test_pulling_survives_a_parent_that_is_damaged_here(
    where: str, here: ImageStore, there: ImageStore
) -> None:
    base = make_image(here, "base")
    make_image(here, "top", over=base)
    push(here, Repository.open(where), "top", Silent())
    damaged = there.fetch("top").lineage[1].root
    damaged.chmod(0o644)
    damaged.write_bytes(b"damaged")
    with pytest.raises(EncampError):
        there.check(there.get("top"))
    there.check(pulling.pull(there, Repository.open(where), "top", Silent()))


def test_builds_rely_on_images_of_configured_repositories_only(
    where: str, here: ImageStore, there: ImageStore, tmp_path: Path
) -> None:
    """What an image says it was made by is its maker's word."""
    make_image(here, "analysis")
    repository = Repository.open(where)
    push(here, repository, "analysis", Silent())
    assert there.relies_on(there.fetch("analysis").directory)
    stranger = store_in(tmp_path / "stranger")
    assert not stranger.relies_on(pull(stranger, repository, "analysis", Silent()).directory)
    assert here.relies_on(here.get("analysis").directory)


def local(path: Path) -> list[Recipe]:
    """Recipes that take what lies on the host."""
    source = str(path)
    with_file = Recipe(name="tool", kind=Kind.MINI, files=(AddedFile(path="/x", source=source),))
    kinds = (Kind.ROOTFS, Kind.OCI, Kind.DISK)
    return [
        with_file,
        *(Recipe(name="tool", kind=kind, source=source) for kind in kinds),
        Recipe(name="tool", kind=Kind.LAYER, parent=with_file, packages=("hello",)),
    ]


def test_what_is_made_of_a_hosts_own_files_is_not_pulled_by_its_recipe(
    tmp_path: Path, here: ImageStore, told: Told
) -> None:
    (tmp_path / "repository").mkdir()
    where = str(tmp_path / "repository")
    there = store_in(tmp_path / "there", repositories=(where,))
    for seed, recipe in enumerate(local(tmp_path / "file"), 1):
        image = make_image(here, "tool", recipe=recipe.digest(), seed=seed)
        push(here, Repository.open(where), "tool", Silent(), force=True)
        assert pulling.fetch_made_by(there, recipe, told) is None
        # Nor is one taken that somebody has pulled for another purpose.
        pull(there, Repository.open(where), image.digest, told)
        assert found_again(there, recipe) is None
    registry = Recipe(name="tool", kind=Kind.OCI, source="docker://registry.example/tool:1")
    image = make_image(here, "tool", recipe=registry.digest())
    push(here, Repository.open(where), "tool", Silent(), force=True)
    found = pulling.fetch_made_by(there, registry, told)
    assert found is not None
    assert found.digest == image.digest


def test_a_version_on_this_host_stays_what_it_is(tmp_path: Path, here: ImageStore) -> None:
    (tmp_path / "repository").mkdir()
    repository = Repository.open(str(tmp_path / "repository"))
    there = store_in(tmp_path / "there", repositories=(repository.where,))
    own = make_image(there, "analysis", version="1", seed=1)
    other = make_image(here, "analysis", version="1", seed=2)
    push(here, repository, "analysis:1", Silent())
    for reference in ("analysis:1", "analysis"):
        with pytest.raises(EncampError) as raised:
            pull(there, repository, reference, Silent())
        assert raised.value.code is Code.WRONG_STATE
        assert "analysis:1" in raised.value.sentence
        assert "--force" in raised.value.hint
        assert there.by_digest(other.digest) is None
    assert there.get("analysis:1").digest == own.digest
    pull(there, repository, "analysis:1", Silent(), force=True)
    assert there.get("analysis:1").digest == other.digest
    # A name without a version moves on.
    newer = make_image(here, "analysis", version="2", seed=3)
    push(here, repository, "analysis:2", Silent())
    assert pull(there, repository, "analysis", Silent()).digest == newer.digest


def test_a_build_does_not_take_a_version_from_another_recipes_image(images: ImageStore) -> None:
    recipe = Recipe(name="tool", kind=Kind.MINI, version="3")
    make_image(images, "tool", version="3", recipe="1" * 64)
    with pytest.raises(EncampError) as raised:
        build_once(images, recipe, Silent())
    assert raised.value.code is Code.WRONG_STATE
    assert "tool:3" in raised.value.sentence
    with pytest.raises(EncampError):
        images.ensure(recipe)
    # The same recipe by an older Encamp, or an image that is gone, hold nobody up.
    older = msgspec.structs.replace(recipe, builder=recipe.builder - 1)
    make_image(images, "tool", version="3", recipe=older.digest())
    check_version(images.home, recipe)
    make_image(images, "tool", version="3", recipe="1" * 64)
    shutil.rmtree(images.get("tool:3").directory)
    check_version(images.home, recipe)


@pytest.fixture
def images(tmp_path: Path) -> ImageStore:
    return store_in(tmp_path / "images")


class Meanwhile:
    """Lets somebody else do something just before the lists of a repository are changed."""

    def __init__(self, repository: Repository, turn: int, act: Callable[[], object]) -> None:
        self.changing, self.turns, self.act = repository.medium.changing, turn, act
        repository.medium.changing = self  # type: ignore[method-assign]

    def __call__(self, progress: Progress) -> AbstractContextManager[None]:
        self.turns -= 1
        if self.turns == 0:
            self.act()
        return self.changing(progress)


def test_what_others_do_during_a_push_is_noticed(tmp_path: Path, here: ImageStore) -> None:
    (tmp_path / "repository").mkdir()
    where = str(tmp_path / "repository")
    other = store_in(tmp_path / "other")
    make_image(other, "analysis", version="1", seed=1)
    image = make_image(here, "analysis", version="1", seed=2)
    repository = Repository.open(where)
    # The first time it is for sending files.
    Meanwhile(repository, 2, lambda: push(other, Repository.open(where), "analysis", Silent()))
    with pytest.raises(EncampError) as raised:
        push(here, repository, "analysis", Silent())
    assert "has another image as 'analysis:1'" in raised.value.sentence
    repository = Repository.open(where)
    Meanwhile(repository, 2, lambda: remove(Repository.open(where), image.digest, Silent()))
    with pytest.raises(EncampError) as raised:
        push(here, repository, "analysis", Silent(), tags=["mine"])
    assert raised.value.transient
    assert Repository.open(where).locate("mine") is None
    assert push(here, Repository.open(where), "analysis", Silent(), tags=["mine"]).sent


def test_an_image_is_removed_while_nobody_can_push_it(tmp_path: Path, here: ImageStore) -> None:
    (tmp_path / "repository").mkdir()
    repository = Repository.open(str(tmp_path / "repository"))
    image = make_image(here, "analysis")
    push(here, repository, "analysis", Silent())
    held: list[bool] = []
    removing = repository.medium.remove

    def observed(path: str) -> None:
        handle = os.open(tmp_path / "repository" / ".lock", os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(True)
        else:
            held.append(False)
        finally:
            os.close(handle)
        removing(path)

    repository.medium.remove = observed  # type: ignore[method-assign]
    assert remove(repository, "analysis", Silent())[0] == image.digest
    assert held
    assert all(held)
