"""Slurm's own commands: how they are run, and what their failures mean."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from encamp import programs
from encamp.model.errors import Code, EncampError

T = TypeVar("T")

SILENCE = 15.0
"""Seconds after which a command hangs. Without a controller they give up after ten."""
FIRST, LONGEST = 0.2, 3.0
"""Seconds between two tries, each twice the former."""
CONF = "/etc/slurm/slurm.conf"

MEANINGS = {
    "Unable to contact slurm controller": (Code.UNREACHABLE, True),
    "Socket timed out": (Code.UNREACHABLE, True),
    "Unexpected message received": (Code.UNREACHABLE, True),
    "Unexpected missing socket error": (Code.UNREACHABLE, True),
    "Zero Bytes were transmitted": (Code.UNREACHABLE, True),
    "Transport endpoint is not connected": (Code.UNREACHABLE, True),
    "Connection refused": (Code.UNREACHABLE, True),
    "Connection reset": (Code.UNREACHABLE, True),
    "authentication": (Code.UNREACHABLE, True),
    "Munge": (Code.UNREACHABLE, True),
    "in standby mode": (Code.UNREACHABLE, True),
    "temporarily unavailable": (Code.UNREACHABLE, True),
    "nothing for": (Code.UNREACHABLE, True),
    "Job has already finished": (Code.WRONG_STATE, False),
    "already completed": (Code.WRONG_STATE, False),
    "Invalid job id": (Code.INPUT_MISSING, False),
    "not found": (Code.INPUT_MISSING, False),
    "Access/permission denied": (Code.NOT_PERMITTED, False),
    "Invalid user id": (Code.NOT_PERMITTED, False),
    "Requested operation is presently disabled": (Code.WRONG_STATE, False),
    "Invalid node state": (Code.WRONG_STATE, False),
}
"""What Slurm says when a command fails, and what that is to us: a code, and whether trying again
can help. The first that is found counts."""


class Calls:
    """The commands of one site's Slurm."""

    def __init__(self, *, conf: str = "", commands: str = "") -> None:
        self._conf = conf
        self._commands = commands

    def __call__(self, name: str, *words: str, purpose: str, cleaning: bool = False) -> str:
        """What the command printed, its complaints included."""
        conf = self._conf or os.environ.get("SLURM_CONF", CONF)
        if not Path(conf).exists():
            raise EncampError(
                Code.CONFIGURATION,
                f"There is no {conf}, which tells Slurm's commands where their controller is.",
                "Name the right file in batch.yaml: programs: {conf: /path/slurm.conf}.",
            )
        program = str(Path(self._commands) / name) if self._commands else name
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "SLURM_CONF": conf,
            "SLURM_TIME_FORMAT": "%s",
            "SLURM_BITSTR_LEN": "0",
            "LC_ALL": "C",
        }
        try:
            return programs.run(
                [program, *words],
                purpose=purpose,
                code=Code.COMMAND_FAILED,
                environment=environment,
                silence=SILENCE,
                cleaning=cleaning,
            )
        except EncampError as error:
            ours = meant(error, purpose)
            if ours is None:
                raise
            raise ours from error


def meant(error: EncampError, purpose: str) -> EncampError | None:
    """A failure in our own terms, if it is one that we know."""
    if error.code is not Code.COMMAND_FAILED:
        return None
    for said, (code, transient) in MEANINGS.items():
        if said in error.detail:
            sentence = f"Slurm did not do what was asked while {purpose}: {said}."
            if code is Code.UNREACHABLE:
                sentence = f"Slurm's controller does not answer while {purpose}."
            hint = "That takes an administrator of Slurm's." if code is Code.NOT_PERMITTED else ""
            return EncampError(code, sentence, hint, transient=transient, detail=error.detail)
    return None


def patiently(attempt: Callable[[], T], seconds: float) -> T:
    """Try until it works, or fails for good, or has been tried for so many seconds."""
    end = time.monotonic() + seconds
    pause = FIRST
    while True:
        try:
            return attempt()
        except EncampError as error:
            if not error.transient or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(LONGEST, pause * 2)


def this_host() -> str:
    """The name that Slurm knows hosts by: without a domain."""
    return socket.gethostname().partition(".")[0]
