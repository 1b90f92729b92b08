"""The directory of one machine: where each of its files is, and who may touch them.

The directory itself belongs to whoever keeps the machine; only `run/` belongs to the user the
machine's process runs as, so a process gone bad cannot rewrite the machine's record.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from encamp.machines import volumes
from encamp.machines.plain_file import plain_file
from encamp.machines.process import Process
from encamp.model.errors import EncampError
from encamp.workplace import remove_however_deep

TAIL = 4096

PATIENCE = 5.0
"""Seconds that a killed share server has to end; one on a file system that does not answer stays,
and can do no more than end."""

DOOMED = "."
"""Begins the name of a directory that is being removed."""

KEPT = frozenset({"machine.json", "qemu.log", "run", "client", "lock", "moving"})
"""What stays of a machine that has ended, beside its console."""


class MachineDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record(self) -> Path:
        return self.path / "machine.json"

    @property
    def lock(self) -> Path:
        """Locked by the machine's process while it lives."""
        return self.path / "lock"

    @property
    def client(self) -> Path:
        """Locked by the process a tied machine belongs to."""
        return self.path / "client"

    @property
    def shares_lock(self) -> Path:
        """Locked by the machine's share server while it lives."""
        return self.path / "shares.lock"

    @property
    def log(self) -> Path:
        """What QEMU itself had to say, and the share server."""
        return self.path / "qemu.log"

    @property
    def context(self) -> Path:
        """What a suspended machine wakes up from."""
        return self.path / "context"

    @property
    def seed(self) -> Path:
        """What a whole disk reads at its first start."""
        return self.path / "seed"

    @property
    def run(self) -> Path:
        """Where the machine's process works."""
        return self.path / "run"

    @property
    def console(self) -> Path:
        return self.run / "console"

    @property
    def disk(self) -> Path:
        return self.run / "disk"

    @property
    def base(self) -> Path:
        """What the disk is an overlay over. Other machines have the same file, so it is not where
        the process could write to it."""
        return self.path / "disk.base"

    def make(self, user: tuple[int, int] | None, shares: int) -> None:
        """Make the directory's parts; `user` is whom the process runs as, if not as us."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.run.mkdir(mode=0o700)
        for number in range(shares):
            (self.run / f"share{number}").mkdir(mode=0o500)
        if user is not None:
            for entry in (self.run, *self.run.iterdir()):
                os.chown(entry, *user)

    def console_tail(self, size: int = TAIL) -> str:
        return tail(self.console, size)

    def printed(self, most: int | None = None) -> Iterator[bytes]:
        """What the guest has printed; the last `most` bytes of it. Nothing, if there is no console
        that can be read."""
        with contextlib.suppress(OSError), plain_file(self.console) as fd:
            if most is not None:
                os.lseek(fd, max(0, os.fstat(fd).st_size - most), os.SEEK_SET)
            while piece := os.read(fd, 65536):
                yield piece

    def log_tail(self) -> str:
        return tail(self.log, TAIL)

    def end_shares(self) -> None:
        """See the share server of a machine whose process is gone end. It does so by itself, but
        perhaps not before somebody takes the machine's end for the end of its writing."""
        with contextlib.suppress(EncampError):
            server = Process.holding(self.shares_lock)
            if server is not None:
                server.kill_now(PATIENCE)
                server.close()

    def strip(self) -> None:
        """Take away what only a living machine needs; its console, log and record stay."""
        self.end_shares()
        if not volumes.release(self.path):
            return  # As long as the note of it is there, it is tried again.
        with contextlib.suppress(FileNotFoundError):
            for path in self.run.iterdir():
                if path.is_dir() and not path.is_symlink():
                    remove_however_deep(path)
                elif path != self.console:
                    path.unlink(missing_ok=True)
            for name in self._spare():
                (self.path / name).unlink(missing_ok=True)

    def stripped(self) -> bool:
        return not self._spare()

    def _spare(self) -> list[str]:
        # A record that is just being written has the record's name and an ending of its own.
        return [
            name
            for name in os.listdir(self.path)
            if name not in KEPT and not name.startswith(f"{self.record.stem}.")
        ]

    def remove(self) -> None:
        """Leave nothing of the machine; what cannot be removed now stays known, and is later."""
        self.end_shares()
        if volumes.release(self.path):
            # Whoever works in it meanwhile finds all of it or nothing.
            doomed = self.path.with_name(DOOMED + self.path.name)
            with contextlib.suppress(FileNotFoundError):
                self.path.rename(doomed)
            remove_however_deep(doomed)


def tail(path: Path, size: int) -> str:
    """The end of a file that may not be there, or be something else, as text."""
    try:
        with plain_file(path) as fd:
            end = os.pread(fd, size, max(0, os.fstat(fd).st_size - size))
    except OSError:
        return ""
    text = end.decode(errors="replace").replace("\r", "")
    # It ends on somebody's terminal: nothing in it may control one.
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
