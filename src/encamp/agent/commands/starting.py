"""Starting the processes of commands: those that outlive the agent, and those that help it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp import programs
from encamp.agent.commands.directory import CommandDirectory
from encamp.agent.commands.family import MARK
from encamp.agent.commands.offers import OURS_ONLY, Offers
from encamp.agent.owners import owners
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine

PYTHON = (sys.executable, "-P", "-m")
"""Runs a module, and never one of the current directory's."""

SILENCE = 20.0
"""Seconds that plug-ins have to be imported."""

RECOVERING, CLEARING = 60.0, 15.0
"""Seconds that a process has for its work in the home of another owner, who can hold it up: with
what lies there, or by stopping what is the owner's own process."""

LOG = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
DEFAULT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that mean to a carrier what they mean to any process. SIGPIPE is not among them: Python
ignores it, and a fork of a prepared process has to, too. A peer that has gone is an error there,
and no reason to end. Programs that a command starts get the default back."""


def start_carrier(directory: CommandDirectory, home: Home) -> int:
    """Start the process that carries a command out. It is a child of ours, but has a session of
    its own and goes on without us."""
    command = [*PYTHON, "encamp.agent.commands.carry", str(directory.path)]
    return os.posix_spawn(
        sys.executable,
        command,
        {**os.environ, "ENCAMP_HOME": str(home.root), MARK: directory.id},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(directory.log), LOG, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=DEFAULT,
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


def recover_machines(home: Home, left: Collection[str]) -> None:
    """Clear what killed commands left of these machines; an empty name: of any. Takes a moment: for
    a thread."""
    from encamp.agent.owned import anything

    if any(os.listdir(path) for path in (home.machines, home.cache) if path.is_dir()):
        _recover(home)
    for uid in owners(home):
        if anything(home, uid, left):
            # What is wrong with one owner's home is not the others' business.
            with suppress(EncampError):
                recover_owner(home, uid)


def recover_owner(home: Home, uid: int) -> None:
    """The same in the home of another owner, by a process of that owner's."""
    _recover(home, str(uid), silence=RECOVERING)


def clear_idle(home: Home, machines: Iterable[tuple[int, Machine]]) -> None:
    """Remove machines that were idle, if they still are: by processes of their owners', each of
    which can keep nobody but its own machines from being removed."""
    of_owner: dict[int, list[str]] = {}
    for uid, machine in machines:
        of_owner.setdefault(uid, []).append(machine.id)
    clearing = [
        threading.Thread(target=_clear, args=(home, uid, ids), daemon=True)
        for uid, ids in of_owner.items()
    ]
    for thread in clearing:
        thread.start()
    until = time.monotonic() + CLEARING
    for thread in clearing:
        thread.join(max(0.0, until - time.monotonic()))


def _clear(home: Home, uid: int, ids: list[str]) -> None:
    with suppress(EncampError, OSError, KeyboardInterrupt):
        programs.run(
            [*PYTHON, "encamp.agent.commands.clearing", home.root, str(uid), *ids],
            purpose="removing idle machines",
            code=Code.INTERNAL,
            directory=Path("/"),
            silence=CLEARING,
        )


def _recover(home: Home, *owner: str, silence: float | None = None) -> None:
    programs.run(
        [*PYTHON, "encamp.agent.commands.recovering", home.root, *owner],
        purpose="clearing up after commands that were killed",
        code=Code.INTERNAL,
        directory=Path("/"),
        silence=silence,
    )
