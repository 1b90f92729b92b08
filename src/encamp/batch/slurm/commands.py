"""Slurm's commands that jobs find in their machines."""

from __future__ import annotations

from pathlib import Path

import msgspec

from encamp.batch.offering import offered
from encamp.model.batch import Offered, Reads

NAMES = {
    "squeue": Reads.NEVER,
    "sinfo": Reads.NEVER,
    "sacct": Reads.NEVER,
    "scancel": Reads.NEVER,
    "sbcast": Reads.NEVER,
    "sprio": Reads.NEVER,
    "sshare": Reads.NEVER,
    "sstat": Reads.NEVER,
    "scontrol": Reads.ALONE,
    "sbatch": Reads.ALONE,
    "srun": Reads.ALWAYS,
    "sattach": Reads.ALWAYS,
}
"""And when they read their standard input. Not `salloc`: what it begins would be outside."""

# Options without a word of their own. Given a script, or something to do, neither of these reads.
SBATCH_FLAGS = (
    *("-H", "--hold", "-k", "--no-kill", "-O", "--overcommit", "-Q", "--quiet"),
    *("-s", "--oversubscribe", "-v", "--verbose", "-W", "--wait", "--ignore-pbs", "--parsable"),
    *("--reboot", "--requeue", "--no-requeue", "--spread-job", "--use-min-nodes"),
    *("--contiguous", "--exclusive", "--get-user-env", "--nice", "--propagate", "--test-only"),
)
SCONTROL_FLAGS = (
    *("-a", "--all", "-d", "--details", "-F", "--future", "--hide", "-o", "--oneliner"),
    *("-Q", "--quiet", "-v", "--verbose"),
)

LACKING = (
    "Slurm's plug-in for Encamp is not set up here, and without it what srun begins would not be"
    " in the job's environment; an administrator sets it up with 'encamp batch install slurm"
    " --spank'"
)


def commands_in(environment: str, directory: str) -> dict[str, Offered]:
    """`srun` has its tasks in the same environment, by an option that only the plug-in knows:
    without it there are none at all."""
    found = offered(NAMES, lambda name: str(Path(directory) / name))
    option = f"--vmenv={environment}"
    changes: dict[str, dict[str, object]] = {
        "sbatch": {
            "options": dict.fromkeys(SBATCH_FLAGS, 0),
            "letters": True,
            "instead": ("--wrap",),
        },
        "scontrol": {"options": dict.fromkeys(SCONTROL_FLAGS, 0)},
    }
    if "srun" in found:
        words = (*found["srun"].words, option)
        changes["srun"] = {"words": words, "check": (*words, "--usage"), "lacking": LACKING}
    return {
        name: msgspec.structs.replace(command, **changes.get(name, {}))
        for name, command in found.items()
    }
