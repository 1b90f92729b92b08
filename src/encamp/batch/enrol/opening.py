"""The batch systems that machines can be nodes of."""

from __future__ import annotations

from encamp.batch.enrol.workers import Workers
from encamp.model.batch import BatchSettings, with_nodes
from encamp.model.errors import Code, EncampError


def open_workers(settings: BatchSettings | None, system: str) -> Workers:
    """How machines of this host become nodes of a batch system."""
    system = with_nodes(system)
    if settings is None or with_nodes(settings.system) != system:
        has = "none" if settings is None else settings.system
        raise EncampError(
            Code.CONFIGURATION,
            f"A machine is to become a node of {system}, and this host's batch system is {has}.",
            f"Name it in /etc/encamp/batch.yaml: system: {system}.",
        )
    if system == "slurm":
        from encamp.batch.enrol.slurm import SlurmWorkers

        return SlurmWorkers(settings)
    if system == "gridengine":
        from encamp.batch.enrol.gridengine import GridEngineWorkers

        return GridEngineWorkers(settings)
    raise EncampError(
        Code.CONFIGURATION,
        f"Machines cannot become nodes of {system}.",
        "They can with slurm, with gridengine, and with pbs where Slurm is behind it.",
    )
