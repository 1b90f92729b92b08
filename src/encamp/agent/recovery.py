"""Putting the journal and the host in agreement, whatever was killed in between.

Done at the start of every command. What is found decides, not what was meant: a record without a
process, a process without an owner, a directory without a record.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from encamp.agent.journal import LOCK, ClientLock, Journal
from encamp.home import Home
from encamp.machines.directory import MachineDirectory
from encamp.machines.process import Process, shut_out
from encamp.model.errors import EncampError
from encamp.model.machine import ALIVE, Machine, Move, State
from encamp.workplace import clear_cache, remove_tree


def recover(home: Home) -> None:
    """Clear what nobody owns any more, and record what has ended."""
    clear_cache(home, lambda work: _release_volumes(home, work))
    journal = Journal(home)
    for directory in journal.doomed():
        remove_tree(directory)
    for machine_id in journal.ids():
        machine = journal.read(machine_id)
        if machine is not None and machine.host != os.uname().nodename:
            continue  # The home is on a shared file system; that host looks after its own.
        # One that somebody else is just moving, or that is out of our reach, is not our concern;
        # and whatever one machine has made of its directory must not hold up work on the others.
        with suppress(EncampError, OSError):
            if machine is None or machine.tied or machine.state is State.STARTING:
                _clear_if_left(home, journal, machine_id)
            else:
                _agree(journal, machine)


def _release_volumes(home: Home, work: Path) -> None:
    """A template's maker was killed; the volume it wrote to is not in the directory it left."""
    from encamp.machines.storage import release_volumes

    # A host whose LVM is out of order must still be able to do everything else.
    with suppress(EncampError):
        release_volumes(home, work)


def _clear_if_left(home: Home, journal: Journal, machine_id: str) -> None:
    """A machine that is being made or is tied is cleared away if its process is gone."""
    directory = journal.directory(machine_id)
    # While we hold this, nobody is between making the directory and locking it; and whoever else
    # recovers waits until all of the machine is gone.
    with home.lock(LOCK):
        client = ClientLock.take(directory.client) if directory.path.is_dir() else None
        if client is None:
            return
        try:
            if _is_left(journal.read(machine_id), directory):
                with shut_out(directory.lock):
                    directory.remove()
        finally:
            client.release()


def _is_left(current: Machine | None, directory: MachineDirectory) -> bool:
    """Whether nobody needs a machine whose client is gone; if so, its process is ended."""
    if current is not None and not current.tied and current.state is not State.STARTING:
        return False  # It came into its own while we looked.
    # A record that cannot be read: another version of Encamp wrote it, and knows what to do.
    foreign = current is None and directory.record.exists()
    process = Process.holding(directory.lock)
    if process is None:
        return not (foreign and directory.context.exists())
    try:
        if not foreign:
            process.kill_now()
    finally:
        process.close()
    return not foreign


def _agree(journal: Journal, machine: Machine) -> None:
    """A machine is alive if and only if it has a process, and has the files that fit its state."""
    directory = journal.directory(machine.id)
    process = Process.holding(directory.lock)
    if process is not None:
        process.close()
    if (process is not None) != (machine.state in ALIVE) or _surplus(machine, directory):
        with journal.moving(machine.id):
            _correct(journal, machine, directory)


def _surplus(machine: Machine, directory: MachineDirectory) -> bool:
    """Is there something of a move that was not finished?"""
    if machine.state in ALIVE:
        return directory.context.exists()
    return machine.state is not State.SUSPENDED and not directory.stripped()


def _correct(journal: Journal, machine: Machine, directory: MachineDirectory) -> None:
    """Look again, now that nobody else moves the machine, and put right what is still wrong."""
    current = journal.read(machine.id)
    if current is None:
        return
    process = Process.holding(directory.lock)
    if process is None and current.state in ALIVE:
        said = (directory.log_tail() or directory.console_tail()).strip().splitlines()
        last = f": {said[-1]}" if said else ""
        if current.idle:
            directory.remove()  # Nobody will ask what became of it.
            return
        reason = f"its process ended, or its guest shut down by itself{last}"
        current = current.moved(Move.FAIL, reason, time.time())
        journal.write(current)
    elif process is not None and current.state not in ALIVE:
        process.kill_now()
    if process is not None:
        process.close()
    if current.state in ALIVE:
        directory.context.unlink(missing_ok=True)
    elif current.state is not State.SUSPENDED:
        directory.strip()
