"""Finding a place for a machine on the bridge of its host."""

from __future__ import annotations

from encamp.agent.journal import Journal
from encamp.describe.settings import load_settings
from encamp.home import Home
from encamp.machines.tap import Tap, take
from encamp.model.errors import Code, EncampError
from encamp.model.link import Bridge
from encamp.model.machine import State


def host_bridge() -> Bridge:
    """The bridge of this host, as its settings name it."""
    bridge = load_settings().bridge
    if bridge is None:
        raise EncampError(
            Code.CONFIGURATION,
            "This host has no bridge for machines.",
            "Name one in /etc/encamp/settings.yaml: bridge: {name: br0, addresses:"
            " 10.99.0.100-10.99.0.199/24}. Or ask for '--network user'.",
        )
    return bridge


def take_place(home: Home) -> Tap:
    """A wire to the bridge, with an address that is nobody else's as long as that is open."""
    bridge = host_bridge()
    suspended = (machine for machine in Journal(home).all() if machine.state is State.SUSPENDED)
    return take(bridge, {machine.link.address for machine in suspended if machine.link})
