"""How a job has ended whose starter is gone: by the starter's death alone, or as somebody has
wanted it. Its shepherd has written that down, in a directory that is there until Grid Engine has
noticed the job's end, and where the job can be asked for back until then."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from encamp.batch.gridengine.shepherd import Shepherd, read_left, settings_in
from encamp.model.errors import Code, EncampError

USAGE, TRACE = "usage", "trace"
"""Files of its shepherd's: what the job took, written when it has ended; and what was done to it.
The second is the job's own file, too: who changes it changes what becomes of one job of theirs."""
ASKED = re.compile(
    r"mapped signal \w+ to signal KILL|lost connection -> exiting|queued signal TTOU"
)
"""Whatever Grid Engine ends a job for, it asks its shepherd to; that of a program on another
host ends it when nobody waits for it any more, as when the job's script has ended. What is said by
SIGTTOU is that a job with checkpoints is to begin again elsewhere."""
FORGOTTEN = "Grid Engine has forgotten the job already."
ONLY_BATCH = "Only batch jobs can be queued again."


def check_lost(shepherd: Shepherd, *, held: bool) -> None:
    """Raises an error if it is not certain that only the starter was killed. `held`: that is
    certain, but for whether Grid Engine has done it."""
    if not held:
        _check_killed(shepherd)
    if has_asked(shepherd.directory):
        raise stays(
            "Grid Engine has ended the job: it was deleted, had reached a limit, or was put back."
        )


def has_asked(directory: Path) -> bool:
    """Has Grid Engine had it ended?"""
    try:
        return ASKED.search(read_left(directory / TRACE)) is not None
    except OSError as error:
        raise stays("Grid Engine does not tell whether it has ended the job.") from error


def _check_killed(shepherd: Shepherd) -> None:
    try:
        usage = settings_in(shepherd.left(USAGE))
    except OSError as error:
        raise EncampError(
            Code.WRONG_STATE, f"Grid Engine's job {shepherd.id} has not ended yet.", transient=True
        ) from error
    if usage.get("signal") != str(int(signal.SIGKILL)):
        raise stays("The job was not killed.")


def stays(sentence: str) -> EncampError:
    return EncampError(Code.WRONG_STATE, sentence)
