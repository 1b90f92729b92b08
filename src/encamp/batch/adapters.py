"""The batch systems that are known, by name. Other packages add theirs by an entry point."""

from __future__ import annotations

import difflib
import importlib
from functools import cache

from encamp.batch.system import BatchSystem
from encamp.model.batch import BatchSettings
from encamp.model.errors import Code, EncampError

GROUP = "encamp.batch_systems"
"""Of entry points; each is a class that is made of the settings."""

OURS = {
    "slurm": "encamp.batch.slurm.adapter:Slurm",
    "gridengine": "encamp.batch.gridengine.adapter:GridEngine",
    "pbs": "encamp.batch.pbs.adapter:Pbs",
}


@cache
def known() -> dict[str, str]:
    """Where the class of each is. Of two with one name, Encamp's own counts."""
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=GROUP)} | OURS


def open_batch_system(settings: BatchSettings) -> BatchSystem:
    """The adapter for what the settings name."""
    where = known().get(settings.system)
    if where is None:
        raise unknown(settings.system)
    module, _, name = where.partition(":")
    made = getattr(importlib.import_module(module), name)(settings)
    assert isinstance(made, BatchSystem)
    return made


def unknown(system: str) -> EncampError:
    near = difflib.get_close_matches(system, known(), n=1, cutoff=0.5)
    meant = f" Did you mean '{near[0]}'?" if near else ""
    return EncampError(
        Code.CONFIGURATION,
        f"There is no adapter for a batch system '{system}'.{meant}",
        f"Known are {', '.join(sorted(known()))}; packages add others by the entry point {GROUP}.",
    )
