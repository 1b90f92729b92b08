"""What machines are made of."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from encamp.machines.hardware import (
    EMULATED,
    PORTS,
    SHARES,
    WINDOW_SIZE,
    Backing,
    Disk,
    Hardware,
    Kept,
    command_line,
)
from encamp.machines.share_server import window
from encamp.model.driver import DriverName
from encamp.model.size import MIB, Size
from tests.conftest import ROOT

MACHINES = ROOT / "src" / "encamp" / "machines"
WIRE = MACHINES / "shares" / "wire.h"


def test_emulated_processor_tells_of_neither_way_to_copy_bytes() -> None:
    """A kernel that hears of one alone trusts in the other, too, and does not come up."""
    assert {"erms=off", "fsrm=off"} <= set(EMULATED.split(","))


@pytest.mark.parametrize("layers", [0, 1, 9])
@pytest.mark.parametrize("disk", [0, 64 * MIB])
def test_guest_finds_its_ports_and_drives_where_it_always_did(layers: int, disk: int) -> None:
    """What serves shares comes after all else of its kind."""
    kept = Kept.FILE if disk else Kept.MEMORY
    own = ("-device", "virtio-blk-pci,drive=own")
    hardware = Hardware(
        DriverName.EMULATION, Size(1, 64 * MIB, disk), "none", layers, (), own, kept
    )
    roots: list[Path | str] = [f"/{number}" for number in range(layers)]
    backing = Backing("a", roots, "", 0, [0] * PORTS, 0, disk=Disk() if disk else None)
    words = command_line(Path("qemu"), hardware, backing)
    names = [word.partition(",name=")[2] for word in words if word.startswith("virtserialport,")]
    assert names[:PORTS] == [f"encamp.{number}" for number in range(PORTS)]
    assert names[-1] == wire("PORT")
    assert f"virtio-serial-pci,id=ports,max_ports={len(names) + 1}" in words
    drives = [word.split(",")[1] for word in words if word.startswith("virtio-blk-pci,")]
    others = [f"drive=root{number}" for number in range(layers)] + ["drive=disk"] * bool(disk)
    last = ["drive=own", "drive=window"] if layers else ["drive=seed", "drive=own"]
    assert drives == [*others, *last]
    windows = [word for word in words if word.endswith(f",serial={wire('WINDOW')}")]
    assert len(windows) == (layers > 0)


def wire(name: str) -> str:
    """What the C programs call it."""
    found = re.search(rf'^#define WIRE_{name} "(.*)"$', WIRE.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_window_is_as_large_as_guest_and_server_take_it_for() -> None:
    text = WIRE.read_text()
    assert "#define WIRE_MOST (1u << 20)" in text
    assert "#define WIRE_SLOT WIRE_MOST" in text
    (slots,) = re.findall(r"^#define WIRE_SLOTS (\d+)$", text, re.MULTILINE)
    assert int(slots) << 20 == WINDOW_SIZE


def test_windows_size_is_nobodys_to_change() -> None:
    with window() as fd:
        assert os.fstat(fd).st_size == WINDOW_SIZE
        assert os.fstat(fd).st_blocks == 0
        for size in (0, WINDOW_SIZE + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        assert os.pwrite(fd, b"x", WINDOW_SIZE - 1) == 1


def test_as_many_shares_can_be_mounted_and_attached_as_a_machine_may_have() -> None:
    launcher = (MACHINES / "launch" / "launch.c").read_text()
    guest = (MACHINES.parent / "guest" / "program" / "mounts.c").read_text()
    assert f"#define SHARES_MAX {SHARES} " in launcher
    assert f"MOUNT_LIMIT = {SHARES}," in guest
