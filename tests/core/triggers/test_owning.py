"""What a trigger sees is told to those whose business it is."""

from __future__ import annotations

import pytest

from encamp.core.actions import Judgement, Notify
from encamp.core.triggers import Engine
from tests.core.triggers.small_site import COMMANDS, SmallSite, parse


class OwnedSite(SmallSite):
    """Machines whose names begin so belong to alice."""

    def __init__(self, when: str, do: str) -> None:
        super().__init__()
        self.engine = Engine(
            self.world,
            owner_of=lambda kind, key: "alice" if key.partition("/")[2].startswith("a") else None,
        )
        self.engine.load(parse(f"t:\n  when: {when}\n  do: {do}\n"), COMMANDS, self.now)
        self.host("node1", load1=9.0)
        self.host("node2", load1=1.0)


@pytest.mark.parametrize(
    ("when", "do", "owner"),
    [
        ("host.load1 > 8", "log(host.name)", ""),
        ("max(h.load1 for h in hosts) > 8", "log('hot')", ""),
        ("any(e.waiting > 0 for e in environments) or len(hosts) > 0", "log('some')", ""),
        ("machine.state == 'failed'", "log(machine.name)", "alice"),
        ("machine.state == 'failed' and machine.host.load1 > 8", "log(machine.name)", "alice"),
        # What there is of others, however it is asked for.
        ("count(m for m in machines if m.state == 'failed') > 0", "log('some')", None),
        ("host.load1 > 8", "log(str([m.name for m in machines]))", None),
        ("host.load1 > 8", "stop([m for m in machines if m.host == host.name])", None),
        ("machine.state == 'failed' and len(machines) > 1", "log(machine.name)", None),
        ("machines['node1/b1'].state == 'failed'", "log('it')", None),
    ],
)
def test_what_a_trigger_sees_is_told_to_whose_business_it_is(
    when: str, do: str, owner: str | None
) -> None:
    site = OwnedSite(when, do)
    for state in ("running", "failed"):
        for name in ("a1", "b1"):
            site.machine("node1", name, name=name, state=state)
        site.step()
    fired = [entry for entry in site.told if entry.judgement is Judgement.FIRED]
    assert {entry.owner for entry in fired if not entry.subject.endswith("b1")} == {owner}
    # Of one that nobody asked the manager for nobody is told.
    assert {entry.owner for entry in fired if entry.subject.endswith("b1")} <= {None}
    said = [action.owner for _, action in site.done if isinstance(action, Notify)]
    assert said == [entry.owner for entry in fired if "stop" not in do]
