"""Packing a root file system, given as a tar archive, into the form machines read it from."""

from __future__ import annotations

import os
from pathlib import Path

from encamp import programs
from encamp.images.portion import Portion
from encamp.model.recipe import EPOCH

BLOCK_SIZE = "64K"
"""Under emulation, reading all of debian12 takes 5.5 s, as fast as without compression (5.2 s);
6.3 s with blocks of 128K and 20 s with 1M, for files only 6 % and 10 % smaller."""
MEMORY = "64M"
"""It would read everything at once and take a quarter of the host's memory for it."""
PROCESSORS = 4
"""A build shares the host with machines at work."""


def squash(
    tar: Path,
    target: Path,
    progress: Portion,
    *,
    all_root: bool,
    hold: tuple[int, ...] = (),
) -> None:
    """From an archive, not from a directory: owners in it need no right to set on the host."""
    what = "packing the root file system"
    # The archive says who owns what, except the root itself: that goes to whoever packs.
    as_root = () if all_root or os.geteuid() == 0 else ("unshare", "--map-root-user")
    size = max(1, tar.stat().st_size)
    with tar.open("rb") as archive:
        # The program reads through the same open file, so its position is ours to see.
        def position(_: str) -> float:
            return os.lseek(archive.fileno(), 0, os.SEEK_CUR) / size

        programs.run(
            [
                *as_root,
                *(
                    programs.find("mksquashfs"),
                    "-",
                    target,
                    "-tar",
                    "-noappend",
                    "-info",
                    "-no-progress",
                ),
                *("-comp", "zstd", "-b", BLOCK_SIZE, "-mem", MEMORY),
                *(["-all-root"] if all_root else []),
                *("-root-mode", "755"),
                *("-mkfs-time", str(EPOCH), "-all-time", str(EPOCH)),
                *("-processors", str(min(PROCESSORS, os.cpu_count() or 1))),
            ],
            purpose=what,
            reads=archive,
            hold=hold,
            on_line=progress.reader(what, position),
        )
    progress.update(what, 1.0)
