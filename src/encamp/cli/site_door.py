"""Is there a site to go through?

`encamp run`, `start`, `exec` and `shell` go through the site if ENCAMP_DOOR names a door; if
ENCAMP_URL or a login that was saved say where its manager is; or if the door is there that 'door:'
in site.yaml names, one's own in ENCAMP_HOME, or the system's. Without any, or with --local, they
work alone, on this host.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from encamp.describe.places import daemon_directory, site_directory
from encamp.home import SYSTEM_HOME, default_home, login_path

if TYPE_CHECKING:
    from encamp.door.client import AnyDoor, FarDoor

SITE = "site.yaml"
MANAGER_SOCKET = "manager.sock"


def site_door(*, local: bool = False) -> AnyDoor | None:
    """The manager's door; None: alone. On the way of every job, so nothing is read in vain."""
    if local:
        return None
    chosen = os.environ.get("ENCAMP_DOOR")
    if chosen:
        return Path(chosen).absolute()
    if _is_far():
        return far_door()
    for directory in {daemon_directory(), site_directory()}:
        if os.path.exists(f"{directory}/{SITE}"):  # noqa: PTH110
            found = _near_door()
            return found if found.is_socket() else None
    own = default_home().root / MANAGER_SOCKET
    if os.environ.get("ENCAMP_HOME") or own.exists():
        return own if own.is_socket() else None
    system = SYSTEM_HOME / MANAGER_SOCKET
    return system if system.is_socket() else None


def is_told_where() -> bool:
    """Has the user said where the manager is?"""
    return bool(os.environ.get("ENCAMP_DOOR")) or _is_far()


def _is_far() -> bool:
    return bool(os.environ.get("ENCAMP_URL")) or os.path.lexists(login_path())


def far_door() -> FarDoor | None:
    """The door of the manager that ENCAMP_URL or a login name."""
    if not _is_far():
        return None
    from encamp.client.far_door import HttpDoor
    from encamp.client.place import Place

    return HttpDoor(Place())


def _near_door() -> Path:
    from encamp.cli.asking import near_door

    return near_door()


def this_host() -> str:
    """What this host's agent is called, if it has one."""
    from encamp.describe.site_file import load_site

    site = load_site()
    return (site.host if site is not None else None) or os.uname().nodename
