"""Drivers: what a machine can be made of on a host, and what each of them can do."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.errors import Code, EncampError
from encamp.model.size import Size
from encamp.model.storage import Storage


class Isolation(enum.Enum):
    """What keeps a machine's guest in, the strongest first."""

    HARDWARE = "hardware"
    """The processor's own support for virtual machines."""
    KERNEL = "kernel"
    """A kernel of the machine's own, without such support."""
    NAMESPACE = "namespace"
    """The host's kernel, or a machine's kernel that its programs can overcome, in namespaces."""

    def satisfies(self, least: Isolation) -> bool:
        order = list(Isolation)
        return order.index(self) <= order.index(least)


class DriverName(enum.Enum):
    KVM = "kvm"
    """QEMU with hardware virtualization."""
    EMULATION = "emulation"
    """QEMU, which carries the guest's instructions out itself."""
    USERMODE = "usermode"
    """A Linux kernel that is an ordinary process."""


class Driver(msgspec.Struct, frozen=True):
    """The facts by which a driver is chosen, or refused with a reason."""

    name: DriverName
    shown: str
    """What lists and timings call a machine that it made."""
    isolation: Isolation
    most_cpus: int | None = None
    """None: as many as the host has."""
    clones: bool = True
    """Machines are made from templates."""
    suspends: bool = True
    """A machine's state can be written to a file."""
    whole_disks: bool = True
    """It starts disks that bring their own boot loader."""
    devices: bool = True
    """Machines can have devices beyond what every machine has."""
    networks: tuple[str, ...] = ("none", "user", "bridge")
    storages: tuple[Storage, ...] = tuple(Storage)
    weaker: Isolation | None = None
    """It is faster where this isolation is enough."""

    def isolation_for(self, least: Isolation) -> Isolation:
        """What a machine gets that takes no weaker one."""
        if self.weaker is not None and self.weaker.satisfies(least):
            return self.weaker
        return self.isolation


DRIVERS = {
    driver.name: driver
    for driver in (
        Driver(DriverName.KVM, "KVM", Isolation.HARDWARE),
        Driver(DriverName.EMULATION, "emulated", Isolation.KERNEL),
        Driver(
            DriverName.USERMODE,
            "user-mode",
            Isolation.KERNEL,
            most_cpus=1,
            clones=False,
            suspends=False,
            whole_disks=False,
            devices=False,
            networks=("none",),
            storages=(Storage.AUTO, Storage.RAM, Storage.SPARSE, Storage.REFLINK),
            weaker=Isolation.NAMESPACE,
        ),
    )
}


class DriverError(EncampError):
    """The driver or the isolation that was asked for cannot be had. Others may do without, so
    neither the environment nor the host is to blame."""


class Wanted(msgspec.Struct, frozen=True):
    """What a machine is to have, as far as drivers differ in it."""

    size: Size
    network: str
    storage: Storage
    isolation: Isolation
    whole_disk: bool
    devices: bool
    """Devices of an environment, or words of an administrator's for QEMU."""
    suspended: bool
    """It is to be suspended after its job."""


def lacks(driver: Driver, wanted: Wanted) -> str | None:
    """What the driver cannot give, as the end of a sentence; None if it can give all."""
    if not driver.isolation.satisfies(wanted.isolation):
        return f"its isolation is '{driver.isolation.value}'"
    if driver.most_cpus is not None and wanted.size.cpus > driver.most_cpus:
        return f"its machines have {driver.most_cpus} processor"
    if wanted.network not in driver.networks:
        return f"its machines have no network '{wanted.network}'"
    if wanted.storage not in driver.storages:
        return f"its machines have no storage '{wanted.storage.value}'"
    if wanted.whole_disk and not driver.whole_disks:
        return "it cannot start a whole disk"
    if wanted.devices and not driver.devices:
        return "its machines have no further devices"
    if wanted.suspended and not driver.suspends:
        return "its machines cannot be suspended"
    return None


def check_driver(driver: Driver, wanted: Wanted) -> None:
    """Refuse a driver that somebody insists on and that cannot give what is wanted."""
    lack = lacks(driver, wanted)
    if lack is None:
        return
    others = [name.value for name, other in DRIVERS.items() if lacks(other, wanted) is None]
    raise DriverError(
        Code.USAGE,
        f"The driver '{driver.name.value}' cannot make this machine: {lack}.",
        f"Leave --driver out, or name one that can: {', '.join(others)}."
        if others
        else "Ask for less: no driver can make it.",
    )
