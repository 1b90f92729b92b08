"""Which hosts can have another worker node, as those see it who choose one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from encamp.agent.journal import Journal
from encamp.agent.nodes.keeping import ask_to_leave, change
from encamp.agent.nodes.offering import can_enrol, trying
from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.reader import Reader
from encamp.describe.property_files import batch_properties
from encamp.home import Home
from encamp.model.batch import BatchSettings
from encamp.model.errors import Code, EncampError
from encamp.model.link import Link
from encamp.model.machine import Machine, State
from encamp.model.node import Node, NodeState
from encamp.model.size import MIB, Size
from tests.site.siting import root_only

pytestmark = root_only

BRIDGE = "bridge: {name: br0, addresses: 10.99.0.100-10.99.0.101/24}\n"
NAMES = ["big", "small"]
SETTINGS = BatchSettings(system="slurm", pause=60.0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(site))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path / "home"))
    (site / "settings.yaml").write_text(BRIDGE)
    (site / "batch.yaml").write_text("system: slurm\n")
    (site / "environments.yaml").write_text("big: {extends: slurm-node}\nplain: {extends: mini}\n")
    return Home(tmp_path / "home").prepare()


def machine(address: str, state: State = State.RUNNING) -> Machine:
    """A node with that address."""
    name = f"node{address[-1]}"
    return Machine(
        id=address[-1] * 32,
        name=name,
        owner=0,
        host=os.uname().nodename,
        environment="big",
        image="0" * 64,
        size=Size(1, 128 * MIB),
        state=state,
        reason="it runs",
        created=0.0,
        changed=0.0,
        link=Link(bridge="br0", address=address, prefix=24),
        node=Node(system="slurm", name=name, state=NodeState.MEMBER, since=0.0),
    )


def write(home: Home, one: Machine) -> Machine:
    journal = Journal(home)
    journal.directory(one.id).path.mkdir(parents=True, exist_ok=True)
    journal.write(one)
    return one


def test_a_host_needs_a_bridge_with_a_free_address(home: Home, tmp_path: Path) -> None:
    assert can_enrol(home, SETTINGS, NAMES) == NAMES
    write(home, machine("10.99.0.100"))
    assert can_enrol(home, SETTINGS, NAMES) == NAMES
    last = write(home, machine("10.99.0.101", State.SUSPENDED))
    assert can_enrol(home, SETTINGS, NAMES) == []
    write(home, msgspec.structs.replace(last, state=State.FAILED))
    assert can_enrol(home, SETTINGS, NAMES) == NAMES
    (tmp_path / "site" / "settings.yaml").unlink()
    assert can_enrol(home, SETTINGS, NAMES) == []


def test_where_a_node_failed_none_is_offered_for_a_while(home: Home) -> None:
    def fail() -> None:
        with trying(home, "big"):
            raise EncampError(Code.NO_ROOM, "There is no room.")

    with pytest.raises(EncampError):
        fail()
    assert can_enrol(home, SETTINGS, NAMES) == ["small"]
    short = msgspec.structs.replace(SETTINGS, pause=0.0)
    assert can_enrol(home, short, NAMES) == NAMES
    with trying(home, "big"):
        pass
    assert can_enrol(home, SETTINGS, NAMES) == NAMES


async def test_hosts_tell_it_as_a_property(home: Home) -> None:
    wanted = [one for one in batch_properties() if one.name == "can_enrol"]
    reader = Reader(wanted, Plugins(), changed=lambda _: None, home=home)
    assert (await reader.read())["can_enrol"].value == ["big", "slurm-node"]


def test_what_somebody_asked_for_is_not_overwritten(home: Home) -> None:
    """By one who has looked before that."""
    former = write(home, machine("10.99.0.100"))
    journal = Journal(home)
    ask_to_leave(journal, former, "why not", 7.0)
    changed = change(journal, former, lambda node: msgspec.structs.replace(node, quiet=3.0))
    assert changed is not None
    assert changed.node is not None
    assert (changed.node.until, changed.node.reason, changed.node.quiet) == (7.0, "why not", 3.0)
    assert change(journal, machine("10.99.0.109"), lambda node: node) is None
