"""The agent's machines, counted. What each of them is, the agent reports beside its properties."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from encamp.agent.owners import owners
from encamp.agent.properties.plugin import Asked, NoValueError
from encamp.model.machine import State
from encamp.model.property import Value, ValueKind
from encamp.small_file import read_small


class _Record(msgspec.Struct):
    """As much of a machine's record as is counted here."""

    state: State


RECORDS = msgspec.json.Decoder(_Record)
STATES = {state.value: state for state in State}


def machines(asked: Asked) -> Value:
    """How many machines the agent has a record of, in the states named or in all; as a dict, how
    many in each state."""
    unknown = [name for name in asked.parameters if name not in STATES]
    if unknown:
        raise NoValueError(
            f"Machines are {', '.join(STATES)}; none is '{unknown[0]}'.",
        )
    counts = dict.fromkeys(asked.parameters or STATES, 0)
    for state in _states(asked):
        if state.value in counts:
            counts[state.value] += 1
    if asked.kind is ValueKind.DICT:
        return dict(counts)
    return sum(counts.values())


def _states(asked: Asked) -> list[State]:
    # Not by the agent's journal: it brings along what makes machines, to an agent that idles.
    from encamp.machines.directory import DOOMED, MachineDirectory

    found = []
    try:
        names = os.listdir(asked.home.machines)
    except FileNotFoundError:
        return []
    for name in names:
        if not name.startswith(DOOMED):
            # One that is being made has no record yet, one that is being removed none any more.
            with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                record = MachineDirectory(asked.home.machines / name).record
                found.append(RECORDS.decode(read_small(record)).state)
    if owners(asked.home):
        from encamp.agent import owned

        machines = owned.believed(owned.records(asked.home))
        found += [machine.state for _, machine in machines]
    return found
