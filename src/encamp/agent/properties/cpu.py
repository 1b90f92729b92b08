"""Processors of the host: how many, and how busy."""

from __future__ import annotations

import os
from pathlib import Path

from encamp.agent.properties.plugin import Asked, NoValueError, one_of
from encamp.agent.properties.rates import rate
from encamp.model.property import Value

LOADS = {"1": 0, "5": 1, "15": 2}


async def cpu(asked: Asked) -> Value:
    """`count`, those the agent may use; `speed`, the megahertz of the fastest, at its fastest where
    the kernel tells; or `used`, the part of all processors' time since the last reading that was
    not idle."""
    what = one_of(asked, {"count": "count", "speed": "speed", "used": "used"})
    if what == "count":
        return len(os.sched_getaffinity(0))
    if what == "speed":
        return _speed()
    (idle, total), _ = await rate(asked.kept, _times)
    return round(1.0 - idle / total, 4) if total > 0 else 0.0


def _speed() -> int:
    fastest = [
        int(path.read_text()) // 1000
        for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/cpuinfo_max_freq")
    ]
    if not fastest:
        with open("/proc/cpuinfo") as file:
            lines = [line.partition(":") for line in file]
        fastest = [int(float(value)) for key, _, value in lines if key.strip() == "cpu MHz"]
    if not fastest:
        raise NoValueError("The kernel does not tell how fast the processors are.")
    return max(fastest)


def _times() -> tuple[float, float]:
    """Idle and all time of all processors since the host was started."""
    with open("/proc/stat") as file:
        _, *fields = file.readline().split()
    # user, nice, system, idle, waiting for a disk, interrupts twice, stolen; and then the time of
    # guests, which is part of the first two.
    times = [float(field) for field in fields[:8]]
    return times[3] + times[4], sum(times)


def load(asked: Asked) -> Value:
    """The load averaged over `1`, `5` or `15` minutes."""
    which: int = one_of(asked, LOADS)
    try:
        return round(os.getloadavg()[which], 2)
    except OSError as error:
        raise NoValueError("The kernel does not tell the load.") from error
