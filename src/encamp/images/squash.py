"""Packing root trees, given as tar archives, into the form machines read them from; and back."""

from __future__ import annotations

import os
from pathlib import Path

from encamp import programs
from encamp.images.holes import end_sparse, write_sparse
from encamp.images.portion import Portion
from encamp.model.recipe import EPOCH, Compression

BLOCK_SIZE = 64 << 10
"""Under emulation, reading all of debian12 takes 5.5 s, as fast as without compression (5.2 s);
6.3 s with blocks of 128K and 20 s with 1M, for files only 6 % and 10 % smaller."""
MEMORY = "64M"
"""It would read everything at once and take a quarter of the host's memory for it."""
PROCESSORS = 4
"""A build shares the host with machines at work."""

COMPRESSORS = {
    # The program's own choice is level 15: six times as long, for files 4 % smaller.
    Compression.ZSTD: ("-c", "zstd", "-X", "level=8"),
    Compression.XZ: ("-c", "xz"),
    Compression.GZIP: ("-c", "gzip"),
    Compression.LZ4: ("-c", "lz4"),
}
"""All of them are in Debian's kernels."""


def squash(
    tar: Path,
    target: Path,
    progress: Portion,
    *,
    compression: Compression = Compression.ZSTD,
    hold: tuple[int, ...] = (),
) -> None:
    """From an archive, not from a directory: owners in it need no right to set on the host."""
    what = "packing the root file system"
    size = max(1, tar.stat().st_size)
    with tar.open("rb") as archive:
        # The program reads through the same open file, so its position is ours to see.
        def position(_: str) -> float:
            return os.lseek(archive.fileno(), 0, os.SEEK_CUR) / size

        plain = compression is Compression.NONE
        programs.run(
            stored(target) if plain else compressed(target, compression),
            purpose=what,
            reads=archive,
            hold=hold,
            on_line=progress.reader(what, position),
        )
    progress.update(what, 1.0)


def compressed(target: Path, compression: Compression) -> list[str | Path]:
    jobs = str(min(PROCESSORS, os.cpu_count() or 1))
    words = ("-b", str(BLOCK_SIZE), "-j", jobs, "--no-skip")
    return ["tar2sqfs", *COMPRESSORS[compression], *words, target]


def stored(target: Path) -> list[str | Path]:
    """As the files are. Only the other program can, but it makes up the root's owner and time."""
    as_root = () if os.geteuid() == 0 else ("unshare", "--map-root-user")
    return [
        *(*as_root, programs.find("mksquashfs"), "-", target, "-tar", "-noappend", "-info"),
        *("-no-progress", "-mem", MEMORY, "-noI", "-noD", "-noF", "-noX"),
        *("-root-mode", "755", "-mkfs-time", str(EPOCH), "-all-time", str(EPOCH)),
    ]


def unsquash(squashed: Path, target: Path, *, hold: tuple[int, ...] = ()) -> None:
    """The archive that a squashed tree or layer was made of."""
    with (
        programs.stream(
            ["sqfs2tar", "-r", ".", squashed], purpose="reading an image", hold=hold
        ) as stream,
        target.open("wb") as out,
    ):
        while chunk := stream.read(1 << 20):
            write_sparse(out, chunk)
        end_sparse(out)
