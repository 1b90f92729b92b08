"""Grid Engine's commands that jobs find in their machines. What `qrsh -inherit` begins on another
host of the job is begun there by the queue's `starter_method`, and so in the job's environment."""

from __future__ import annotations

from encamp.model.batch import Reads

NAMES = {
    "qstat": Reads.NEVER,
    "qdel": Reads.NEVER,
    "qmod": Reads.NEVER,
    "qalter": Reads.NEVER,
    "qhold": Reads.NEVER,
    "qrls": Reads.NEVER,
    "qresub": Reads.NEVER,
    "qhost": Reads.NEVER,
    "qacct": Reads.NEVER,
    "qselect": Reads.NEVER,
    "qconf": Reads.NEVER,
    "qsub": Reads.ALONE,
    "qrsh": Reads.ALWAYS,
}
"""And when they read their standard input."""

QSUB = {
    **dict.fromkeys(("-clear", "-cwd", "-h", "-hard", "-help", "-notify", "-soft"), 0),
    **dict.fromkeys(("-terse", "-verbose", "-verify", "-V"), 0),
    "-pe": 2,
}
"""Options that are not followed by one word."""
