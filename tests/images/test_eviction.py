"""Keeping images within a limit: what goes, what stays, and in which order."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from encamp.home import Home
from encamp.images import needs, placing
from encamp.images.clearing import DAY, clear
from encamp.images.eviction import evict, make_room, taken
from encamp.images.foreign_home import Foreign
from encamp.images.needs import users
from encamp.images.pulling import pull
from encamp.images.pushing import push
from encamp.images.records import RECORD, directories, link_path, stamp_path
from encamp.images.repository import Repository
from encamp.images.store import ImageStore
from encamp.images.transfer import PARTIAL
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.machine import Machine, State
from encamp.model.settings import Settings
from encamp.model.size import Size
from encamp.progress import Silent
from encamp.workplace import clear_cache
from tests.builds import Told
from tests.images.conftest import left_over
from tests.images.stock import KIB, make_image, store_in

SIZE = 400 * KIB


@pytest.fixture
def images(tmp_path: Path) -> ImageStore:
    return store_in(tmp_path / "home")


def limited(images: ImageStore, limit: int) -> ImageStore:
    return ImageStore(images.home, shared=None, settings=Settings(image_limit=limit))


def aged(images: ImageStore, image: Image, days: float) -> Image:
    """As if it had been used that long ago for the last time."""
    then = time.time() - days * DAY
    os.utime(stamp_path(images.home, image.digest), (then, then))
    return image


def names(images: ImageStore) -> list[str]:
    return sorted(image.name for image in images.ls())


def run_machine(home: Home, image: Image, state: State = State.RUNNING) -> Path:
    """A machine's record, as the agent writes it."""
    machine = Machine(
        id="1" * 32,
        name="work",
        owner=0,
        host="here",
        environment="analysis",
        image=image.digest,
        size=Size(1, 1),
        state=state,
        reason="",
        created=0,
        changed=0,
        tied=False,
    )
    directory = home.machines / machine.id
    directory.mkdir(exist_ok=True)
    (directory / "machine.json").write_bytes(msgspec.json.encode(machine))
    return directory


def test_the_one_unused_for_longest_goes_first(images: ImageStore, told: Told) -> None:
    for days, name in ((3, "third"), (1, "first"), (2, "second")):
        aged(images, make_image(images, name, size=SIZE), days)
    few = limited(images, taken(images.home))
    make_room(few, SIZE, "pull another", (), told)
    assert names(images) == ["first", "second"]
    make_room(few, 2 * SIZE, "pull another", (), told)
    assert names(images) == ["first"]
    assert any("making room" in what for what in told.what)
    assert left_over(images.home) == []


def test_nothing_goes_while_there_is_room(images: ImageStore) -> None:
    aged(images, make_image(images, "old"), 1000)
    make_room(limited(images, 100 * SIZE), SIZE, "pull another", (), Silent())
    assert names(images) == ["old"]


def test_use_is_noted_when_a_machine_is_made(images: ImageStore) -> None:
    old = aged(images, make_image(images, "often", size=SIZE), 9)
    aged(images, make_image(images, "seldom", size=SIZE), 5)
    images.check(old)
    make_room(limited(images, taken(images.home)), SIZE, "pull another", (), Silent())
    assert names(images) == ["often"]


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING, State.PAUSED, State.SUSPENDED])
def test_an_image_that_a_machine_needs_stays(images: ImageStore, state: State) -> None:
    base = aged(images, make_image(images, "base", size=SIZE), 9)
    needed = aged(images, make_image(images, "needed", size=SIZE, over=base), 9)
    aged(images, make_image(images, "free", size=SIZE), 1)
    run_machine(images.home, needed, state)
    few = limited(images, taken(images.home))
    make_room(few, SIZE, "pull another", (), Silent())
    assert names(images) == ["base", "needed"]
    with pytest.raises(EncampError) as raised:
        make_room(few, 3 * SIZE, "pull another", (), Silent())
    assert raised.value.code is Code.NO_ROOM
    assert raised.value.transient
    assert "pull another" in raised.value.sentence
    assert "KiB" in raised.value.sentence or "MiB" in raised.value.sentence
    assert names(images) == ["base", "needed"]
    with pytest.raises(EncampError) as raised:
        images.rm("needed")
    assert "in use by work" in raised.value.sentence


