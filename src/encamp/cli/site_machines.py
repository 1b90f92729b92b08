"""`encamp ps --site`: the machines of all hosts."""

from __future__ import annotations

from encamp.cli.asking import asked
from encamp.cli.tables import SHORT_ID, ago, clean, show, table
from encamp.door.questions import AskMachines, SiteMachine


def list_site_machines(hosts: tuple[str, ...], *, as_json: bool) -> None:
    from encamp.cli.machines import print_json

    found = asked(AskMachines(hosts=hosts), SiteMachine)
    if as_json:
        print_json(found)
        return
    made = table(
        *("id", "name", "host", "owner", "environment", "size", "state", "since", "reason"),
        whole=("id", "state", "since"),
    )
    for entry in found:
        machine = entry.machine
        made.add_row(
            clean(machine.id[:SHORT_ID]),
            clean(machine.name),
            clean(entry.host),
            # Users of other hosts may have other names here.
            str(machine.owner),
            clean(machine.environment),
            str(machine.size),
            machine.state.value if entry.known else f"{machine.state.value}?",
            ago(machine.changed),
            clean(machine.reason),
        )
    show(made)
    if any(not entry.known for entry in found):
        print("?: its host is not there at the moment; this is what was last heard.")
