"""What computes beside the host's processors: GPUs and the like, and hardware virtualization.

The kernel lists the devices on the host's buses, with their drivers. A device is called usable if
the agent can open the file by which programs reach it; whether a program's libraries are there too
is not for the kernel to say, nor for us.
"""

from __future__ import annotations

import os
from pathlib import Path

from encamp.agent.properties.plugin import Asked, one_of
from encamp.home import Home
from encamp.model.driver import DriverName
from encamp.model.property import Value

DEVICES = Path("/sys/bus/pci/devices")
KVM = Path("/dev/kvm")

GPU = "gpu"
CLASSES = {"0x0300": GPU, "0x0302": GPU, "0x0380": GPU, "0x1200": "accelerator"}
"""What the first two bytes of a device's class say: display controllers of three kinds, and what
PCI calls processing accelerators."""

VENDORS = {
    "0x1002": "AMD",
    "0x10de": "NVIDIA",
    "0x1a03": "ASPEED",
    "0x1ae0": "Google",
    "0x1da3": "Habana Labs",
    "0x8086": "Intel",
    "0x10ee": "Xilinx",
}
DISPLAYS_ONLY = frozenset({"ast", "bochs-drm", "cirrus", "mgag200", "qxl", "virtio-pci", "vmwgfx"})
"""Drivers of what shows a picture and computes nothing."""


def accelerators(asked: Asked) -> Value:
    """A `list` of devices, the count of usable `gpus`, or whether `kvm` works for the agent's own
    machines: `works`, `fails`, `absent`, or `untried` until a guest has been started under it."""
    what = one_of(asked, {"list": _list, "gpus": _count, "kvm": _kvm})
    value: Value = what(asked.home)
    return value


def _list(home: Home) -> list[Value]:
    return [dict(found) for found in devices()]


def _count(home: Home) -> int:
    return sum(1 for found in devices() if found["kind"] == GPU and found["usable"])


def devices(root: Path = DEVICES) -> list[dict[str, Value]]:
    """What is on the host's buses that computes; none, where the kernel shows no bus."""
    try:
        addresses = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    found = []
    for address in addresses:
        kind = CLASSES.get(_text(root / address / "class")[:6])
        if kind is None:
            continue
        driver = _driver(root / address)
        if kind == GPU and driver in DISPLAYS_ONLY:
            continue
        vendor, device = _text(root / address / "vendor"), _text(root / address / "device")
        nodes = _nodes(root / address, driver)
        entry: dict[str, Value] = {
            "kind": kind,
            "vendor": VENDORS.get(vendor, vendor),
            "id": f"{vendor[2:]}:{device[2:]}",
            "address": address,
            "driver": driver,
            "usable": any(os.access(node, os.R_OK | os.W_OK) for node in nodes),
        }
        found.append(entry)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # It was taken away just now.


def _driver(device: Path) -> str:
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""


def _nodes(device: Path, driver: str) -> list[Path]:
    """The files by which programs reach a device."""
    if driver == "nvidia":
        return _nvidia_nodes(device.name)
    for directory, prefix in (("drm", "renderD"), ("accel", "accel")):
        try:
            names = os.listdir(device / directory)
        except OSError:
            continue
        place = Path("/dev/dri" if directory == "drm" else "/dev/accel")
        return [place / name for name in names if name.startswith(prefix)]
    return []


def _nvidia_nodes(address: str) -> list[Path]:
    """NVIDIA's driver numbers its devices by itself, and says so in a file."""
    lines = _text(Path("/proc/driver/nvidia/gpus") / address / "information").splitlines()
    numbers = [line.split()[-1] for line in lines if line.startswith("Device Minor:")]
    return [Path(f"/dev/nvidia{number}") for number in numbers]


def _kvm(home: Home) -> str:
    if not KVM.exists():
        return "absent"
    from encamp.machines import accelerator
    from encamp.machines.account import process_user

    verdict = accelerator.known(home, process_user(os.geteuid()))
    if verdict is None:
        return "untried"
    return "works" if verdict.driver is DriverName.KVM else "fails"