def test_the_image_of_a_machine_that_has_ended_may_go(images: ImageStore) -> None:
    run_machine(images.home, make_image(images, "done", size=SIZE), State.STOPPED)
    make_room(limited(images, taken(images.home)), SIZE, "pull another", (), Silent())
    assert names(images) == []


def test_what_another_is_a_layer_over_goes_after_it(images: ImageStore) -> None:
    base = aged(images, make_image(images, "base", size=SIZE), 9)
    aged(images, make_image(images, "top", size=SIZE, over=base), 1)
    other = aged(images, make_image(images, "other", size=SIZE), 5)
    few = limited(images, taken(images.home))
    with pytest.raises(EncampError) as raised:
        images.rm("base")
    assert "top is a layer over" in raised.value.sentence
    make_room(few, SIZE, "pull another", (), Silent())
    assert names(images) == ["base", "top"]
    make_room(few, 2 * SIZE, "pull another", (), Silent())
    assert names(images) == ["base"]
    make_room(few, 3 * SIZE, "pull another", (), Silent())
    assert names(images) == []
    assert other.digest not in {path.name for path in directories(images.home)}


def test_an_image_whose_files_are_open_stays(images: ImageStore) -> None:
    """Root's images serve the machines of all accounts, whose records root does not read."""
    image = make_image(images, "read", size=SIZE)
    with image.root.open("rb"), pytest.raises(EncampError):
        make_room(limited(images, 1), SIZE, "pull another", (), Silent())
    assert names(images) == ["read"]


