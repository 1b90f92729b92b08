"""Moves with one's machines on the site: the manager has them made where the machines are."""

from __future__ import annotations

from encamp.cli.asking import asked_one
from encamp.cli.cleaning import remark
from encamp.cli.sending import EXIT_CODES, ended, ending, print_output
from encamp.door.questions import Move, MoveMachine
from encamp.model.command import CommandRecord, CommandState
from encamp.model.errors import EncampError
from encamp.model.property import Value
from encamp.model.recipe import Compression


def move_on_site(machine: str, name: str, *, force: bool) -> None:
    _done(MoveMachine(machine=machine, move=Move(name), force=force))


def console_on_site(machine: str) -> None:
    record = _done(MoveMachine(machine=machine, move=Move.CONSOLE))
    print_output(record, follow=True, as_json=False)


def save_on_site(machine: str, image: str, compression: Compression) -> dict[str, Value]:
    """Save a machine as an image on its host; what the image is."""
    question = MoveMachine(machine=machine, move=Move.SAVE, image=image, compression=compression)
    record = _done(question)
    remark(f"The image is on host {record.host}, for machines of the same owner there.")
    return record.value if isinstance(record.value, dict) else {}


def _done(question: MoveMachine) -> CommandRecord:
    """Ask for a move, and wait until it is done."""
    record = ended(asked_one(question, CommandRecord))
    if record.state is not CommandState.DONE:
        raise EncampError(EXIT_CODES[record.state], ending(record))
    return record
