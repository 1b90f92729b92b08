"""Machines of other users, for root: seen and ended as processes.

Root never works in another user's directory, where a link could lead it astray. The owner's next
command finds that the process is gone and puts the record right.
"""

from __future__ import annotations

import os

import msgspec

from encamp.machines.process import Process
from encamp.machines.standing import standing


class Stranger(msgspec.Struct, frozen=True):
    """A machine's process that this home knows nothing about."""

    pid: int
    id: str
    owner: int
    memory: int


def strangers(own: set[str]) -> list[Stranger]:
    """All machines on this host but those with these ids."""
    return [
        Stranger(machine.pid, machine.name, machine.owner, machine.memory)
        for machine in standing()
        if machine.name not in own
    ]


async def end(stranger: Stranger) -> bool:
    """End a stranger's process; False if it had ended by itself."""
    try:
        process = Process(stranger.pid)
    except ProcessLookupError:
        return False
    try:
        # The number may have passed on to another process since we looked.
        still = any(m.pid == stranger.pid and m.name == stranger.id for m in standing())
        if still:
            await process.kill()
        return still
    finally:
        process.close()


def may_see_others() -> bool:
    return os.geteuid() == 0 and not os.environ.get("ENCAMP_HOME")
