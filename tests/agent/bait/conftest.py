"""One host with a bait for all tests; after each, nothing of its jobs is left."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from encamp.home import Home
from tests.agent.bait.hosting import Host, Person, a_host


@pytest.fixture(scope="session")
def camp(site_home: Home) -> Iterator[tuple[Host, list[Person]]]:
    if os.geteuid() != 0:
        pytest.skip("only root's agent has a bait")
    with a_host(site_home, people=2) as made:
        yield made


@pytest.fixture
def host(camp: tuple[Host, list[Person]]) -> Iterator[Host]:
    host, _ = camp
    assert host.agent is not None
    yield host
    host.end_jobs()
    if host.agent.poll() is not None:
        host.start_agent()
    host.nothing_left()


@pytest.fixture
def alice(camp: tuple[Host, list[Person]]) -> Person:
    return camp[1][0]


@pytest.fixture
def bob(camp: tuple[Host, list[Person]]) -> Person:
    return camp[1][1]
