"""Which driver a machine has: the one place that knows all of them."""

from __future__ import annotations

from encamp.machines import qemu, usermode
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import Blueprint, Boot, Engine, Origin
from encamp.machines.process import Process
from encamp.model.driver import DriverName


def launch(blueprint: Blueprint, origin: Origin) -> Engine:
    """Start the machine's process. It is not awake yet: see `wake`."""
    if blueprint.hardware.driver is DriverName.USERMODE:
        assert isinstance(origin, Boot), "its machines have no templates and no contexts"
        return usermode.launch(blueprint, origin)
    return qemu.launch(blueprint, origin)


async def wake(engine: Engine, origin: Origin) -> None:
    """Load the state of a machine that was not booted."""
    if isinstance(engine, qemu.Qemu):
        await qemu.wake(engine, origin)


def find(directory: MachineDirectory) -> Engine | None:
    """The process of a machine that somebody started earlier."""
    process = Process.holding(directory.lock)
    if process is None:
        return None
    kind = usermode.UserMode if usermode.is_one(directory) else qemu.Qemu
    return kind(directory, process)
