"""Is there a site to go through? The manager's door on this host says so.

`encamp run`, `start`, `exec` and `shell` go through the site if ENCAMP_DOOR names a door, or if the
door is there that 'door:' in site.yaml names, one's own in ENCAMP_HOME, or the system's. Without
one, or with --local, they work alone, on this host.
"""

from __future__ import annotations

import os
from pathlib import Path

from encamp.describe.places import daemon_directory, site_directory
from encamp.home import SYSTEM_HOME, default_home

SITE = "site.yaml"
MANAGER_SOCKET = "manager.sock"


def site_door(*, local: bool = False) -> Path | None:
    """The manager's door; None: alone. On the way of every job, so nothing is read in vain."""
    if local:
        return None
    if os.environ.get("ENCAMP_DOOR"):
        return _door()
    for directory in {daemon_directory(), site_directory()}:
        if os.path.exists(f"{directory}/{SITE}"):  # noqa: PTH110
            found = _door()
            return found if found.is_socket() else None
    own = default_home().root / MANAGER_SOCKET
    if os.environ.get("ENCAMP_HOME") or own.exists():
        return own if own.is_socket() else None
    system = SYSTEM_HOME / MANAGER_SOCKET
    return system if system.is_socket() else None


def _door() -> Path:
    from encamp.cli.asking import door

    return door()


def this_host() -> str:
    """What this host's agent is called, if it has one."""
    from encamp.describe.site_file import load_site

    site = load_site()
    return (site.host if site is not None else None) or os.uname().nodename
