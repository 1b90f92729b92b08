"""Which environments this host could have another worker node of, for those who choose a host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from encamp.agent.bait.failing import make_directory
from encamp.agent.journal import Journal
from encamp.describe.settings import load_settings
from encamp.home import Home
from encamp.model.batch import BatchSettings
from encamp.model.errors import EncampError
from encamp.model.machine import ALIVE, State

KEEP_PLACE = (*ALIVE, State.SUSPENDED)
"""States in which a machine has its address to itself."""


def can_enrol(home: Home, settings: BatchSettings, environments: list[str]) -> list[str]:
    """Those of these environments: there is an address on the bridge, and nodes of it have not just
    failed to come about here."""
    if not _has_place(home):
        return []
    return [name for name in environments if not _has_failed(home, name, settings.pause)]


def _has_place(home: Home) -> bool:
    bridge = load_settings().bridge
    if bridge is None:
        return False
    machines = Journal(home).all()
    taken = {one.link.address for one in machines if one.link and one.state in KEEP_PLACE}
    return any(address not in taken for address in bridge.range())


# ── nodes that did not come about ────────────────────────────────────────────────────────────────


@contextmanager
def trying(home: Home, environment: str) -> Iterator[None]:
    """Around the making of a node: if it fails, others are asked for nodes of it for a while."""
    path = _mark(home, environment)
    try:
        yield
    except EncampError:
        with suppress(OSError):
            make_directory(path.parent)
            path.write_bytes(b"")
            os.utime(path)
        raise
    with suppress(OSError):
        path.unlink()


def _has_failed(home: Home, environment: str, pause: float) -> bool:
    try:
        return 0 <= time.time() - _mark(home, environment).stat().st_mtime < pause
    except OSError:
        return False


def _mark(home: Home, environment: str) -> Path:
    return home.root / "batch" / "nodes-failed" / environment
