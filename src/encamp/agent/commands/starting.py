"""Starting the processes of commands: those that outlive the agent, and those that help it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from encamp import programs
from encamp.agent.commands.directory import CommandDirectory
from encamp.agent.commands.family import MARK
from encamp.agent.commands.offers import OURS_ONLY, Offers
from encamp.home import Home
from encamp.model.errors import Code, EncampError

PYTHON = (sys.executable, "-P", "-m")
"""Runs a module, and never one of the current directory's."""

SILENCE = 20.0
"""Seconds that plug-ins have to be imported."""


def start_carrier(directory: CommandDirectory, home: Home) -> int:
    """Start the process that carries a command out. It is a child of ours, but has a session of
    its own and goes on without us."""
    command = [*PYTHON, "encamp.agent.commands.carry", str(directory.path)]
    log = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        sys.executable,
        command,
        {**os.environ, "ENCAMP_HOME": str(home.root), MARK: directory.id},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(directory.log), log, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE),
    )


def read_offers() -> Offers:
    """What this host offers; without the plug-ins of others, if one of them keeps it from being
    found out. Takes a moment: for a thread."""
    try:
        return _read_offers()
    except EncampError as error:
        offers = _read_offers(OURS_ONLY)
        trouble = f"Plug-ins that are not Encamp's own are not offered: {error.sentence}"
        return msgspec.structs.replace(offers, broken=(*offers.broken, trouble))


def _read_offers(*words: str) -> Offers:
    said = programs.run(
        [*PYTHON, "encamp.agent.commands.offers", *words],
        purpose="looking for the commands of this host",
        code=Code.CONFIGURATION,
        directory=Path("/"),
        silence=SILENCE,
    )
    try:
        return msgspec.json.decode(said, type=Offers)
    except msgspec.MsgspecError as error:
        raise EncampError(
            Code.CONFIGURATION,
            "A plug-in has disturbed the search for commands.",
            detail=said[:500],
        ) from error


def recover_machines(home: Home) -> None:
    """Clear what killed commands left of machines. Takes a moment: for a thread."""
    if any(os.listdir(path) for path in (home.machines, home.cache) if path.is_dir()):
        programs.run(
            [*PYTHON, "encamp.agent.commands.recovering", home.root],
            purpose="clearing up after commands that were killed",
            code=Code.INTERNAL,
            directory=Path("/"),
        )
