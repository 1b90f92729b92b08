"""Which bus a site has."""

from __future__ import annotations

from collections.abc import Sequence

from encamp.bus.bus import Bus, Handler
from encamp.model.errors import Code, EncampError
from encamp.model.site import Site


def open_bus(
    site: Site,
    name: str,
    groups: Sequence[str],
    handler: Handler,
    *,
    patience: float | None = None,
    rank: int = 0,
) -> Bus:
    """A participant's connection, to be opened by `async with`.

    Until a server answers it is tried again, for ever or for `patience` seconds. A server that
    refuses the credential is an error at once.
    """
    if not site.bus:
        raise EncampError(
            Code.CONFIGURATION,
            "This site has no message bus: 'bus' in site.yaml names no server.",
            "'encamp serve' needs none; 'encamp site init' sets up a site that has one.",
        )
    from encamp.bus.nats import NatsBus

    return NatsBus(site, name, groups, handler, patience=patience, rank=rank)
