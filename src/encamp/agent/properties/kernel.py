"""The host's kernel."""

from __future__ import annotations

import os
import time

from encamp.agent.properties.plugin import Asked, one_of
from encamp.machines.process import confinement
from encamp.model.property import Value


def kernel(asked: Asked) -> Value:
    """`release`, `version`, `architecture`, `hostname`, `boot_time` (seconds of 1970), `uptime`
    (seconds), or the `confinement` of machines: `landlock 7`, or `none`."""
    found = os.uname()
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    value: Value = one_of(
        asked,
        {
            "release": found.release,
            "version": found.version,
            "architecture": found.machine,
            "hostname": found.nodename,
            "boot_time": round(time.time() - uptime, 0),
            "uptime": round(uptime, 1),
            "confinement": confinement(),
        },
    )
    return value
