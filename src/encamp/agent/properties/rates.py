"""How fast a counter of the kernel's grows, from one reading of a property to the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

SAMPLE = 0.2
"""Seconds between the two looks that the first reading takes."""
SHORTEST = 0.5
"""Seconds; what was asked for again sooner than that is what it was before."""


async def rate(
    kept: dict[str, Any], look: Callable[[], tuple[float, ...]]
) -> tuple[tuple[float, ...], float]:
    """By how much each counter has grown, and in how many seconds."""
    if "growth" not in kept:
        kept["counters"], kept["time"] = look(), time.monotonic()
        await asyncio.sleep(SAMPLE)
    elif time.monotonic() - kept["time"] < SHORTEST:
        return kept["growth"], kept["seconds"]
    counters, now = look(), time.monotonic()
    # A counter that was set back, by an interface that went away, has not grown.
    growth = tuple(max(0.0, b - a) for a, b in zip(kept["counters"], counters, strict=True))
    kept["growth"], kept["seconds"] = growth, now - kept["time"]
    kept["counters"], kept["time"] = counters, now
    return kept["growth"], kept["seconds"]
