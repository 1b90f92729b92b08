"""What room there is on this host for machines of jobs that may come."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from encamp.agent.bait.failing import Failing
from encamp.agent.bait.opening import Host, described
from encamp.agent.owned import believed, disk_growth, everybodys
from encamp.agent.promised import counting
from encamp.home import Home
from encamp.machines.room import RESERVE, available_memory, overcommit
from encamp.machines.standing import standing


def host_now(home: Home, failing: Failing, now: Callable[[], float]) -> Host:
    """As machines are counted before one is made; those that stand idle give way to it."""
    machines = standing()
    others = counting(home)(machines)
    waiting = {(uid, one.id) for uid, one in believed(everybodys(home)) if one.idle}
    idle = [one for one in machines if (one.owner, one.name) in waiting]
    left = int((available_memory() - RESERVE) * overcommit()) - others.memory
    rows = failing.closing(now())
    return Host(
        memory=left + sum(one.used + one.growth for one in idle),
        disk=shutil.disk_usage(_existing(home)).free - others.disk - disk_growth(home),
        machines=others.machines - len(idle),
        failing=described([(name, row.failures) for name, row in rows.items()]),
    )


def _existing(home: Home) -> str:
    """The home, or before it is made, the directory it will be in."""
    path = home.root
    while not path.exists() and path != path.parent:
        path = path.parent
    return os.fspath(path)
