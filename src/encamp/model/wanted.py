"""What somebody wants a machine to be, checked before anything is made of it."""

from __future__ import annotations

import re

from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import MachineRequest
from encamp.model.size import MIB, Size

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,62}")
LEAST_MEMORY = 96 * MIB
"""With less, Debian's kernel does not get through its own start."""
LEAST_DISK = 16 * MIB
NETWORKS = ("none", "user", "bridge")


def wanted_size(request: MachineRequest, environment: Environment) -> Size:
    default = environment.size
    size = Size(
        cpus=default.cpus if request.cpus is None else request.cpus,
        memory=default.memory if request.memory is None else request.memory,
        disk=default.disk if request.disk is None else request.disk,
    )
    if size.cpus < 1:
        raise EncampError(Code.USAGE, f"A machine needs at least one processor, not {size.cpus}.")
    if size.memory < LEAST_MEMORY:
        raise EncampError(
            Code.USAGE, f"A machine needs at least {LEAST_MEMORY // MIB} MiB of memory."
        )
    if 0 < size.disk < LEAST_DISK:
        raise EncampError(Code.USAGE, f"A disk has at least {LEAST_DISK // MIB} MiB.")
    # QEMU wants whole pages; a whole MiB also keeps the number of templates down.
    return Size(size.cpus, size.memory // MIB * MIB, size.disk // MIB * MIB)


def check_network(network: str | None) -> None:
    if network is not None and network not in NETWORKS:
        raise EncampError(
            Code.USAGE,
            f"There is no network {network[:60]!r}.",
            f"There are: {', '.join(NETWORKS)}.",
        )


def check_name(name: str | None) -> None:
    if name is not None and not NAME.fullmatch(name):
        raise EncampError(
            Code.USAGE,
            f"'{name}' cannot be a machine's name.",
            "Use letters, digits and '-', up to 63, beginning with a letter: it becomes the host"
            " name.",
        )
