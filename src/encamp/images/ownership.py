"""Whose directories are: images are used in place only where nobody else can write."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path


def trusted(shared: Path) -> bool:
    """Whether only root can have put images there."""
    return ours_alone(shared, shared / "images", owners={0})


def ours_alone(*paths: Path, owners: Collection[int] | None = None) -> bool:
    """Whether nobody but root and this account can write there."""
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            return False
        if found.st_uid not in (owners or {0, os.geteuid()}):
            return False
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return True


def files_of(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []
