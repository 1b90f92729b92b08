"""Everywhere to meet. The servers are shared by all tests that leave them as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.bus.meeting import LocalMeeting, Meeting, NatsMeeting
from tests.bus.nats_server import DEBIAN, WHEEL, NatsSite, nats_site

SERVERS = {
    "nats": (DEBIAN, 1),
    "nats-wheel": (WHEEL, 1),
    "nats-cluster": (DEBIAN, 3),
}

Sites = Callable[[str], NatsSite]


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """A site on some of the servers, started when a test first needs it."""
    running: dict[str, NatsSite] = {}
    with ExitStack() as stack:

        def find(kind: str) -> NatsSite:
            if kind not in running:
                program, count = SERVERS[kind]
                directory = tmp_path_factory.mktemp(kind)
                running[kind] = stack.enter_context(
                    nats_site(directory, program=program, count=count)
                )
            return running[kind]

        yield find


def _meeting(kind: str, shared_site: Sites) -> Meeting:
    return LocalMeeting() if kind == "local" else NatsMeeting(shared_site(kind))


@pytest.fixture(params=["local", "nats"])
def meeting(request: pytest.FixtureRequest, shared_site: Sites) -> Meeting:
    return _meeting(request.param, shared_site)


@pytest.fixture(params=["local", *SERVERS])
def any_meeting(request: pytest.FixtureRequest, shared_site: Sites) -> Meeting:
    """For what must hold whatever the server."""
    return _meeting(request.param, shared_site)


@pytest.fixture(params=["nats", "nats-wheel"])
def site(request: pytest.FixtureRequest, shared_site: Sites) -> NatsSite:
    """Debian's server, and the wheel's."""
    return shared_site(request.param)
