"""Where a batch system's own commands are on this host."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from encamp.model.batch import Offered, Reads


def offered(names: Mapping[str, Reads], where: Callable[[str], str] = str) -> dict[str, Offered]:
    """Those of the commands that this host has. `where`: their path, or the name that everybody
    finds them by."""
    found = {}
    for name, reads in names.items():
        path = shutil.which(where(name))
        if path is not None:
            found[name] = Offered(words=(str(Path(path).absolute()),), reads=reads)
    return found
