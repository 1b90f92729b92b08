"""Where a manager's door is."""

from __future__ import annotations

from pathlib import Path

from encamp.home import Home
from encamp.model.site import Site

MANAGER_SOCKET = "manager.sock"

AGENT_DOOR = Path("/run/encamp/agent")
"""Where root's agent tells what came to its host from a batch system."""


def manager_door(site: Site, home: Home) -> Path:
    """Where the manager of this site, whose home this is, can be asked."""
    return Path(site.door) if site.door else home.root / MANAGER_SOCKET
