"""Where a meeting point listens, and what site.yaml can say about it."""

from __future__ import annotations

import socket

import pytest

from encamp.agent.meeting.addresses import address_towards, listening_address
from encamp.describe.site_file import read_site
from encamp.describe.sources import Level, Source
from encamp.model.errors import EncampError
from encamp.model.site import MeetingPlace, Site


def read(text: str) -> Site:
    return read_site(Source("site.yaml", Level.SITE, 0, "/etc/encamp"), text.encode())


@pytest.mark.parametrize(
    "site",
    [
        Site(),
        Site(bus=("nats://127.0.0.1:4222",)),
        Site(bus=("nats://localhost:4222",)),
        Site(bus=("tls://[::1]:4222",)),
        Site(bus=("nats://no-such-host.invalid:4222",)),
        Site(bus=("tls://192.0.2.1:4222",), meeting=MeetingPlace(listen="none")),
    ],
)
def test_site_on_one_host_listens_on_no_network(site: Site) -> None:
    assert listening_address(site) is None


def test_host_is_met_where_it_reaches_the_bus_from() -> None:
    site = Site(bus=("tls://192.0.2.1:4222",))
    here = address_towards(site)
    if here is None:
        pytest.skip("this machine has no way to other networks")
    assert listening_address(site) == (here, 0)
    with socket.create_server((here, 0)):
        pass  # It is one of this machine's own.


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        ("0.0.0.0:7479", ("0.0.0.0", 7479)),
        ("node7.example.org:1", ("node7.example.org", 1)),
        ("[::]:7479", ("::", 7479)),
    ],
)
def test_address_can_be_chosen(listen: str, place: tuple[str, int]) -> None:
    site = read(f"meeting:\n  listen: '{listen}'\n  address: outside.example.org\n")
    assert site.meeting == MeetingPlace(listen=listen, address="outside.example.org")
    assert listening_address(site) == place


@pytest.mark.parametrize("listen", ["7479", "host:", ":7479", "host:port", "a b:1", "[::]", ""])
def test_nonsense_is_refused_with_its_place(listen: str) -> None:
    with pytest.raises(EncampError) as raised:
        read(f"meeting:\n  listen: '{listen}'\n")
    assert "2:" in raised.value.detail + raised.value.sentence
