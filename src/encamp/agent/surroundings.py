"""What a command finds around it in a machine: its variables, and where it starts."""

from __future__ import annotations

from encamp.model.job import Command, User
from encamp.model.machine import Machine

PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def variables_for(owner: User, machine: Machine) -> dict[str, str]:
    """The user's own, then what the image and its context say, then which machine it is."""
    return {
        "PATH": PATHS,
        "HOME": owner.home,
        "USER": owner.name,
        "LOGNAME": owner.name,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        **machine.variables,
        "ENCAMP_MACHINE": machine.id,
        "ENCAMP_ENVIRONMENT": machine.environment,
    }


def starting_points(command: Command, owner: User, machine: Machine) -> tuple[str, str | None]:
    """Where a command starts, and where if it cannot start there."""
    if command.workdir is not None or machine.workdir is None:
        return command.workdir or owner.home, None
    return machine.workdir, owner.home
