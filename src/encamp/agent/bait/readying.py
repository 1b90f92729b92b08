"""Machines that are made ready before a job of the batch system comes: such as it would get."""

from __future__ import annotations

import msgspec

from encamp.agent.bait.choosing import choose_shares
from encamp.agent.caller import caller
from encamp.describe.batch_file import load_batch_settings
from encamp.model.environment import Environment
from encamp.model.job import MachineRequest


def everybodys_shares() -> tuple[str, ...]:
    """The directories that all jobs of this host's batch system find inside. What the site says is
    the agent's to know."""
    settings = load_batch_settings()
    return () if settings is None else settings.shares


def for_batch_jobs(
    machine: MachineRequest, environment: Environment, everybodys: tuple[str, ...]
) -> MachineRequest:
    """As for a job that begins in its owner's home. For a process with the owner's rights."""
    home, taken = caller().home, [share.path for share in environment.shares]
    return msgspec.structs.replace(machine, shares=choose_shares(everybodys, home, home, taken))
