"""Wires to a bridge: who may have one, and how long an address is taken."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from encamp.machines.tap import Tap, again, take
from encamp.model.errors import Code, EncampError
from encamp.model.link import Bridge, Link
from tests.batch.enrol.conftest import within
from tests.site.bridging import BRIDGE, Wire, wire
from tests.site.siting import root_only

pytestmark = root_only

RANGE = Bridge(name=BRIDGE, addresses="10.97.3.8-10.97.3.9/24")


@pytest.fixture(scope="module")
def net() -> Iterator[Wire]:
    with wire() as made:
        yield made


def test_address_is_taken_as_long_as_somebody_has_the_wire(net: Wire) -> None:
    with within(net):
        with take(RANGE, ()) as first, take(RANGE, ()) as second:
            assert first.link is not None
            assert second.link is not None
            assert [first.link.address, second.link.address] == ["10.97.3.8", "10.97.3.9"]
            assert net.taps() == sorted([first.device, second.device])
            with pytest.raises(EncampError, match="are taken") as full:
                take(RANGE, ())
            assert full.value.transient
            with pytest.raises(EncampError, match=r"has the address 10\.97\.3\.8 by now"):
                again(first.link)
        assert net.taps() == []
        with take(RANGE, {"10.97.3.8"}) as third:
            assert third.link == Link(bridge=BRIDGE, address="10.97.3.9", prefix=24)


def test_only_root_can_have_one(net: Wire) -> None:
    with within(net):
        child = os.fork()
        if child == 0:
            os.setresuid(65534, 65534, 65534)
            try:
                Tap.to(Link.on(RANGE, "10.97.3.8"))
            except EncampError as error:
                os._exit(0 if error.code is Code.USAGE else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert net.taps() == []


def test_bridge_keeps_its_own_address_when_machines_come_and_go(net: Wire) -> None:
    def hardware(device: str) -> str:
        return net.run("ip", "-o", "link", "show", device).split("link/ether ")[1].split()[0]

    made = ("address", "fc:00:00:00:00:01", "type", "veth", "peer", "name", "other1")
    net.run("ip", "link", "add", "other0", *made)
    try:
        net.run("ip", "link", "set", "other0", "master", BRIDGE)
        assert hardware(BRIDGE) == "fc:00:00:00:00:01", "the lowest of its ports"
        with within(net), take(RANGE, ()) as tap:
            assert hardware(tap.device) == "fe:54:0a:61:03:08"
            assert hardware(BRIDGE) == "fc:00:00:00:00:01"
    finally:
        net.run("ip", "link", "delete", "other0")
