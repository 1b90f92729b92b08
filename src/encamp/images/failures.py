"""Turning what goes wrong in a build into an error that somebody can act on."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encamp.home import Home
from encamp.images.build_log import kept_log
from encamp.model.errors import Code, EncampError
from encamp.model.recipe import Kind, Recipe

MIB = 1 << 20
NEEDED = {
    Kind.MINI: 160 * MIB,
    Kind.DEBIAN: 700 * MIB,
    Kind.OCI: 300 * MIB,
    Kind.ROOTFS: 300 * MIB,
    Kind.LAYER: 300 * MIB,
    Kind.DISK: 32 * MIB,
}
"""Disk that a build takes at its peak, with the packages it fetches; for what comes from
elsewhere, the least that can do."""

FULL = re.compile(r"No space left|enough free space|[Oo]ut of space|Disk quota exceeded")
NETWORK = re.compile(
    r"Could not (resolve|connect)|Failed to fetch|Cannot initiate|Unable to connect|"
    r"Connection (failed|timed out|refused)|Temporary failure resolving"
)


@contextmanager
def explained(home: Home, recipe: Recipe) -> Iterator[None]:
    """Wrap a build. What is certain to fail for lack of disk is not even begun."""
    full = fullest(home, recipe)
    if free(full) < NEEDED[recipe.kind]:
        raise disk_full(full, recipe, "")
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(fullest(home, recipe), recipe, str(error)) from error
        raise EncampError(
            Code.NOT_PERMITTED if isinstance(error, PermissionError) else Code.BUILD_FAILED,
            f"Image '{recipe.name}' could not be built: {error}.",
            f"Make sure that you may write to {home.root}.",
        ) from error
    except EncampError as error:
        if error.code is Code.DISK_FULL or FULL.search(error.detail):
            raise disk_full(fullest(home, recipe), recipe, error.detail) from error
        full = fullest(home, recipe)
        if error.code is Code.BUILD_FAILED and free(full) < NEEDED[recipe.kind]:
            # There was enough when the build began; not every program says why it failed.
            raise disk_full(full, recipe, error.detail) from error
        if error.code is Code.BUILD_FAILED and not error.hint:
            raise build_failed(home, error, recipe) from error
        raise


def build_failed(home: Home, error: EncampError, recipe: Recipe) -> EncampError:
    network = NETWORK.search(error.detail) is not None
    log = kept_log(home, recipe.name)
    hints = []
    if network:
        hints.append(
            "Without a network, an image comes from elsewhere: 'encamp image pull NAME --from"
            " REPOSITORY', or 'repositories' in settings.yaml. To build it here, 'apt-get update'"
            " must work on this host."
        )
    if log.exists():
        hints.append(f"The whole output of the build is in {log}.")
    return EncampError(
        Code.BUILD_FAILED,
        f"Image '{recipe.name}' could not be built: {error.sentence}",
        " ".join(hints) or "See the last lines of its output.",
        transient=network,
        detail=error.detail,
    )


def fullest(home: Home, recipe: Recipe) -> Path:
    """Of the places a build writes to, the one with the least room."""
    places = [home.root]
    if recipe.kind is not Kind.MINI and os.statvfs(home.root).f_flag & (os.ST_NOEXEC | os.ST_NODEV):
        # Where a workplace goes whose programs have to run.
        places.append(Path(tempfile.gettempdir()))
    return min(places, key=free)


def free(path: Path) -> int:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path).free
    return 0


def disk_full(path: Path, recipe: Recipe, detail: str) -> EncampError:
    needed = NEEDED[recipe.kind]
    return EncampError(
        Code.DISK_FULL,
        f"The disk of {path} has no room to build image '{recipe.name}': about "
        f"{needed // MIB} MiB are needed, {free(path) // MIB} MiB are free.",
        "Make room there, or set ENCAMP_HOME (and TMPDIR) to a directory on a larger disk. "
        "Nothing was left half done.",
        detail=detail,
    )
