"""The environments a job can ask for by name."""

from __future__ import annotations

from encamp.describe.shipped import DEBIAN12, MINI
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, Size

SHIPPED = {
    environment.name: environment
    for environment in (
        Environment(
            name="mini",
            summary="BusyBox and Debian's kernel; stands in a fraction of a second",
            image=MINI,
            size=Size(cpus=1, memory=128 * MIB),
        ),
        Environment(
            name="debian12",
            summary="Debian 12 with the tools a job expects",
            image=DEBIAN12,
            size=Size(cpus=1, memory=512 * MIB),
        ),
    )
}

DEFAULT = "mini"


def find_environment(name: str) -> Environment:
    environment = SHIPPED.get(name)
    if environment is None:
        raise EncampError(
            Code.UNKNOWN_ENVIRONMENT, f"There is no environment '{name}'.", _nearest(name)
        )
    return environment


def _nearest(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, SHIPPED, n=3, cutoff=0.4)
    if near:
        return f"Did you mean {' or '.join(repr(other) for other in near)}?"
    return f"There are: {', '.join(sorted(SHIPPED))}."
