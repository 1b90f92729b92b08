"""Room that an agent has promised to requests, as it is written down: nobody else of its home takes
it meanwhile, whoever they start a machine for."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.agent.commands.family import MARK
from encamp.agent.commands.stage import read_stage
from encamp.home import Home
from encamp.machines.room import Counted, Counting, counted, growth
from encamp.machines.standing import Standing
from encamp.model.size import Size
from encamp.small_file import read_small

MARKED = f"{MARK}=".encode()


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


def directory(home: Home) -> Path:
    return home.root / "claims"


def read(path: Path) -> Promise | None:
    """None: it was never written whole."""
    with suppress(OSError, msgspec.MsgspecError):
        promise = PROMISES.decode(read_small(path))
        return promise if promise.id == path.name else None
    return None


def with_promises(promises: Mapping[str, Promise], machines: Mapping[str, str]) -> Counting:
    """Counts machines and promises. As long as its command is under way a promise stands for its
    machine, less what the machine holds already. `machines`: the ids of those that commands have
    told of."""
    told = {machine: id for id, machine in machines.items() if machine}

    def counting(standing: list[Standing]) -> Counted:
        used: dict[str, int] = {}
        unpromised = []
        for machine in standing:
            claim = _claim_of(machine, promises, told)
            if claim is None:
                unpromised.append(machine)
            else:
                used[claim] = used.get(claim, 0) + machine.used
        rest = sum(max(0, one.memory - used.get(id, 0)) for id, one in promises.items())
        waiting = [promise for id, promise in promises.items() if id not in used]
        return Counted(
            memory=growth(unpromised) + rest,
            machines=len(standing) + len(waiting),
            disk=sum(promise.size.disk for promise in waiting),
        )

    return counting


def counting(home: Home) -> Counting:
    """For whoever makes a machine in this home: the command that uses a promise has its room, and
    all others leave alone what is promised."""
    try:
        names = os.listdir(directory(home))
    except OSError:
        return counted
    if not names or os.environ.get(MARK) in names:
        return counted
    promises, machines = {}, {}
    for name in names:
        promise = read(directory(home) / name)
        command = home.root / "commands" / "under-way" / name
        begun = command.is_dir()
        over = (command / "result").exists() or (home.root / "commands" / "over" / name).exists()
        if promise is None or over or not (begun or promise.until > time.time()):
            continue
        promises[name] = promise
        machines[name] = read_stage(command / "progress").machine
    return with_promises(promises, machines)


def _claim_of(
    machine: Standing, promises: Mapping[str, Promise], told: Mapping[str, str]
) -> str | None:
    """Which claim a machine's process was made for, or taken over for. Anybody could say so: it
    counts only if the claim is its owner's."""
    marks = []
    with suppress(OSError):
        variables = Path(f"/proc/{machine.pid}/environ").read_bytes().split(b"\0")
        words = [word[len(MARKED) :] for word in variables if word.startswith(MARKED)]
        marks = [word.decode(errors="replace") for word in words]
    for id in (told.get(machine.name, ""), *marks):
        promise = promises.get(id)
        if promise is not None:
            return id if promise.owner == machine.owner else None
    return None
