"""The journal: what machines there are, written to disk before they exist.

A record is replaced whole or not at all. Nothing here waits for the disk: what a killed process
wrote is still there, and a host that went down took its machines with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from encamp.home import Home, wait_for_lock
from encamp.machines.directory import DOOMED, MachineDirectory
from encamp.model.errors import Code, EncampError
from encamp.model.machine import ALIVE, Machine
from encamp.small_file import read_small

RECORDS = msgspec.json.Decoder(Machine)
LOCK = "machines"
SETTLING = 10.0
"""Seconds that a move of somebody else is waited for."""


class Journal:
    def __init__(self, home: Home) -> None:
        self.home = home

    def directory(self, machine_id: str) -> MachineDirectory:
        return MachineDirectory(self.home.machines / machine_id)

    def add(self, machine: Machine, *, named: bool) -> ClientLock:
        """Write down a machine that is about to exist. It is ours until the lock is let go.

        `named`: somebody chose its name, which must not be taken."""
        directory = self.directory(machine.id)
        with self.home.lock(LOCK, shared=not named):
            if named and any(other.name == machine.name for other in self.all()):
                raise EncampError(
                    Code.USAGE,
                    f"You have a machine named '{machine.name}' already.",
                    "Choose another name, or remove that one with 'encamp rm'.",
                )
            directory.path.mkdir(mode=0o700)
            lock = ClientLock.take(directory.client)
            assert lock is not None, "nobody else knows the new machine's id"
            try:
                self.write(machine)
            except BaseException:
                directory.remove()
                lock.release()
                raise
        return lock

    def write(self, machine: Machine) -> None:
        record = self.directory(machine.id).record
        # Two processes may write at once: whoever is later wins, whole.
        new = record.with_suffix(f".{os.getpid()}")
        try:
            new.write_bytes(msgspec.json.encode(machine))
            new.rename(record)
        except FileNotFoundError as error:
            raise gone(machine) from error

    def read(self, machine_id: str) -> Machine | None:
        try:
            return RECORDS.decode(read_small(self.directory(machine_id).record))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def ids(self) -> list[str]:
        return [name for name in self._names() if not name.startswith(DOOMED)]

    def doomed(self) -> list[Path]:
        """What is left of machines whose removal was cut short, or is under way."""
        return [self.home.machines / name for name in self._names() if name.startswith(DOOMED)]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.home.machines)
        except OSError as error:
            raise EncampError(
                Code.NOT_PERMITTED, f"Cannot read {self.home.machines}: {error.strerror}."
            ) from error

    def all(self) -> list[Machine]:
        found = [machine for name in self.ids() if (machine := self.read(name)) is not None]
        return sorted(found, key=lambda machine: machine.created)

    def find(self, reference: str) -> Machine:
        """The machine of this name, id, or beginning of an id."""
        return choose(self.all(), reference)

    async def withdraw(self, machine: Machine) -> EncampError | None:
        """Leave nothing of a machine that has not come about. If somebody has ended it meanwhile,
        its record stays as he was promised, unless it is tied; what to say of that is returned."""
        directory = self.directory(machine.id)
        async with self.settled(machine.id):
            ended = self.ended(machine.id)
            if ended is None or machine.tied:
                directory.remove()
            else:
                directory.strip()
        return None if ended is None else ended_meanwhile(ended)

    def ended(self, machine_id: str) -> Machine | None:
        """The machine, if its record says that it is over."""
        machine = self.read(machine_id)
        return None if machine is None or machine.state in ALIVE else machine

    @asynccontextmanager
    async def settled(self, machine_id: str) -> AsyncIterator[None]:
        """Once nobody else moves the machine, and while nobody does. Somebody who does not get on
        with it is not waited for for ever."""
        path = self.directory(machine_id).path / "moving"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            yield  # There is nothing that could be moved.
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING):
                    await wait_for_lock(fd)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def moving(self, machine_id: str) -> Iterator[None]:
        """One move of a machine at a time. The lock goes with the machine's directory."""
        try:
            fd = os.open(
                self.directory(machine_id).path / "moving",
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                0o600,
            )
        except FileNotFoundError:
            raise EncampError(Code.UNKNOWN_MACHINE, "The machine is gone.") from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EncampError(
                    Code.WRONG_STATE,
                    "Somebody else is just changing this machine's state.",
                    "Try again in a moment.",
                    transient=True,
                ) from None
            yield
        finally:
            os.close(fd)


def choose(machines: Sequence[Machine], reference: str) -> Machine:
    """The one of this name, id, or beginning of an id."""
    matches = [machine for machine in machines if machine.name == reference]
    if not matches and reference:
        matches = [machine for machine in machines if machine.id.startswith(reference)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise EncampError(
            Code.UNKNOWN_MACHINE,
            f"'{reference}' fits {len(matches)} machines.",
            "Write more of the id; 'encamp ps' lists them.",
        )
    raise EncampError(
        Code.UNKNOWN_MACHINE,
        f"You have no machine '{reference}'.",
        "'encamp ps' lists your machines.",
    )


def ended_meanwhile(machine: Machine) -> EncampError:
    return EncampError(
        Code.MACHINE_LOST,
        f"Machine {machine.name} was ended while it was being made: {machine.reason}.",
    )


def gone(machine: Machine) -> EncampError:
    return EncampError(
        Code.UNKNOWN_MACHINE, f"Machine {machine.name} is gone: somebody has removed it."
    )


class ClientLock:
    """Held by the process that a machine being made, or a tied one, belongs to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, path: Path) -> ClientLock | None:
        """Take the lock; None if its process is still there, or the machine is gone altogether."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return cls(fd)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
