"""Descriptions of simulated sites: the examples can be read, and mistakes are told with places."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB
from encamp.sim.site import Division, Sharing
from encamp.sim.site_file import read_policy, read_site
from tests.sim.sites import EXAMPLES, SMALL, described


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_can_be_read(path: Path) -> None:
    site = read_site(path)
    assert site.hosts
    assert site.policies


def test_hosts_and_environments_are_as_described(tmp_path: Path) -> None:
    site = described(tmp_path)
    [kind] = site.hosts
    assert kind.names() == ["node1", "node2"]
    assert (kind.cpus, kind.memory, kind.groups) == (4, 8192 * MIB, ("node",))
    assert (site.environments["one"].clone, site.environments["other"].templates) == (0.5, False)
    assert site.environments["other"].name == "other"


def test_policies_say_how_hosts_are_shared_and_how_requests_are_placed(tmp_path: Path) -> None:
    text = "policies:\n  mine:\n    sharing: static\n    division: demand\n    rank: spread\n"
    [mine] = described(tmp_path, SMALL + text).policies
    assert (mine.name, mine.sharing, mine.division) == ("mine", Sharing.STATIC, Division.DEMAND)
    assert mine.policy.rank == ("spread",)


def test_policy_in_a_file_of_its_own_is_called_like_the_file(tmp_path: Path) -> None:
    path = tmp_path / "packed.yaml"
    path.write_text("rank: [pack]\npatience: 5m\n")
    found = read_policy(path)
    assert (found.name, found.sharing) == ("packed", Sharing.ON_DEMAND)
    assert (found.policy.rank, found.policy.patience) == (("pack",), 300.0)


MISTAKES = {
    "hosts:\n  node: {cpus: 4}\nenvironments: {}": "site.yaml:2:9: 'memory' is missing",
    "environments: {}": "'hosts' is missing",
    SMALL + "jobs:\n  environments: {on: 1}\n": "there is no environment 'on'; did you mean 'one'?",
    SMALL + "trace:\n  environment: two\n": "site.yaml:18:16: there is no environment 'two'",
    SMALL + "trace:\n  rules:\n    - queues: a\n      environment: ote\n": (
        "site.yaml:20:20: there is no environment 'ote'"
    ),
    SMALL + "trace:\n  needs:\n    - property: a\n      hosts: nod\n": (
        "site.yaml:20:14: there is no group of hosts 'nod'; did you mean 'node'?"
    ),
    SMALL + "jobs:\n  evry: 5s\n": "there is no attribute 'evry' in 'jobs'; did you mean 'every'?",
    SMALL + "jobs:\n  cancelled: 1.5\n": "site.yaml:18:14: a number is expected here, not '1.5'",
    SMALL + "policies:\n  a:\n    pause: 2h\n": "'pause'",
    SMALL.replace("count: 2", "count: 0"): "site.yaml:4:12: a whole number is expected here",
    SMALL.replace("count: 2", "count: 99999999"): "a whole number is expected here",
    "hosts: [": "site.yaml:2:1: this is not YAML",
    SMALL + "jobs:\n  every: ${one}\n": "there are no references",
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_told_with_their_places(tmp_path: Path, text: str) -> None:
    with pytest.raises(EncampError) as raised:
        described(tmp_path, text)
    assert raised.value.code is Code.CONFIGURATION
    assert MISTAKES[text] in raised.value.detail


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    for read in (read_site, read_policy):
        with pytest.raises(EncampError, match="There is no file") as raised:
            read(tmp_path / "nowhere.yaml")
        assert raised.value.code is Code.INPUT_MISSING
