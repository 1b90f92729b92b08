"""How far a command is with its machine: told step by step, and each step before it is taken."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from encamp.agent.commands.directory import CommandDirectory

IMAGE = "image"
"""The image is being copied or built."""
START = "start"
"""The machine is being made."""
RUNNING = "running"
"""The machine is there; from here on its command may have begun."""

ENDED = "ended"
"""The command has ended, and what it printed is where it belongs."""

LARGEST = 64 << 10
"""Bytes that are read of what was told; a few hundred are written."""


class Stage(msgspec.Struct, frozen=True):
    phase: str = ""
    machine: str = ""
    ended: int | None = None
    """How the command ended, where nobody else tells."""
    cpu_seconds: float | None = None
    peak_memory: int | None = None
    """What the machine's process has used, in the same case."""


STAGES = msgspec.json.Decoder(Stage)


class Telling:
    """Opened by whoever may write there. Telling needs no rights of its own then."""

    def __init__(self, directory: CommandDirectory) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(directory.progress, flags, 0o600)
        # For both, so that it can be opened while no agent is there to read it.
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        self._sign = os.open(directory.path.parent.parent / "news", flags)
        self._stage = Stage()

    def tell(self, phase: str, machine: str = "", ended: int | None = None) -> None:
        self._tell(Stage(phase, machine or self._stage.machine, ended))

    def used(self, cpu_seconds: float | None, peak_memory: int | None) -> None:
        """What its machine has used, which is no more."""
        self._tell(
            msgspec.structs.replace(self._stage, cpu_seconds=cpu_seconds, peak_memory=peak_memory)
        )

    def _tell(self, stage: Stage) -> None:
        if stage != self._stage:
            self._stage = stage
            os.write(self._file, msgspec.json.encode(stage) + b"\n")
            self.sign()

    def sign(self) -> None:
        """Let the agent look."""
        with suppress(OSError):
            os.write(self._sign, b"\n")


def read_stage(path: Path) -> Stage:
    """The last that was told."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return Stage()
    try:
        whole = os.pread(fd, LARGEST, max(0, os.fstat(fd).st_size - LARGEST)).rpartition(b"\n")[0]
        return STAGES.decode(whole.rpartition(b"\n")[2])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Stage()
    finally:
        os.close(fd)
