"""Volumes of killed processes and of yesterday's settings: what was noted is found again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from encamp.agent.recovery import recover
from encamp.home import Home
from encamp.machines import volumes
from encamp.machines.directory import MachineDirectory
from encamp.machines.storage import home_mark
from encamp.machines.storage_lvm import ThinVolume
from encamp.machines.volumes import ThinPool
from encamp.model.errors import Code, EncampError
from encamp.workplace import OUTSIDE, claim, clear_cache, lock_of, workplace

GROUP, KEY = "machines", "c" * 32


class FakeGroup:
    """What LVM would say; it has one volume."""

    def __init__(self, home: Home) -> None:
        self.volume = ThinPool(GROUP, "", home_mark(home)).name(KEY)
        self.broken = False
        self.commands: list[tuple[str, ...]] = []
        self.removed: list[str] = []

    def run(self, *command: str, purpose: str, cleaning: bool = False) -> str:
        self.commands.append(command)
        if self.broken:
            raise EncampError(Code.DISK_FULL, "LVM is out of order.")
        if command[0] == "lvs":
            line = f'"lv_name": "{self.volume}", "lv_size": "1", "segtype": "thin"'
            more = '"data_percent": "", "pool_lv": "pool", "lv_active": ""'
            return f'{{"report": [{{"lv": [{{{line}, {more}}}]}}]}}'
        if command[0] == "lvremove":
            self.removed.append(command[-1])
        return ""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def group(home: Home, monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    group = FakeGroup(home)
    monkeypatch.setattr(volumes, "_run", group.run)
    return group


@pytest.fixture
def left(home: Home, group: FakeGroup) -> Path:
    """The workplace of a template's maker whose volume could not be removed."""
    group.broken = True
    with (
        workplace(home, "template-mini") as place,
        volumes.released(place.directory, KEY, "made"),
    ):
        (place.directory / KEY).mkdir()
        volumes.note(place.directory / KEY, GROUP, group.volume)
    return place.directory


def test_workplace_stays_until_its_volume_is_gone(home: Home, group: FakeGroup, left: Path) -> None:
    assert clear_cache(home) == 0, "whoever knows nothing of volumes leaves it alone"
    recover(home)
    assert left.exists()
    assert lock_of(left).exists()
    group.broken = False
    recover(home)
    assert group.removed == [f"{GROUP}/{group.volume}"]
    assert list(home.cache.iterdir()) == []


def test_volume_that_somebody_makes_anew_is_left_to_him(
    home: Home, group: FakeGroup, left: Path
) -> None:
    group.broken = False
    with home.lock(f"template-{KEY}"):
        recover(home)
        assert group.removed == []
        assert left.exists()
    recover(home)
    assert group.removed == [f"{GROUP}/{group.volume}"]
    assert list(home.cache.iterdir()) == []


def test_workplace_without_a_volume_is_cleared_though_lvm_is_out_of_order(
    home: Home, group: FakeGroup
) -> None:
    directory, lock = claim(home.cache, "template-mini")
    directory.mkdir()
    (directory / OUTSIDE).touch()
    os.close(lock)
    group.broken = True
    recover(home)
    assert list(home.cache.iterdir()) == []
    assert group.commands == []


def test_machine_finds_its_volume_in_the_group_where_it_was_made(
    home: Home, group: FakeGroup
) -> None:
    """Whatever the settings say by now."""

    def nowhere() -> ThinPool:
        raise EncampError(Code.CONFIGURATION, "There is no volume group any more.")

    machine = MachineDirectory(home.machines / KEY)
    machine.make(None, 0)
    volumes.note(machine.path, GROUP, group.volume)
    disk = ThinVolume(nowhere).attach(machine)
    assert disk.device == Path("/dev") / GROUP / group.volume
    assert group.commands[0][-1] == f"{GROUP}/{group.volume}"
