"""Claims: machines that this host has promised to make, and keeps room for until it does.

A claim is written down before it is promised, and outlives the agent. It is used up by the command
of the same id: as long as that is under way the claim stands for its machine, less what the machine
holds already; afterwards the machine, if it stays, stands for itself. So there is neither a moment
in which its room is anybody's, nor one in which it counts twice.
"""

from __future__ import annotations

import enum
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from encamp.agent import owners
from encamp.agent.commands.directory import ID, is_own, not_written
from encamp.agent.commands.starting import clear_idle
from encamp.agent.promised import Promise, directory, read, with_promises
from encamp.bus.messages import Claim
from encamp.home import Home
from encamp.machines.room import Counted, Counting, check_size
from encamp.machines.standing import Standing
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.machine import Machine
from encamp.model.size import MIB, Size

LONGEST = 3600.0
"""Seconds that a claim may last."""
MOST = 4096
MAKING_ROOM = 20.0
"""Seconds after which no more idle machines are removed for one claim."""

LOG = logging.getLogger(__name__)


class Use(enum.Enum):
    """How far the command is that a claim is for."""

    NONE = "none"
    UNDER_WAY = "under way"
    OVER = "over"


class Claims:
    """All claims on one agent's host. `use` tells of the command of an id, and `machine` which one
    it has told of. Only `promise` takes a while: it is for a thread, and for one at a time, since
    each must know of those before."""

    def __init__(
        self, home: Home, use: Callable[[str], Use], machine: Callable[[str], str]
    ) -> None:
        self._home = home
        self._machine = machine
        self._directory = directory(home)
        self._use = use
        self._promises: dict[str, Promise] = {}

    def load(self) -> None:
        """What former agents have promised."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        now = time.time()
        for name in os.listdir(self._directory):
            path = self._directory / name
            promise = read(path)
            if promise is None:
                with suppress(OSError):
                    path.unlink()
            else:
                # The clock may have been set back meanwhile.
                until = min(promise.until, now + LONGEST)
                self._promises[name] = msgspec.structs.replace(promise, until=until)
        for id in [id for id in self._promises if is_own(id)]:
            self.release(id)  # What another agent was about to begin itself nobody will.
        self.forget()

    def promise(self, claim: Claim) -> None:
        """Keep room for a machine; an error says why not. The same again is the same promise."""
        if ID.fullmatch(claim.id) is None:
            raise EncampError(Code.USAGE, f"{claim.id[:80]!r} cannot be a claim's id.")
        if not (math.isfinite(claim.seconds) and 0 < claim.seconds <= LONGEST):
            raise EncampError(Code.USAGE, f"A claim cannot last {claim.seconds:g} seconds.")
        self.forget()
        if claim.id in self._promises:
            return
        if self._use(claim.id) is not Use.NONE:
            raise EncampError(Code.WRONG_STATE, f"Claim {claim.id} was used before.")
        if len(self._promises) >= MOST:
            raise EncampError(Code.NO_ROOM, f"This host has {MOST} claims already.", transient=True)
        entry = owners.account(claim.owner)
        _check_environment(claim, owners.user_of(entry))
        self._find_room(claim, entry.pw_uid)
        self._keep(
            Promise(
                id=claim.id,
                owner=entry.pw_uid,
                size=claim.size,
                memory=_needed(claim.size),
                until=time.time() + claim.seconds,
            )
        )

    def release(self, id: str) -> None:
        """A promise is not needed any more; one that is used is not undone."""
        if self._use(id) is Use.NONE:
            self._drop(id)

    def check(self, id: str) -> None:
        """May the command of this id begin?"""
        promise = self._promises.get(id)
        if promise is None or promise.until < time.time():
            raise EncampError(
                Code.NO_ROOM,
                "It cannot begin here: its claim has expired, or there was none.",
                "It is claimed anew when its turn comes.",
            )

    def over(self, id: str) -> None:
        """The command of a claim, if there was one, has ended."""
        self._drop(id)

    def ids(self) -> tuple[str, ...]:
        """What was promised and is not used."""
        self.forget()
        return tuple(id for id in list(self._promises) if self._use(id) is Use.NONE)

    def forget(self) -> None:
        """What is over, or was not used in time."""
        now = time.time()
        for id, promise in list(self._promises.items()):
            use = self._use(id)
            if use is Use.OVER or (use is Use.NONE and promise.until < now):
                self._drop(id)

    def _keep(self, promise: Promise) -> None:
        unfinished = self._directory / f".{promise.id}"
        try:
            unfinished.write_bytes(msgspec.json.encode(promise))
            unfinished.rename(self._directory / promise.id)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise not_written(error, f"claim {promise.id}") from error
        self._promises[promise.id] = promise

    def _drop(self, id: str) -> None:
        if self._promises.pop(id, None) is not None:
            with suppress(OSError):
                (self._directory / id).unlink(missing_ok=True)

    def _check_room(self, size: Size) -> None:
        promises = dict(self._promises)
        counting = with_promises(promises, {id: self._machine(id) for id in promises})
        if size.disk:
            counting = self._with_disks(counting)
        check_size(size, _needed(size) - size.memory, self._home.root, counting)

    def _with_disks(self, counting: Counting) -> Counting:
        """What the disks of machines will come to take, too."""
        from encamp.agent.owned import disk_growth

        def with_disks(machines: list[Standing]) -> Counted:
            others = counting(machines)
            disks = others.disk + disk_growth(self._home)
            return msgspec.structs.replace(others, disk=disks)

        return with_disks

    def _find_room(self, claim: Claim, owner: int) -> None:
        """Room that there is, or that idle machines give way to."""
        stubborn: set[int] = set()
        until = time.monotonic() + MAKING_ROOM
        while True:
            try:
                self._check_room(claim.size)
                return
            except EncampError as error:
                if not error.transient or time.monotonic() > until:
                    raise
                if not self._make_room(claim, owner, stubborn):
                    raise

    def _make_room(self, claim: Claim, owner: int, stubborn: set[int]) -> bool:
        """Remove idle machines, oldest first and those last that the claim may be for; whether
        there were any. Those whose machines are there afterwards are `stubborn`: what they have
        written down is not to keep the machines of others in place."""
        from encamp.agent.owned import everybodys

        def order(one: tuple[int, Machine]) -> tuple[bool, float]:
            uid, machine = one
            may_be_wanted = uid == owner and machine.environment == claim.environment
            return may_be_wanted, machine.changed

        idle = [
            (uid, machine)
            for uid, machine in everybodys(self._home)
            if machine.idle and uid not in stubborn
        ]
        missing = _needed(claim.size)
        given = []
        for uid, machine in sorted(idle, key=order):
            if missing > 0:
                given.append((uid, machine))
                missing -= _needed(machine.size)
        clear_idle(self._home, given)
        ids = {(uid, machine.id) for uid, machine in given}
        left = {uid for uid, machine in everybodys(self._home) if (uid, machine.id) in ids}
        stubborn |= left
        return bool(given)


def _needed(size: Size) -> int:
    """Memory that a machine's process may come to hold."""
    from encamp.machines.hardware import TRANSLATION_BUFFER
    from encamp.machines.standing import OWN

    return size.memory + OWN + TRANSLATION_BUFFER["ordinary"] * MIB


def _check_environment(claim: Claim, user: User) -> None:
    """Can machines of it be made here at all, as far as its description tells?"""
    from encamp.describe.environments import (
        also_here,
        check_use,
        host_environment,
        unknown_environment,
    )

    name = claim.environment
    environment = host_environment(name)
    if environment is None:
        if not claim.described:
            raise unknown_environment(name, lambda users: not users)
    elif claim.own:
        raise also_here(name)
    else:
        check_use(environment, user)
