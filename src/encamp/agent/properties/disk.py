"""The file systems of the host."""

from __future__ import annotations

import os

from encamp.agent.properties.plugin import Asked, NoValueError
from encamp.model.property import Value


def disk(asked: Asked) -> Value:
    """`total`, `free` (for everybody but root) or `used`, of the file system that holds a path;
    the agent's home if none is given."""
    what, path = (*asked.parameters, *("", ""))[:2]
    if what not in ("total", "free", "used") or len(asked.parameters) > 2:
        raise NoValueError("'disk' takes one of total, free, used, and then perhaps a path.")
    found = os.statvfs(path or _existing(asked))
    blocks = {
        "total": found.f_blocks,
        "free": found.f_bavail,
        "used": found.f_blocks - found.f_bfree,
    }
    return blocks[what] * found.f_frsize


def _existing(asked: Asked) -> str:
    """The home, or before it is made, the directory it will be in."""
    path = asked.home.root
    while not path.exists() and path != path.parent:
        path = path.parent
    return str(path)
