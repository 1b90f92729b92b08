"""One benchmark, run where nothing else has run before it."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

from bench.ground import prepared
from bench.report import Report, machine
from encamp.model.errors import EncampError


def measure(name: str, quick: bool) -> tuple[Report, str]:
    """Run a benchmark; returns what it found and under which circumstances."""
    # Being told to end is no reason to leave machines behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    load = os.getloadavg()[0]
    try:
        with prepared() as ground:
            report: Report = import_module(f"bench.{name}").measure(ground, quick=quick)
            accelerator = ground.plan.hardware.driver.value
    except EncampError as error:
        # Only what pickles gets back to the process that asked.
        raise RuntimeError(f"{error.sentence} {error.hint}\n{error.detail}") from None
    return report, f"{machine()}, {accelerator}; load average {load:.1f} when it began"
