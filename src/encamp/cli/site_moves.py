"""Moves with one's machines on the site: the manager has them made where the machines are."""

from __future__ import annotations

from encamp.cli.asking import asked_one
from encamp.cli.sending import EXIT_CODES, ended, ending
from encamp.door.questions import Move, MoveMachine
from encamp.model.command import CommandRecord, CommandState
from encamp.model.errors import EncampError


def move_on_site(machine: str, name: str, *, force: bool) -> None:
    """Ask for it, and wait until it is done."""
    question = MoveMachine(machine=machine, move=Move(name), force=force)
    record = ended(asked_one(question, CommandRecord))
    if record.state is not CommandState.DONE:
        raise EncampError(EXIT_CODES[record.state], ending(record))
