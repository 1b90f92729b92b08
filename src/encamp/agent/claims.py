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
from pathlib import Path

import msgspec

from encamp.agent import owners
from encamp.agent.commands.directory import ID, not_written
from encamp.agent.commands.family import MARK
from encamp.agent.commands.starting import clear_idle
from encamp.bus.messages import Claim
from encamp.home import Home
from encamp.machines.room import Standing
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.machine import Machine
from encamp.model.size import MIB, Size

MARKED = f"{MARK}=".encode()

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


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What is written down of a claim."""

    id: str
    owner: int
    size: Size
    memory: int
    """With what its process needs beside the guest's."""
    until: float
    """By this host's clock."""


PROMISES = msgspec.json.Decoder(Promise)


class Claims:
    """All claims on one agent's host. `use` tells of the command of an id, and `machine` which one
    it has told of. Only `promise` takes a while: it is for a thread, and for one at a time, since
    each must know of those before."""

    def __init__(
        self, home: Home, use: Callable[[str], Use], machine: Callable[[str], str]
    ) -> None:
        self._home = home
        self._machine = machine
        self._directory = home.root / "claims"
        self._use = use
        self._promises: dict[str, Promise] = {}

    def load(self) -> None:
        """What former agents have promised."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        now = time.time()
        for name in os.listdir(self._directory):
            path = self._directory / name
            try:
                promise = PROMISES.decode(path.read_bytes())
                if promise.id != name:
                    raise msgspec.ValidationError("it was never written whole")
                # The clock may have been set back meanwhile.
                until = min(promise.until, now + LONGEST)
                self._promises[name] = msgspec.structs.replace(promise, until=until)
            except (OSError, msgspec.MsgspecError):
                with suppress(OSError):
                    path.unlink()
        self._forget()

    def promise(self, claim: Claim) -> None:
        """Keep room for a machine; an error says why not. The same again is the same promise."""
        if ID.fullmatch(claim.id) is None:
            raise EncampError(Code.USAGE, f"{claim.id[:80]!r} cannot be a claim's id.")
        if not (math.isfinite(claim.seconds) and 0 < claim.seconds <= LONGEST):
            raise EncampError(Code.USAGE, f"A claim cannot last {claim.seconds:g} seconds.")
        self._forget()
        if claim.id in self._promises:
            return
        if self._use(claim.id) is not Use.NONE:
            raise EncampError(Code.WRONG_STATE, f"Claim {claim.id} was used before.")
        if len(self._promises) >= MOST:
            raise EncampError(Code.NO_ROOM, f"This host has {MOST} claims already.", transient=True)
        entry = owners.account(claim.owner)
        _check_environment(claim.environment, owners.user_of(entry))
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

    def ids(self) -> tuple[str, ...]:
        """What was promised and is not used."""
        self._forget()
        return tuple(id for id in list(self._promises) if self._use(id) is Use.NONE)

    def _forget(self) -> None:
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
        from encamp.machines import room

        room.check_processors(size.cpus)
        machines = room.standing()
        promises = dict(self._promises)
        # What the machines of claims hold already; what they will is promised by their claims.
        used: dict[str, int] = {}
        promised = 0
        for machine in machines:
            claim = self._claim_of(machine)
            if claim is None:
                promised += machine.growth
            else:
                used[claim] = used.get(claim, 0) + machine.used
        for id, promise in promises.items():
            promised += max(0, promise.memory - used.get(id, 0))
        others = len(promises.keys() - used)
        room.check_memory(_needed(size), promised, len(machines) + others)
        if size.disk:
            from encamp.agent.owned import disk_growth

            disks = sum(promise.size.disk for id, promise in promises.items() if id not in used)
            room.check_disk(size.disk, disks + disk_growth(self._home), self._home.root)

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

    def _claim_of(self, machine: Standing) -> str | None:
        """Which claim a machine's process was made for, or taken over for. Anybody could say so: it
        counts only if the claim is its owner's, or root's, whose machines run as an account of
        their own."""
        try:
            uid = Path(f"/proc/{machine.pid}").stat().st_uid
            variables = Path(f"/proc/{machine.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        marks = [word[len(MARKED) :].decode() for word in variables if word.startswith(MARKED)]
        uses = [id for id in list(self._promises) if self._machine(id) == machine.name]
        promise = next((self._promises[id] for id in (*uses, *marks) if id in self._promises), None)
        if promise is None or (promise.owner != uid and promise.owner != os.geteuid()):
            return None
        return promise.id


def _needed(size: Size) -> int:
    """Memory that a machine's process may come to hold."""
    from encamp.machines.hardware import TRANSLATION_BUFFER
    from encamp.machines.room import OWN

    return size.memory + OWN + TRANSLATION_BUFFER["tcg"] * MIB


def _check_environment(name: str, user: User) -> None:
    """Can machines of it be made here at all, as far as its description tells?"""
    from encamp.describe.environments import check_use, find_environment

    check_use(find_environment(name), user)
