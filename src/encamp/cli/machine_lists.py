"""`encamp ps`: the machines of this host, or of all hosts of a site."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from encamp.cli.listing import show_list
from encamp.cli.tables import SHORT_ID, ago, clean
from encamp.home import default_home, home_id_path, user_name
from encamp.model.errors import EncampError
from encamp.model.machine import Machine, State

if TYPE_CHECKING:
    from encamp.door.questions import SiteMachine

BELOW = ("reason", "size", "runs on", "owner", "environment")
"""What comes below its machine, one after the other, where there is no room for all beside it."""


COLUMNS = ("id", "name", "owner", "environment", "size", "runs on", "state", "since", "reason")
SITE_COLUMNS = ("id", "name", "host", *COLUMNS[2:])


def list_machines(machines: Sequence[Machine]) -> None:
    show_list(COLUMNS, [_here(machine) for machine in machines], below=BELOW)


def list_own_machines(here: Sequence[Machine], *, as_json: bool) -> None:
    """One's own on this host, and on the site that one is at."""
    from encamp.cli.asking import as_whom
    from encamp.cli.machines import print_json

    try:
        found = own_on_site(here)
    except EncampError as error:
        print(f"encamp: Only those of this host: {error}", file=sys.stderr)
        found = []
    if as_json:
        print_json([*here, *found])
        return
    if not found:
        list_machines(here)
        return
    rows = [(*row[:2], "(here)", *row[2:]) for row in map(_here, here)]
    name = clean(as_whom())
    rows += [(*row[:3], name, *row[4:]) for row in map(_there, found)]
    show_list(SITE_COLUMNS, rows, below=BELOW)
    _explain_unknown(found)


def own_on_site(here: Sequence[Machine]) -> list[SiteMachine]:
    """One's own machines on the site, but those in one's own home on this host."""
    from encamp.cli.asking import asked
    from encamp.door.questions import AskMachines, SiteMachine

    found = asked(AskMachines(mine=True), SiteMachine)
    # The site's host may be this one, and its home the caller's.
    known, home = {machine.id for machine in here}, _own_home()
    # What its agent has told of the caller's own home may have changed since, by the caller's hand.
    return [one for one in found if one.machine.id not in known and one.home != home]


def list_site_machines(hosts: tuple[str, ...], *, as_json: bool) -> None:
    from encamp.cli.asking import asked
    from encamp.cli.machines import print_json
    from encamp.door.questions import AskMachines, SiteMachine

    found = asked(AskMachines(hosts=hosts), SiteMachine)
    if as_json:
        print_json(found)
        return
    show_list(SITE_COLUMNS, [_there(entry) for entry in found], below=BELOW)
    _explain_unknown(found)


def show_on_site(reference: str, *, as_json: bool) -> None:
    """All that the site's manager knows of a machine: one's own come first, also if others have one
    of the same name."""
    from encamp.cli.asking import asked
    from encamp.cli.machines import print_json
    from encamp.cli.tables import print_machine
    from encamp.door.questions import AskMachines, SiteMachine

    named = [one for one in asked(AskMachines(mine=True), SiteMachine) if _fits(one, reference)]
    exact = [one for one in named if reference in (one.machine.id, one.machine.name)]
    chosen = exact or named
    if len(chosen) != 1:
        chosen = asked(AskMachines(id=reference), SiteMachine)
    [found] = chosen
    if as_json:
        print_json(found.machine)
        return
    print_machine(found.machine, {"host": found.host, "owner": _owner(found)})
    _explain_unknown([found])


def _fits(one: SiteMachine, reference: str) -> bool:
    return one.machine.name == reference or one.machine.id.startswith(reference)


def _own_home() -> str | None:
    """What an agent that works in the caller's home calls it; None: there was never one."""
    try:
        return home_id_path(default_home()).read_text().strip()
    except OSError:
        return None


def _here(machine: Machine) -> tuple[str, ...]:
    return (
        machine.id[:SHORT_ID],
        machine.name,
        user_name(machine.owner),
        machine.environment,
        str(machine.size),
        machine.runs_on,
        _state(machine),
        ago(machine.changed),
        machine.reason,
    )


def _there(entry: SiteMachine) -> tuple[str, ...]:
    machine = entry.machine
    return (
        machine.id[:SHORT_ID],
        machine.name,
        entry.host,
        _owner(entry),
        machine.environment,
        str(machine.size),
        machine.runs_on,
        _state(machine) if entry.known else f"{_state(machine)}?",
        ago(machine.changed),
        machine.reason,
    )


def _owner(entry: SiteMachine) -> str:
    """By name, if it is known: users of other hosts may have other names here."""
    if entry.owner:
        return clean(entry.owner)
    machine = entry.machine
    return user_name(machine.owner) if machine.host == os.uname().nodename else str(machine.owner)


def _state(machine: Machine) -> str:
    """Whether a running one waits for a job to reuse it, too."""
    return "idle" if machine.idle and machine.state is State.RUNNING else machine.state.value


def _explain_unknown(found: Sequence[SiteMachine]) -> None:
    if any(not entry.known for entry in found):
        print("?: its host is not there at the moment; this is what was last heard.")
