"""What a machine is made of, and the QEMU command line that makes it.

A clone must be given exactly the hardware its template had; only what stands behind a device
(files, sockets) may differ. So the command line is made in one place.
"""

from __future__ import annotations

import enum
import hashlib
import string
from pathlib import Path

import msgspec

from encamp.model.driver import DriverName
from encamp.model.size import MIB, Size

PORTS = 8
"""Guest channels per machine: so many processes can work in one machine at the same time."""

SHARES = 64
"""The most directories of the host that a machine may be shown. The guest program's MOUNT_LIMIT and
the launcher's SHARES_MAX are the same number."""

SHARES_PORT = "encamp.shares"
"""WIRE_PORT in shares/wire.h: where the guest finds the share server of its host."""

WINDOW = "encamp-window"
"""WIRE_WINDOW in shares/wire.h: serial number of the drive that both the guest and the share server
see, for data that would be slow through the port."""
WINDOW_SIZE = 4 * MIB
"""Bytes of the window: WIRE_SLOTS times WIRE_SLOT in shares/wire.h."""

TRANSLATION_BUFFER = {"ordinary": 32, "whole": 128}
"""MiB of translated code QEMU keeps per machine under software emulation. What a whole disk starts
would be translated again and again with less."""

EMULATED = "max,erms=off,fsrm=off"
"""The processor under software emulation. It copies strings one word at a time, whatever a word is:
kernels and libraries that are told it is as quick with bytes would use those, and be eight times as
slow. Told only of one of the two ways, as QEMU 9 and later would, kernels do not come up."""

DEVICES = {
    "balloon": ("-device", "virtio-balloon-pci"),
    "rng": (
        *("-object", "rng-random,id=rng,filename=/dev/urandom"),
        *("-device", "virtio-rng-pci,rng=rng"),
    ),
    "watchdog": ("-device", "i6300esb", "-action", "watchdog=poweroff"),
}
"""Devices an environment may ask for beyond what every machine has."""

AGENT_PORT = "org.qemu.guest_agent.0"
"""Where qemu-guest-agent looks for the host."""

DISK_DRIVE = "disk"
"""QEMU's name for the drive with the machine's writable disk."""

SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

WHOLE = ("-boot", "strict=on,reboot-timeout=100")
"""With nothing to boot on its disk, a machine is to end and not to wait for a floppy."""


class Kept(enum.Enum):
    """How a template keeps what its guest had written; its machines must have the same drives."""

    MEMORY = "memory"
    FILE = "file"
    VOLUME = "volume"


class Hardware(msgspec.Struct, frozen=True):
    """Everything about a machine that its template fixes."""

    driver: DriverName
    size: Size
    network: str
    layers: int = 1
    """How many drives its read-only part is on: one for every layer of its image. None if it
    boots from a disk that is whole in itself."""
    devices: tuple[str, ...] = ()
    """More of them: see `DEVICES`."""
    words: tuple[str, ...] = ()
    """What else an administrator wants QEMU to be told."""
    kept: Kept = Kept.MEMORY
    """Where what it writes goes, as far as a template fixes that."""

    @property
    def whole(self) -> bool:
        """Is it a machine that begins with what its disk brings along?"""
        return self.layers == 0

    @property
    def has_window(self) -> bool:
        """Can its guest and a share server see the same memory?"""
        return not self.whole and self.driver is not DriverName.USERMODE

    @property
    def has_disk(self) -> bool:
        return self.size.disk > 0 and self.kept is not Kept.MEMORY

    @property
    def scratch(self) -> int:
        """The most that the guest may write into its memory, if it was told."""
        return self.size.disk if self.kept is Kept.MEMORY else 0

    def digest(self) -> str:
        """Names the hardware by the very words that make it."""
        disk = Disk() if self.has_disk else None
        roots: list[Path | str] = [""] * self.layers
        nothing = Backing("", roots, "", 0, [0] * PORTS, 0, disk=disk)
        words = command_line(Path(), self, nothing)
        # The drive says nothing of its size, nor whether it will be a file.
        words += [self.kept.value, str(self.size.disk)]
        return hashlib.sha256("\0".join(words).encode()).hexdigest()


class Disk(msgspec.Struct, frozen=True):
    """The machine's writable disk: a plain file in its directory, an overlay over one, or a block
    device."""

    overlay: bool = False
    image: Path | None = None
    """The image that the overlay is over, if that is a disk; else it is over the template's."""
    base: str = ""
    """What the overlay is over, as the machine's process finds it."""
    device: Path | None = None
    descriptors: tuple[int, ...] = ()
    """The device, opened; its process inherits them and needs no right to open anything."""

    FILE = "disk"


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
    shares: int
    """The socket at which the guest's port meets the share server."""
    window: str = ""
    """The memory that guest and share server both see; a whole disk has none."""
    disk: Disk | None = None
    console: str = "console"
    agent: int = 0
    """For qemu-guest-agent, which only a whole disk may have."""
    seed: str = ""
    """The volume that tells a whole disk who it is."""
    tap: int = 0
    """The machine's end of its wire to a bridge."""


