"""The wire between a machine and a bridge of its host: a tap device.

Root makes it and hands its descriptor to the machine's process, which needs no rights for it. It is
never made to stay: the kernel takes it away when the last process that has it ends, however that
ends. Its name is made from the machine's address, so that an address is taken as long as somebody
has it, and whoever asks for it then is refused by the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Container
from pathlib import Path
from types import TracebackType

from encamp.model.errors import Code, EncampError
from encamp.model.link import Bridge, Link

TUN = "/dev/net/tun"

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR, IFF_TUN_EXCL = 0x0002, 0x1000, 0x4000, 0x8000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFHWADDR, SIOCBRADDIF = 0x8913, 0x8914, 0x8924, 0x89A2
IFF_UP = 0x1
FLAGS = struct.Struct("16sH22x")
"""The kernel's `struct ifreq` with flags in it."""
INDEX = struct.Struct("16si20x")
"""The same with the number of an interface."""
HARDWARE = struct.Struct("16sH6s16x")
"""The same with the kind of an interface and its hardware address."""
ETHERNET = 1


class Tap:
    def __init__(self, descriptor: int, device: str, link: Link | None = None) -> None:
        self.descriptor = descriptor
        self.device = device
        self.link = link

    @classmethod
    def loose(cls) -> Tap:
        """One that leads nowhere, for a machine that is only made into a template."""
        return cls._open("encamp-t%d")

    @classmethod
    def to(cls, link: Link) -> Tap:
        """One that leads to the link's bridge. `FileExistsError`: somebody has that address."""
        with contextlib.ExitStack() as undo:
            tap = undo.enter_context(cls._open(link.device))
            tap.link = link
            _without_addresses(tap.device)
            _attach(tap.device, link)
            undo.pop_all()
        return tap

    @classmethod
    def _open(cls, device: str) -> Tap:
        try:
            fd = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(error) from error
        try:
            flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_TUN_EXCL
            made = fcntl.ioctl(fd, TUNSETIFF, FLAGS.pack(device.encode(), flags))
        except OSError as error:
            os.close(fd)
            if error.errno == errno.EBUSY:
                raise FileExistsError(error.errno, "The address is taken", device) from error
            raise _refused(error) from error
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, FLAGS.unpack(made)[0].rstrip(b"\0").decode())

    def close(self) -> None:
        """Let go of it; the machine's process may have it still."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Tap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def take(bridge: Bridge, kept: Container[str]) -> Tap:
    """The wire to the first address of the bridge's that nobody has.

    `kept`: addresses of machines that have no process now, and will come back."""
    for address in bridge.range():
        if address not in kept:
            with contextlib.suppress(FileExistsError):
                return Tap.to(Link.on(bridge, address))
    raise EncampError(
        Code.NO_ROOM,
        f"All addresses of bridge {bridge.name} ({bridge.addresses}) are taken.",
        "Wait until a machine there has ended, or let 'bridge.addresses' in the settings have"
        " more of them.",
        transient=True,
    )


def again(link: Link) -> Tap:
    """The wire of a machine that has been put into a file, and wakes up."""
    try:
        return Tap.to(link)
    except FileExistsError as error:
        raise EncampError(
            Code.NO_ROOM,
            f"Another machine on this host has the address {link.address} by now.",
            "Wait until that one has ended.",
            transient=True,
        ) from error


def _attach(device: str, link: Link) -> None:
    bridge = link.bridge
    # A bridge calls itself by the lowest hardware address of its ports. Were that a machine's, it
    # would change when that one ends, and nobody would find the host for a while.
    high = bytes((0xFE, *bytes.fromhex(link.mac.replace(":", ""))[1:]))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
            fcntl.ioctl(control, SIOCSIFHWADDR, HARDWARE.pack(device.encode(), ETHERNET, high))
            index = socket.if_nametoindex(device)
            fcntl.ioctl(control, SIOCBRADDIF, INDEX.pack(bridge.encode(), index))
            asked = fcntl.ioctl(control, SIOCGIFFLAGS, FLAGS.pack(device.encode(), 0))
            flags = FLAGS.unpack(asked)[1]
            fcntl.ioctl(control, SIOCSIFFLAGS, FLAGS.pack(device.encode(), flags | IFF_UP))
    except OSError as error:
        why = "There is no such bridge" if error.errno == errno.ENODEV else error.strerror
        raise EncampError(
            Code.CONFIGURATION,
            f"A machine cannot be connected to bridge {bridge}: {why}.",
            f"'ip link add {bridge} type bridge' makes one; 'bridge' in settings.yaml names it.",
        ) from error


def _without_addresses(device: str) -> None:
    """The host speaks to the bridge, and has no business on the wire itself."""
    with contextlib.suppress(OSError):
        Path(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6").write_text("1")


def _refused(error: OSError) -> EncampError:
    if error.errno in (errno.EPERM, errno.EACCES):
        # Whoever asks for it does so in vain on every host: that is no fault of this one.
        return EncampError(
            Code.USAGE,
            "Only root can connect a machine to a bridge.",
            "Ask for '--network user', or let whoever runs this host start it.",
        )
    return EncampError(
        Code.CONFIGURATION,
        f"This host cannot make tap devices: {error.strerror}.",
        "Its kernel needs the module 'tun'.",
    )
