"""Encamp gives a batch job the machine it asks for.

`from encamp import Client` is how programs ask a site for it: see docs/api.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from encamp.client import AsyncClient as AsyncClient
    from encamp.client import Client as Client

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """The clients are loaded when they are wanted: whoever runs a job in a machine must not wait
    for them."""
    if name in ("AsyncClient", "Client"):
        from encamp import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
