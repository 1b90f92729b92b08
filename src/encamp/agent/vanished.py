"""Machines whose directory somebody has removed under them: nothing can be done with one any more,
and nobody would ever end its process."""

from __future__ import annotations

import os
from contextlib import suppress

from encamp.home import Home
from encamp.machines.process import Process
from encamp.machines.standing import Standing, standing
from encamp.model.errors import EncampError


def end_vanished(home: Home) -> list[Standing]:
    """End those of this home, and say which; if it is root's agent's, those of all for whom it
    makes machines. What belongs to other homes is not ours."""
    ended = []
    for machine in standing():
        with suppress(OSError, EncampError):
            if _has_vanished(machine, home):
                process = Process(machine.pid)
                try:
                    # The number may have passed on to another process since we looked.
                    if _has_vanished(machine, home):
                        process.kill_now()
                        ended.append(machine)
                finally:
                    process.close()
    return ended


def _has_vanished(machine: Standing, home: Home) -> bool:
    """Did it work in a machine's directory of this home, and is that gone? The kernel knows."""
    if machine.owner == os.geteuid():
        place = home.machines
    elif os.geteuid() == 0:
        place = home.owners / str(machine.owner) / "machines"
    else:
        return False
    where = f"/proc/{machine.pid}/cwd"
    there = os.path.realpath(place)
    return (
        os.readlink(where) == f"{there}/{machine.name}/run (deleted)"  # noqa: PTH115
        and os.stat(where).st_nlink == 0  # noqa: PTH116
    )
