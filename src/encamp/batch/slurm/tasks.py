"""What the variables of a step's task say about it. That is the task's own word."""

from __future__ import annotations

import re
from collections.abc import Mapping


def tasks_here(variables: Mapping[str, str]) -> int:
    """Of `2(x3),1`, what the node's place in the list says."""
    text = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE", "")
    at = number_in(variables, "SLURM_NODEID")
    for one in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", one)
        if match is None:
            return 1
        if at < int(match[2] or 1):
            return max(int(match[1]), 1)
        at -= int(match[2] or 1)
    return 1


def number_in(variables: Mapping[str, str], name: str) -> int:
    value = variables.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 7 else 0