def test_a_process_that_ends_while_it_is_looked_at_is_in_nobodys_way(
    images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_image(images, "a")
    listed = os.listdir

    def end_meanwhile(directory: str) -> list[str]:
        found = listed(directory)
        if directory == "/proc":
            with subprocess.Popen(["true"]) as ended:
                found.insert(0, str(ended.pid))
        return found

    monkeypatch.setattr(os, "listdir", end_meanwhile)
    with image.root.open("rb"):
        assert needs.opened(images.home) == {image.digest}


def test_whoever_may_only_read_an_image_holds_nobody_up(images: ImageStore) -> None:
    image = make_image(images, "a")
    with (image.directory / RECORD).open("rb") as others:
        fcntl.flock(others, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="Bad file descriptor"):
            fcntl.lockf(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with images.using(image):
            assert not evict(images.home, image.digest)
        assert evict(images.home, image.digest)


def test_an_image_of_which_a_machine_is_just_being_made_stays(images: ImageStore) -> None:
    image = make_image(images, "chosen")
    with images.using(image):
        assert not evict(images.home, image.digest)
        with pytest.raises(EncampError) as refused:
            images.rm("chosen")
        assert refused.value.transient
    assert evict(images.home, image.digest)
    with pytest.raises(EncampError) as raised, images.using(image):
        pass
    assert raised.value.transient


def use_and_evict(home: Home, image: Image, seconds: float) -> None:
    """A maker of machines that would notice if its image went under its hands."""
    images = ImageStore(home, shared=None, settings=Settings())
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with images.using(image):
                assert image.root.exists()
                time.sleep(0.0005)
                assert image.root.exists()
                assert image.root.stat().st_size
            time.sleep(random.uniform(0, 0.004))
        except EncampError as error:
            assert error.transient  # noqa: PT017 - it is one of two good outcomes
            return
    raise AssertionError("it was never removed")


def test_eviction_and_use_do_not_cross(images: ImageStore) -> None:
    image = make_image(images, "chosen")
    context = multiprocessing.get_context("fork")
    users = [context.Process(target=use_and_evict, args=(images.home, image, 60)) for _ in range(3)]
    for user in users:
        user.start()
    deadline = time.monotonic() + 50
    while not evict(images.home, image.digest) and time.monotonic() < deadline:
        pass
    for user in users:
        user.join()
    assert [user.exitcode for user in users] == [0, 0, 0]


def test_a_pull_makes_room_for_itself_and_not_of_itself(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    repository = Repository.open(str(tmp_path / "repository"))
    here = store_in(tmp_path / "here")
    base = make_image(here, "base", size=SIZE)
    make_image(here, "top", size=SIZE, over=base)
    push(here, repository, "top", Silent())
    there = store_in(tmp_path / "there", image_limit=int(2.2 * SIZE))
    make_image(there, "old", size=SIZE)
    there.check(pull(there, repository, "top", Silent()))
    assert names(there) == ["", "top"]
    small = store_in(tmp_path / "small", image_limit=int(1.5 * SIZE))
    with pytest.raises(EncampError) as raised:
        pull(small, repository, "top", Silent())
    assert raised.value.code is Code.NO_ROOM
    assert left_over(small.home) == []


def test_building_makes_room_as_well(images: ImageStore) -> None:
    aged(images, make_image(images, "old", size=SIZE), 1)
    few = limited(images, int(1.5 * SIZE))
    make_image(few, "new", size=SIZE)
    assert names(images) == ["new"]


def test_a_removal_that_was_killed_is_finished_by_the_next_command(images: ImageStore) -> None:
    image = make_image(images, "old", size=SIZE)
    script = """
import os, signal, sys
from pathlib import Path
from encamp.home import Home
from encamp.images import removing
import encamp.workplace
encamp.workplace.remove_work = lambda directory: os.kill(os.getpid(), signal.SIGKILL)
removing.take_away(Home(Path(sys.argv[1])), ["old"], [sys.argv[2]])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, images.home.root, image.digest], check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert images.ls() == []
    assert left_over(images.home) != []
    clear_cache(images.home)
    assert left_over(images.home) == []


def rush(home: Path, where: str, seed: int) -> None:
    """Pulls, uses, removes and clears, in any order, as several users of a host would."""
    images = store_in(home, repositories=(where,), image_limit=2 * SIZE)
    repository, chance = Repository.open(where), random.Random(seed)
    moves = (
        lambda name: pull(images, repository, name, Silent()),
        lambda name: pull(images, repository, name, Silent()),
        lambda name: images.check(images.fetch(name)),
        images.rm,
        lambda name: list(clear(images, 0, dry_run=False)),
    )
    for _ in range(15):
        try:
            chance.choice(moves)(chance.choice(["base", "top", "other"]))
        except EncampError as error:
            # Somebody else was faster, or has it in hand; never damage.
            assert error.code in (Code.INPUT_MISSING, Code.WRONG_STATE, Code.NO_ROOM), error  # noqa: PT017


def test_pullers_users_removers_and_clearers_at_once_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    where = str(tmp_path / "repository")
    here = store_in(tmp_path / "here")
    base = make_image(here, "base", size=SIZE)
    for name, over in (("base", None), ("top", base), ("other", None)):
        make_image(here, name, size=SIZE, over=over)
        push(here, Repository.open(where), name, Silent())
    context = multiprocessing.get_context("fork")
    users = [
        context.Process(target=rush, args=(tmp_path / "host", where, seed)) for seed in range(4)
    ]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert [user.exitcode for user in users] == [0] * len(users)
    images = store_in(tmp_path / "host", repositories=(where,))
    for name in ("top", "other"):
        images.check(images.fetch(name))
    assert left_over(images.home) == []


class TestClearing:
    def test_images_without_a_name_go_and_others_stay(self, images: ImageStore) -> None:
        base = make_image(images, "base")
        make_image(images, "top", over=base)
        make_image(images, "plain", seed=1)
        make_image(images, "plain", seed=2)
        (images.home.images / "names" / "base.json").unlink()
        before = taken(images.home)
        told = [one for one in clear(images, 0, dry_run=True) if one.size]
        assert taken(images.home) == before
        freed = [one for one in clear(images, 0, dry_run=False) if one.size]
        assert freed == told
        assert sum(one.size for one in freed) == before - taken(images.home)
        assert names(images) == ["", "plain", "top"]

    def test_what_was_used_lately_stays(self, images: ImageStore) -> None:
        for number, days in enumerate((1, 30)):
            aged(images, make_image(images, "same", seed=number), days)
        (images.home.images / "names" / "same.json").unlink()
        assert len([one for one in clear(images, 7, dry_run=False) if one.size]) == 1
        assert len(images.ls()) == 1

    def test_old_downloads_and_stale_stamps_and_locks_go(self, images: ImageStore) -> None:
        home = images.home
        old, new = home.cache / f"{PARTIAL}{'1' * 64}.x", home.cache / f"{PARTIAL}{'2' * 64}.x"
        for path, days in ((old, 30), (new, 1)):
            path.write_bytes(bytes(5000))
            os.utime(path, (time.time() - days * DAY,) * 2)
        stamp = stamp_path(home, "3" * 64)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text("{}")
        lock = home.locks / "pull-x.lock"
        lock.touch()
        os.utime(lock, (0, 0))
        held = home.locks / "image-held.lock"
        with home.lock("image-held"):
            os.utime(held, (0, 0))
            list(clear(images, 7, dry_run=False))
            assert held.exists()
        assert (old.exists(), new.exists()) == (False, True)
        assert not stamp.exists()
        assert not lock.exists()


def test_looking_for_users_costs_little(images: ImageStore) -> None:
    """A broken record of a machine is nobody's need, and no reason to fail."""
    directory = images.home.machines / "broken"
    directory.mkdir()
    (directory / "machine.json").write_text("{")
    assert users(images.home) == {}


def test_nothing_goes_for_what_would_not_fit_in_any_case(images: ImageStore) -> None:
    make_image(images, "unused", size=SIZE)
    with pytest.raises(EncampError) as raised:
        make_room(limited(images, taken(images.home)), 9 * SIZE, "pull another", (), Silent())
    assert raised.value.code is Code.NO_ROOM
    assert names(images) == ["unused"]


def test_what_nothing_could_bring_back_stays(images: ImageStore, tmp_path: Path) -> None:
    base = aged(images, make_image(images, "base", size=SIZE), 20)
    aged(images, make_image(images, "kept", size=SIZE, over=base, recipe="saved 123"), 10)
    aged(images, make_image(images, "built", size=SIZE), 1)
    few = limited(images, taken(images.home))
    make_room(few, SIZE, "pull another", (), Silent())
    assert names(images) == ["base", "kept"]
    with pytest.raises(EncampError):
        make_room(few, 2 * SIZE, "pull another", (), Silent())
    assert names(images) == ["base", "kept"]
    # It may go where it came from a repository.
    (tmp_path / "repository").mkdir()
    repository = Repository.open(str(tmp_path / "repository"))
    push(images, repository, "kept", Silent())
    there = store_in(tmp_path / "there")
    pull(there, repository, "kept", Silent())
    make_room(limited(there, taken(there.home)), SIZE, "pull another", (), Silent())
    assert "kept" not in names(there)


def test_open_files_are_noticed_in_a_home_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    images = store_in(tmp_path / "link")
    image = make_image(images, "read", size=SIZE)
    with image.root.open("rb"):
        with pytest.raises(EncampError):
            make_room(limited(images, 1), SIZE, "pull another", (), Silent())
        with pytest.raises(EncampError) as raised:
            images.rm("read")
        assert "has its files open" in raised.value.sentence
    images.rm("read")
    assert names(images) == []


@pytest.fixture
def account(images: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of an account, where that of `images` is the system's."""
    account = tmp_path / "anna"
    home = Home(account / ".local" / "share" / "encamp").prepare()
    monkeypatch.setattr(needs, "SYSTEM_HOME", images.home.root)
    password_file = [SimpleNamespace(pw_dir=str(account)), SimpleNamespace(pw_dir="/nonexistent")]
    monkeypatch.setattr("pwd.getpwall", lambda: password_file)
    return home


def test_what_other_accounts_need_of_the_systems_images_stays(
    images: ImageStore, account: Home
) -> None:
    base = make_image(images, "base", size=SIZE)
    sleeping = make_image(images, "sleeping", size=SIZE, over=base)
    below = make_image(images, "below", size=SIZE)
    make_image(images, "free", size=SIZE)
    machine = run_machine(account, sleeping, State.SUSPENDED)
    (machine / "context").write_bytes(b"QEVM, as QEMU begins what it saves")
    theirs = ImageStore(account, shared=images.home.root, settings=Settings())
    theirs.shared = images.home
    make_image(theirs, "theirs", over=below)
    # What somebody planted there to hold root up, or to fill its memory, does neither.
    for number in ("2", "3"):
        (account.machines / number).mkdir()
    os.mkfifo(account.machines / "2" / "machine.json")
    (account.machines / "3" / "machine.json").symlink_to("/dev/zero")
    few = limited(images, taken(images.home))
    make_room(few, SIZE, "pull another", (), Silent())
    assert names(images) == ["base", "below", "sleeping"]
    with pytest.raises(EncampError):
        make_room(few, 2 * SIZE, "pull another", (), Silent())
    for name in ("sleeping", "below"):
        with pytest.raises(EncampError) as raised:
            images.rm(name)
        assert str(account.root) in raised.value.sentence
    for tag in ("base", "sleeping", "below"):
        link_path(images.home, tag).unlink()
    assert not [one for one in clear(images, -1, dry_run=True) if one.what.startswith("image")]
    run_machine(account, sleeping, State.STOPPED)
    assert [one for one in clear(images, -1, dry_run=True) if sleeping.digest[:12] in one.what]


def test_a_download_that_somebody_is_at_is_not_cleared_away(images: ImageStore) -> None:
    """Not even by one who clears away what was used a moment ago."""
    digest = "1" * 64
    part = images.home.cache / f"{PARTIAL}{digest}.root.squashfs"
    part.write_bytes(b"begun")
    with locked(images.home, f"pull-{digest}", "waiting", Silent()):
        list(clear(images, -1, dry_run=False))
        assert part.exists()
    list(clear(images, -1, dry_run=False))
    assert not part.exists()


def test_a_home_that_is_removed_as_it_is_looked_at_needs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home").prepare()
    scandir = os.scandir

    def too_late(path: Path) -> object:
        home.machines.rmdir()
        return scandir(path)

    foreign = Foreign(home)
    with monkeypatch.context() as moment:
        moment.setattr(os, "scandir", too_late)
        assert list(foreign.list(home.machines, "machine.json")) == []
    assert not home.machines.exists()


def test_an_image_that_is_cleared_away_before_it_has_a_name_can_be_made_again(
    images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, looks = ImageStore.read, []

    def cleared(store: ImageStore, directory: Path, depth: int = 0) -> Image | None:
        looks.append(directory.exists())
        if looks == [False, True]:
            assert evict(store.home, directory.name)
        return read(store, directory, depth)

    with monkeypatch.context() as moment:
        moment.setattr(ImageStore, "read", cleared)
        with pytest.raises(EncampError, match="was removed while it was being made") as caught:
            make_image(images, "mini")
    assert caught.value.transient
    assert make_image(images, "mini").name == "mini"


def test_an_image_that_is_cleared_away_as_it_is_made_anew_can_be_made_again(
    images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(target: Path, result: Path) -> None:
        assert evict(images.home, target.name)
        (result / RECORD).replace(target / RECORD)

    make_image(images, "mini")
    with monkeypatch.context() as moment:
        moment.setattr(placing, "_add_to", too_late)
        with pytest.raises(EncampError, match="was removed while it was being made"):
            make_image(images, "mini")
    assert make_image(images, "mini").name == "mini"
