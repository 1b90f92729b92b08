"""What every move of a machine is made of: its record and process, while nobody else moves it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from encamp.agent.journal import Journal
from encamp.machines import drivers, volumes
from encamp.machines.engine import Engine
from encamp.machines.process import Process, shut_out
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine, Move


class Moves:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @contextmanager
    def moving(self, machine: Machine, move: Move | None) -> Iterator[Machine]:
        """The machine as it is now, while nobody else moves it."""
        with self._journal.moving(machine.id):
            current = self._journal.read(machine.id)
            if current is None:
                raise EncampError(Code.UNKNOWN_MACHINE, f"Machine {machine.name} is gone.")
            check_host(current)
            if move is not None:
                current.check(move)
            yield current

    @contextmanager
    def process_of(self, machine: Machine) -> Iterator[Engine]:
        engine = drivers.find(self._journal.directory(machine.id))
        if engine is None:
            raise EncampError(
                Code.MACHINE_LOST,
                f"The process of machine {machine.name} is gone.",
                f"'encamp show {machine.name}' tells what is known of it.",
            )
        try:
            yield engine
        finally:
            engine.process.close()

    @contextmanager
    def standing(self, machine: Machine, move: Move) -> Iterator[tuple[Machine, Engine]]:
        """Both, of a machine that has a process."""
        with self.moving(machine, move) as current, self.process_of(current) as engine:
            yield current, engine

    async def kill_process(self, machine: Machine) -> None:
        process = Process.holding(self._journal.directory(machine.id).lock)
        if process is not None:
            await process.kill()
            process.close()

    def moved(self, machine: Machine, move: Move, reason: str) -> Machine:
        moved = machine.moved(move, reason, time.time())
        self._journal.write(moved)
        return moved

    def ended(self, machine: Machine, move: Move, reason: str) -> Machine:
        """The machine is over: what only a living one needs goes, the record stays."""
        moved = self.moved(machine, move, reason)
        self._journal.directory(machine.id).strip()
        return moved

    def clear(self, machine: Machine) -> None:
        """Leave nothing of it."""
        directory = self._journal.directory(machine.id)
        with shut_out(directory.lock):
            directory.remove()
        if volumes.noted(directory.path) is not None:
            raise EncampError(
                Code.WRONG_STATE,
                f"The volume of machine {machine.name} could not be removed.",
                f"Something still uses it: see 'lvs @{volumes.TAG}', then try again.",
                transient=True,
            )


def check_host(machine: Machine) -> None:
    if machine.host != os.uname().nodename:
        raise EncampError(
            Code.WRONG_STATE,
            f"Machine {machine.name} is on host {machine.host}, not here.",
            f"Log in to {machine.host} and repeat the command there.",
        )
