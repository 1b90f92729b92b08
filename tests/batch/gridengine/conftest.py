"""One private Grid Engine for all tests here; after each, nothing of its jobs is left."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from encamp.home import Home
from tests.batch.gridengine.camping import Camp, Person, a_camp


@pytest.fixture(scope="session")
def whole_camp(site_home: Home) -> Iterator[Camp]:
    if os.geteuid() != 0:
        pytest.skip("only root makes namespaces, and only root's agent has a bait")
    with a_camp(site_home) as made:
        made.install()
        yield made


@pytest.fixture
def camp(whole_camp: Camp) -> Iterator[Camp]:
    yield whole_camp
    whole_camp.nothing_left()


@pytest.fixture
def agents(camp: Camp) -> None:
    """On all hosts."""
    for host in camp.site.hosts:
        agent = camp.agents.get(host.name)
        if agent is None or not agent.running():
            camp.start_agent(host)


@pytest.fixture
def no_agents(camp: Camp) -> None:
    for host in camp.site.hosts:
        camp.stop_agent(host)


@pytest.fixture
def alice(whole_camp: Camp) -> Person:
    return whole_camp.people[0]


@pytest.fixture
def bob(whole_camp: Camp) -> Person:
    return whole_camp.people[1]
