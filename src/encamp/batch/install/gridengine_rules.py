"""batch.yaml's rules as the job submission verifier of Grid Engine reads them: a line each."""

from __future__ import annotations

from collections.abc import Iterable

from encamp.batch.system import AROUND
from encamp.model.batch import BatchSettings
from encamp.model.wanted import LEAST_MEMORY

HEAD = "# Made by 'encamp batch install' from batch.yaml. Change that, and run it again."
COLUMNS = "# environment\tqueue\tproject\tuser\tgroup"
ANY, LEFT_ALONE = "-", "none"
ALLOWED = "=environments"
"""Begins the line with those that jobs may name."""
DESCRIPTIONS = "=descriptions"
"""Begins the line with the files that describe the environments, where none are listed."""
NODES = "=nodes"
"""Begins the line with those whose machines are worker nodes."""
OTHER_NODES = "=other_nodes"
"""Begins the line with those whose machines are worker nodes of another batch system."""
MEMORY = "=memory"
"""Begins the line with the bytes that a job needs which has its memory limited."""


def rules_text(
    settings: BatchSettings,
    nodes: Iterable[str] = (),
    descriptions: Iterable[str] = (),
    other_nodes: Iterable[str] = (),
) -> str:
    """`nodes`: environments whose machines are worker nodes; `other_nodes`: those whose machines
    are worker nodes of another batch system. `descriptions`: files that describe the environments,
    where batch.yaml does not list those that jobs may name."""
    lines = [HEAD, COLUMNS, f"{MEMORY}\t{LEAST_MEMORY + AROUND}"]
    if nodes:
        lines.append("\t".join([NODES, *nodes]))
    if other_nodes:
        lines.append("\t".join([OTHER_NODES, *other_nodes]))
    if settings.environments:
        lines.append("\t".join([ALLOWED, *settings.environments]))
    elif descriptions:
        lines.append("\t".join([DESCRIPTIONS, *descriptions]))
    for rule in settings.rules:
        words = (rule.queue, rule.account, rule.user, rule.group)
        lines.append("\t".join([rule.environment or LEFT_ALONE, *(word or ANY for word in words)]))
    return "\n".join(lines) + "\n"
