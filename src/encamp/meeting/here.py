"""Which host this is: how a client finds out whether an agent is on its own."""

from __future__ import annotations

from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Names this host from when it was booted until it goes down; nothing, if nobody knows."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
