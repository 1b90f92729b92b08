"""What a command in a machine cannot know of its disk: the host's own has refused to write."""

from __future__ import annotations

from encamp.home import Home
from encamp.machines.engine import Engine
from encamp.machines.room import is_full
from encamp.model.errors import EncampError
from encamp.model.machine import Machine
from encamp.model.storage import Storage


async def failed_writes(machine: Machine, engine: Engine) -> int:
    """How often the machine's disk could not be written to until now."""
    if machine.storage is Storage.RAM or not machine.size.disk:
        return 0
    try:
        return await engine.failed_writes()
    except EncampError:
        return 0  # What became of the machine is told by whoever saw its command end.


async def disk_errors(
    home: Home, machine: Machine, engine: Engine, before: int = 0
) -> tuple[str, ...]:
    """Sentences about what the machine could not write while a command ran. Also of one that ended
    well: what programs have written is put on the disk later, and few ask what became of it."""
    failed = await failed_writes(machine, engine) - before
    if failed <= 0:
        return ()
    sentence = f"The disk of machine {machine.name} could not be written to ({failed} times)"
    if is_full(home.root):
        return (f"{sentence}: {home.root} is full. Make room there.",)
    return (f"{sentence}: the host's own disk refused it; its kernel's log tells more.",)