def translation_buffer(hardware: Hardware) -> int:
    """MiB of translated code that the machine's process may hold; with KVM there is none, but as
    much of other things as in an ordinary machine's buffer."""
    emulated = hardware.driver is not DriverName.KVM
    return TRANSLATION_BUFFER["whole" if hardware.whole and emulated else "ordinary"]


def command_line(program: Path, hardware: Hardware, backing: Backing) -> list[str]:
    """The QEMU command line, less how the machine comes to life (boot, clone or restore)."""
    size = hardware.size
    words = [str(program), "-name", f"encamp-{backing.name}", "-nodefaults", "-no-user-config"]
    words += ["-display", "none", "-no-reboot", "-sandbox", SANDBOX]
    # Without a screen the BIOS and the boot loader of a disk write to the console.
    screen = ",graphics=off" if hardware.whole else ""
    words += ["-machine", f"pc,usb=off,vmport=off,hpet=off,smbus=off{screen},memory-backend=ram"]
    if hardware.driver is DriverName.KVM:
        words += ["-accel", "kvm", "-cpu", "host"]
    else:
        buffer = translation_buffer(hardware)
        words += ["-accel", f"tcg,thread=multi,tb-size={buffer}", "-cpu", EMULATED]
    words += ["-smp", str(size.cpus), "-m", f"{size.memory // 1024}K"]
    words += ["-object", f"{backing.memory},id=ram,size={size.memory}"]
    words += ["-chardev", f"socket,id=monitor,fd={backing.monitor},server=on,wait=off"]
    words += ["-mon", "chardev=monitor,mode=control"]
    words += ["-chardev", f"file,id=console,path={backing.console},append=on"]
    words += ["-serial", "chardev:console"]
    # The first number is a console's, also where there is none.
    ports = 1 + PORTS + hardware.whole + 1
    words += ["-device", f"virtio-serial-pci,id=ports,max_ports={ports}"]
    for number, descriptor in enumerate(backing.ports):
        words += ["-chardev", f"socket,id=port{number},fd={descriptor},server=on,wait=off"]
        words += [
            "-device",
            f"virtserialport,bus=ports.0,chardev=port{number},name=encamp.{number}",
        ]
    if hardware.whole:
        words += ["-chardev", f"socket,id=agent,fd={backing.agent},server=on,wait=off"]
        words += ["-device", f"virtserialport,bus=ports.0,chardev=agent,name={AGENT_PORT}"]
    words += ["-chardev", f"socket,id=shares,fd={backing.shares},server=on,wait=off"]
    words += ["-device", f"virtserialport,bus=ports.0,chardev=shares,name={SHARES_PORT}"]
    for number, root in enumerate(backing.roots):
        words += _drive(f"root{number}", f"file={_escape(str(root))},format=raw,readonly=on")
    if backing.disk is not None:
        words += _disk(backing.disk)
    if hardware.whole:
        words += _drive("seed", f"file={_escape(backing.seed)},format=raw,readonly=on")
        words += WHOLE
    if hardware.network != "none":
        wire = "user" if hardware.network == "user" else f"tap,fd={backing.tap}"
        words += ["-netdev", f"{wire},id=network"]
        words += ["-device", "virtio-net-pci,netdev=network,romfile="]
    for device in hardware.devices:
        words += DEVICES[device]
    words += hardware.words
    if not hardware.whole:
        # Behind all others, whose names in the guest follow their order.
        words += _drive("window", f"file={backing.window},format=raw", f",serial={WINDOW}")
    return words


def drive_names(hardware: Hardware) -> tuple[list[str], str | None]:
    """What the guest's kernel calls the drives of the layers, and that of the disk."""
    letters = string.ascii_lowercase
    roots = [f"vd{letters[number]}" for number in range(hardware.layers)]
    return roots, f"vd{letters[hardware.layers]}" if hardware.has_disk else None


def _disk(disk: Disk) -> list[str]:
    words = []
    file = f"file={Disk.FILE},format=raw"
    if disk.overlay:
        kind = "raw" if disk.image is None else "qcow2"
        file = f"file={Disk.FILE},format=qcow2,backing.driver={kind}"
        file += f",backing.file.filename={disk.base}"
    elif disk.device is not None:
        for descriptor in disk.descriptors:
            words += ["-add-fd", f"fd={descriptor},set=1"]
        file = "format=raw,file.driver=host_device,file.filename=/dev/fdset/1"
    # An error goes to the guest, whose file system knows what to do; QEMU would stop it.
    return words + _drive(DISK_DRIVE, f"{file},werror=report,rerror=report")


def _drive(name: str, properties: str, shown: str = "") -> list[str]:
    """`shown`: what the guest is told of it."""
    drive = f"if=none,id={name},{properties},file.locking=off"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name}{shown}"]


def _escape(path: str) -> str:
    """QEMU splits options at commas; a doubled one stands for itself."""
    return path.replace(",", ",,")
