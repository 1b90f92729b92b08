"""Why a command in a machine may have failed although nothing is wrong with it: the host's disk."""

from __future__ import annotations

from encamp.home import Home
from encamp.machines.qemu import Engine
from encamp.machines.room import is_full
from encamp.model.errors import EncampError
from encamp.model.machine import Machine
from encamp.model.storage import Storage


async def disk_errors(home: Home, machine: Machine, engine: Engine) -> tuple[str, ...]:
    """Sentences about what the machine could not write; asked for when a command has failed."""
    if machine.storage is Storage.RAM or not machine.size.disk:
        return ()
    try:
        failed = await engine.failed_writes()
    except EncampError:
        return ()  # What became of the machine is told by whoever saw its command end.
    if not failed:
        return ()
    sentence = f"The disk of machine {machine.name} could not be written to ({failed} times)"
    if is_full(home.root):
        return (f"{sentence}: {home.root} is full. Make room there.",)
    return (f"{sentence}: the host's own disk refused it; its kernel's log tells more.",)
