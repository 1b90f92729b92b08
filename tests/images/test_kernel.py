"""Which drivers a machine gets, and in which order they can be loaded."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from encamp.images.kernel import WANTED, Unpacked, load_order, worth_keeping
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image


def a_kernel(depends: dict[str, str], built_in: frozenset[str] = frozenset()) -> Unpacked:
    drivers = {
        name: (f"{name}.ko", f"\0license=GPL\0depends={needs}\0name={name}\0".encode())
        for name, needs in depends.items()
    }
    return Unpacked("6.1.0-test", b"kernel", drivers, built_in)


def test_a_driver_comes_after_what_it_depends_on() -> None:
    depends = dict.fromkeys(WANTED, "") | {
        "virtio_pci": "virtio_ring,virtio",
        "virtio_ring": "",
        "virtio": "virtio-ring",
        "ext4": "jbd2",
        "jbd2": "",
    }
    order = load_order(a_kernel(depends))
    assert order[:3] == ["virtio_ring", "virtio", "virtio_pci"]
    assert order.index("jbd2") < order.index("ext4")
    assert len(order) == len(set(order)) == len(depends)


def test_a_driver_in_the_kernel_itself_is_not_loaded() -> None:
    depends = dict.fromkeys(WANTED, "")
    del depends["ext4"]
    assert "ext4" not in load_order(a_kernel(depends, built_in=frozenset({"ext4"})))


def test_a_kernel_without_a_driver_is_refused() -> None:
    depends = dict.fromkeys(WANTED, "")
    del depends["fuse"]
    with pytest.raises(EncampError) as raised:
        load_order(a_kernel(depends))
    assert raised.value.code is Code.BUILD_FAILED
    assert "'fuse'" in raised.value.sentence


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("./lib/modules/6.1.0/kernel/drivers/block/virtio_blk.ko", True),
        ("./lib/modules/6.1.0/kernel/drivers/virtio/virtio.ko", True),
        ("./lib/modules/6.1.0/kernel/fs/fuse/fuse.ko", True),
        ("./lib/modules/6.1.0/kernel/net/core/failover.ko", True),
        ("./lib/modules/6.1.0/kernel/drivers/net/ethernet/intel/e1000/e1000.ko", False),
        ("./lib/modules/6.1.0/kernel/sound/pci/snd-ens1370.ko", False),
        ("./usr/share/doc/odd.ko", False),
    ],
)
def test_drivers_for_hardware_are_passed_over(path: str, kept: bool) -> None:
    assert worth_keeping(PurePosixPath(path)) is kept


@pytest.mark.site
def test_debians_kernel_gives_all_drivers_in_order(mini: Image) -> None:
    data = mini.modules.read_bytes()
    start = data.index(b"virtio_ring.ko\n")
    # Up to the header of the next file.
    order = data[start : data.index(b"070701", start)].decode().rstrip("\0").split()
    for name in ("squashfs", "overlay", "fuse", "virtio_net", "ext4", "crc16"):
        assert f"{name}.ko" in order
    assert order.index("net_failover.ko") < order.index("virtio_net.ko")
    assert data.count(b"\x7fELF") >= len(order)
    assert mini.kernel.read_bytes()[514:518] == b"HdrS"
