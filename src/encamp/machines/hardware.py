"""What a machine is made of, and the QEMU command line that makes it.

A clone must be given exactly the hardware its template had; only what stands behind a device
(files, sockets, shared directories) may differ. So the command line is made in one place.
"""

from __future__ import annotations

import hashlib
import string
from pathlib import Path

import msgspec

from encamp.model.size import Size

PORTS = 8
"""Guest channels per machine: so many processes can work in one machine at the same time."""

SHARE_SLOTS = (0, 2, 6)
"""How many 9p devices a machine may have. A few kinds, so that templates serve many requests;
none for those without shares, since each device costs over a MiB."""

TRANSLATION_BUFFER = {"tcg": 32}
"""MiB of translated code QEMU keeps per machine under software emulation."""

DEVICES = {
    "balloon": ("-device", "virtio-balloon-pci"),
    "rng": (
        *("-object", "rng-random,id=rng,filename=/dev/urandom"),
        *("-device", "virtio-rng-pci,rng=rng"),
    ),
    "watchdog": ("-device", "i6300esb", "-action", "watchdog=poweroff"),
}
"""Devices an environment may ask for beyond what every machine has."""

SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


class Hardware(msgspec.Struct, frozen=True):
    """Everything about a machine that its template fixes."""

    accelerator: str
    size: Size
    share_slots: int
    network: str
    layers: int = 1
    """How many drives its read-only part is on: one for every layer of its image."""
    devices: tuple[str, ...] = ()
    """More of them: see `DEVICES`."""
    words: tuple[str, ...] = ()
    """What else an administrator wants QEMU to be told."""

    def digest(self) -> str:
        """Names the hardware by the very words that make it."""
        disk = Disk(overlay=False) if self.size.disk else None
        roots: list[Path | str] = [""] * self.layers
        nothing = Backing("", roots, "", 0, [0] * PORTS, [("", True)] * self.share_slots, disk)
        words = command_line(Path(), self, nothing)
        return hashlib.sha256("\0".join(words).encode()).hexdigest()


class Disk(msgspec.Struct, frozen=True):
    """The machine's writable disk, in its directory: a plain file, or an overlay over one."""

    overlay: bool

    FILE = "disk"
    BASE = "disk.base"


class Backing(msgspec.Struct):
    """What stands behind the devices of one machine. Paths are as the machine's process sees
    them: relative to its directory, or descriptors it inherits."""

    name: str
    roots: list[Path | str]
    """The layers of the image, each over those before it."""
    memory: str
    """The memory backend's properties, less its id and size."""
    monitor: int
    ports: list[int]
    shares: list[tuple[str, bool]]
    """Directory and whether it is read-only, for every slot."""
    disk: Disk | None = None
    console: str = "console"


def share_slots_for(count: int) -> int | None:
    return next((slots for slots in SHARE_SLOTS if slots >= count), None)


def command_line(program: Path, hardware: Hardware, backing: Backing) -> list[str]:
    """The QEMU command line, less how the machine comes to life (boot, clone or restore)."""
    size = hardware.size
    words = [str(program), "-name", f"encamp-{backing.name}", "-nodefaults", "-no-user-config"]
    words += ["-display", "none", "-no-reboot", "-sandbox", SANDBOX]
    words += ["-machine", "pc,usb=off,vmport=off,hpet=off,smbus=off,memory-backend=ram"]
    if hardware.accelerator == "kvm":
        words += ["-accel", "kvm", "-cpu", "host"]
    else:
        buffer = TRANSLATION_BUFFER["tcg"]
        words += ["-accel", f"tcg,thread=multi,tb-size={buffer}", "-cpu", "max"]
    words += ["-smp", str(size.cpus), "-m", f"{size.memory // 1024}K"]
    words += ["-object", f"{backing.memory},id=ram,size={size.memory}"]
    words += ["-chardev", f"socket,id=monitor,fd={backing.monitor},server=on,wait=off"]
    words += ["-mon", "chardev=monitor,mode=control"]
    words += ["-chardev", f"file,id=console,path={backing.console},append=on"]
    words += ["-serial", "chardev:console"]
    words += ["-device", f"virtio-serial-pci,id=ports,max_ports={PORTS + 1}"]
    for number, descriptor in enumerate(backing.ports):
        words += ["-chardev", f"socket,id=port{number},fd={descriptor},server=on,wait=off"]
        words += [
            "-device",
            f"virtserialport,bus=ports.0,chardev=port{number},name=encamp.{number}",
        ]
    for number, root in enumerate(backing.roots):
        words += _drive(f"root{number}", f"file={_escape(str(root))},format=raw,readonly=on")
    if backing.disk is not None:
        kind = "format=raw"
        if backing.disk.overlay:
            kind = f"format=qcow2,backing.driver=raw,backing.file.filename={Disk.BASE}"
        # An error goes to the guest, whose file system knows what to do; QEMU would stop it.
        words += _drive("disk", f"file={Disk.FILE},{kind},werror=report,rerror=report")
    for number, (directory, readonly) in enumerate(backing.shares):
        mode = "on" if readonly else "off"
        local = f"local,id=share{number},path={_escape(directory)},security_model=none"
        words += ["-fsdev", f"{local},multidevs=remap,readonly={mode}"]
        words += ["-device", f"virtio-9p-pci,fsdev=share{number},mount_tag=share{number}"]
    if hardware.network == "user":
        words += ["-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network,romfile="]
    for device in hardware.devices:
        words += DEVICES[device]
    return [*words, *hardware.words]


def drive_names(hardware: Hardware) -> tuple[list[str], str | None]:
    """What the guest's kernel calls the drives of the layers, and that of the disk."""
    letters = string.ascii_lowercase
    roots = [f"vd{letters[number]}" for number in range(hardware.layers)]
    return roots, f"vd{letters[hardware.layers]}" if hardware.size.disk else None


def _drive(name: str, properties: str) -> list[str]:
    drive = f"if=none,id={name},{properties},file.locking=off"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name}"]


def _escape(path: str) -> str:
    """QEMU splits options at commas; a doubled one stands for itself."""
    return path.replace(",", ",,")
