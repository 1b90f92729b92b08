"""Run in a machine whose kernel has device-mapper: the storage `lvm` on a real thin pool.

Every check prints its name; the test outside compares them with those it expects.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from encamp.home import Home
from encamp.machines import volumes
from encamp.machines.directory import MachineDirectory
from encamp.machines.storage import home_mark, sweep_volumes
from encamp.machines.storage_file import TemplateDiskGoneError
from encamp.machines.storage_lvm import ThinVolume, thin_pool
from encamp.machines.template import TemplateStore
from encamp.machines.volumes import ThinPool
from encamp.model.errors import Code, EncampError
from encamp.model.settings import Settings
from tests.site.volumes import fill

GROUP, POOL = "machines", "pool"
SETTINGS = Settings(volume_group=GROUP)
SIZE = 24 << 20
KEY, ONE, TWO, THREE = ("c" * 32, "1" * 32, "2" * 32, "3" * 32)

HOME = Home(Path("/tmp/home"))
STORAGE = ThinVolume(lambda: ThinPool(GROUP, POOL, home_mark(HOME)))


@contextmanager
def mounted(directory: MachineDirectory) -> Iterator[Path]:
    """The file system that the machine would have, as its guest sees it."""
    device = STORAGE.attach(directory).device
    assert device is not None
    where = Path("/tmp/mounted")
    where.mkdir(exist_ok=True)
    subprocess.run(["mount", device, where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)


def machine(owner: str) -> MachineDirectory:
    directory = MachineDirectory(HOME.machines / owner)
    directory.make(None, 0)
    return directory


def clone(owner: str) -> MachineDirectory:
    directory = machine(owner)
    STORAGE.clone(HOME.templates / KEY, directory, None)
    return directory


def refused(work: Callable[[], object]) -> EncampError:
    try:
        work()
    except EncampError as error:
        return error
    raise AssertionError("it was not refused")


def owners() -> set[str]:
    return set(STORAGE.pool.owners(volumes.volumes(GROUP)))


def free() -> int:
    return STORAGE.pool.free(volumes.volumes(GROUP))


def pool_is_found_and_mistakes_are_named() -> None:
    assert thin_pool(SETTINGS, home_mark(HOME)).pool == POOL
    wrong_group = refused(lambda: thin_pool(Settings(volume_group="nothing"), "0" * 8))
    assert wrong_group.code is Code.CONFIGURATION
    assert "volume group 'nothing'" in wrong_group.sentence
    wrong_pool = thin_pool(Settings(volume_group=GROUP, thin_pool="nowhere"), "0" * 8)
    assert (
        "no thin pool 'nowhere'"
        in refused(lambda: wrong_pool.free(volumes.volumes(GROUP))).sentence
    )


def template_is_a_volume_that_nobody_can_write_to() -> None:
    directory = MachineDirectory(HOME.cache / KEY)
    directory.make(None, 0)
    STORAGE.make(directory, SIZE, None)
    with mounted(directory) as where:
        (where / "template").write_text("was here")
    made = HOME.templates / KEY
    made.mkdir()
    assert STORAGE.keep(directory, made) == ()
    assert volumes.noted(directory.path) is None
    _, name = volumes.noted(made) or ("", "")
    assert not volumes.device(GROUP, name).exists()
    volumes.activate(GROUP, name)
    try:
        volumes.device(GROUP, name).write_bytes(b"changed")
        raise AssertionError("a template's volume was written to")
    except PermissionError:
        pass
    subprocess.run(["lvchange", "--quiet", "-an", f"{GROUP}/{name}"], check=True)


def clones_begin_as_their_template_and_go_their_own_ways() -> None:
    before = free()
    one, two = clone(ONE), clone(TWO)
    assert free() == before, "copies of a template take no room"
    with mounted(one) as where:
        assert (where / "template").read_text() == "was here"
        (where / "own").write_text("one")
    with mounted(two) as where:
        assert sorted(os.listdir(where)) == ["lost+found", "template"]


def size_is_enforced() -> None:
    with mounted(MachineDirectory(HOME.machines / ONE)) as where:
        filled = fill(where).stat().st_size
        assert SIZE // 2 < filled < SIZE


def volume_wakes_up_with_the_host() -> None:
    one = MachineDirectory(HOME.machines / ONE)
    _, name = volumes.noted(one.path) or ("", "")
    subprocess.run(["lvchange", "--quiet", "-an", f"{GROUP}/{name}"], check=True)
    assert not volumes.device(GROUP, name).exists()
    with mounted(one) as where:
        assert (where / "own").read_text() == "one"


def volume_goes_with_its_machine() -> None:
    one, two = (MachineDirectory(HOME.machines / owner) for owner in (ONE, TWO))
    one.strip()
    assert owners() == {KEY, TWO}
    assert volumes.noted(one.path) is None
    one.remove()
    two.remove()
    assert owners() == {KEY}
    assert os.listdir(HOME.machines) == []


def volume_in_use_is_not_forgotten() -> None:
    three = clone(THREE)
    device = STORAGE.attach(three).device
    assert device is not None
    with device.open("rb"):
        three.remove()
        assert volumes.noted(three.path) is not None
        assert owners() == {KEY, THREE}
    three.remove()
    assert owners() == {KEY}
    assert not three.path.exists()


def maker_killed_before_it_made_the_volume_leaves_nothing() -> None:
    three = machine(THREE)
    volumes.note(three.path, GROUP, STORAGE.pool.name(THREE))
    three.remove()
    assert not three.path.exists()
    (HOME.machines / ONE).mkdir()
    (HOME.machines / ONE / volumes.NOTE).write_text("mach")
    MachineDirectory(HOME.machines / ONE).remove()
    assert os.listdir(HOME.machines) == []


def template_that_was_not_finished_leaves_nothing() -> None:
    directory = MachineDirectory(HOME.cache / THREE)
    with contextlib.suppress(ZeroDivisionError), volumes.released(HOME.cache, THREE):
        directory.make(None, 0)
        STORAGE.make(directory, SIZE, None)
        raise ZeroDivisionError
    assert owners() == {KEY}


def orphans_are_swept_and_nothing_else() -> None:
    settings = Settings(volume_group=GROUP, thin_pool=POOL)
    stranger = thin_pool(settings, "f" * 8)
    stranger.create(stranger.name(ONE), SIZE)
    half_made, orphan = "d" * 32, "e" * 32
    for owner in (half_made, orphan):
        STORAGE.pool.create(STORAGE.pool.name(owner), SIZE)
    clone(ONE)
    with (HOME.locks / f"template-{half_made}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweep_volumes(HOME, GROUP) == [orphan]
    assert owners() == {KEY, ONE, half_made}
    assert stranger.owners(volumes.volumes(GROUP)) == [ONE]
    stranger.discard(ONE)
    MachineDirectory(HOME.machines / ONE).remove()
    assert sweep_volumes(HOME, GROUP) == [half_made]


def machine_larger_than_the_pool_is_refused() -> None:
    error = refused(lambda: STORAGE.make(machine(TWO), 1 << 30, None))
    assert error.code is Code.NO_ROOM
    MachineDirectory(HOME.machines / TWO).remove()


def clone_outlives_its_template() -> None:
    two = clone(TWO)
    TemplateStore(HOME).remove(KEY)
    assert owners() == {TWO}
    with mounted(two) as where:
        assert (where / "template").read_text() == "was here"
    two.remove()


def template_whose_volume_is_gone_is_told_apart() -> None:
    made = HOME.templates / KEY
    made.mkdir()
    volumes.note(made, GROUP, STORAGE.pool.name(KEY))
    try:
        clone(ONE)
        raise AssertionError("there was something to clone")
    except TemplateDiskGoneError:
        MachineDirectory(HOME.machines / ONE).remove()
    assert owners() == set()


CHECKS = (
    pool_is_found_and_mistakes_are_named,
    template_is_a_volume_that_nobody_can_write_to,
    clones_begin_as_their_template_and_go_their_own_ways,
    size_is_enforced,
    volume_wakes_up_with_the_host,
    volume_goes_with_its_machine,
    volume_in_use_is_not_forgotten,
    maker_killed_before_it_made_the_volume_leaves_nothing,
    template_that_was_not_finished_leaves_nothing,
    orphans_are_swept_and_nothing_else,
    machine_larger_than_the_pool_is_refused,
    clone_outlives_its_template,
    template_whose_volume_is_gone_is_told_apart,
)


def main() -> None:
    HOME.prepare()
    for check in CHECKS:
        check()
        sys.stdout.write(f"{check.__name__}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
