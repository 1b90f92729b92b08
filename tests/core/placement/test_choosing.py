"""Hosts are filtered by what a request needs, and sorted by its rank and then the site's."""

from __future__ import annotations

import pytest

from encamp.core.actions import ClaimRoom, WriteRequest
from encamp.model.errors import EncampError
from encamp.model.job import MachineRequest
from encamp.model.machine import State
from encamp.model.policy import Policy
from encamp.model.request import Cause, PartState, RequestState, Together
from encamp.model.size import Size
from tests.core.placement.small_site import GIB, Site, machine, request


def test_a_request_is_written_down_before_a_host_is_asked() -> None:
    site = Site()
    site.join("node1")
    written, asked = site.submit("r")
    assert isinstance(written, WriteRequest)
    assert written.record.state is RequestState.CLAIMING
    assert asked == ClaimRoom(request="r", number=0, attempt=1, host="node1")


def test_only_hosts_with_room_are_chosen() -> None:
    site = Site()
    site.join("small", cpus=1, memory=1)
    site.join("large", cpus=8, memory=16)
    site.submit("r", size=Size(2, 2 * GIB))
    assert site.host("r") == "large"


def test_a_host_is_never_promised_more_than_it_has() -> None:
    site = Site()
    site.join("node1", cpus=4, memory=2)
    for number in range(4):
        site.submit(f"r{number}", size=Size(1, GIB))
    assert [site.state(f"r{number}") for number in range(4)] == [
        RequestState.CLAIMING,
        RequestState.CLAIMING,
        RequestState.WAITING,
        RequestState.WAITING,
    ]
    assert site.cause("r2") is Cause.NO_ROOM
    assert site.sentence("r2") == "node1 has less than 1 GiB free"


def test_processors_can_be_promised_more_than_once() -> None:
    site = Site(Policy(overcommit=2.0))
    site.join("node1", cpus=1)
    assert [len(site.submit(f"r{number}")) for number in range(3)] == [2, 2, 0]


def test_machines_that_nobody_requested_count() -> None:
    site = Site()
    site.join("node1", cpus=2, machines=(machine("own", cpus=2),))
    site.submit("r")
    assert site.cause("r") is Cause.NO_ROOM
    site.machines("node1")
    assert site.state("r") is RequestState.CLAIMING


def test_a_paused_machine_keeps_its_memory_and_no_processor() -> None:
    site = Site()
    site.join("node1", cpus=1, memory=2, machines=(machine("m", state=State.PAUSED),))
    site.submit("fits", size=Size(1, GIB))
    assert site.state("fits") is RequestState.CLAIMING
    site = Site()
    site.join("node1", cpus=1, memory=2, machines=(machine("m", state=State.PAUSED),))
    site.submit("large", size=Size(1, 2 * GIB))
    assert site.sentence("large") == "node1 has less than 2 GiB free"


@pytest.mark.parametrize("state", [State.SUSPENDED, State.STOPPED, State.FAILED])
def test_what_has_no_process_takes_no_room(state: State) -> None:
    site = Site()
    site.join("node1", cpus=1, machines=(machine("m", state=state),))
    site.submit("r")
    assert site.state("r") is RequestState.CLAIMING


def test_a_machine_that_is_reported_is_not_counted_twice() -> None:
    site = Site()
    site.join("node1", cpus=2)
    site.submit("r")
    site.answer()
    site.run("r", machine="m1")
    site.machines("node1", machine("m1"))
    site.submit("second")
    assert site.state("second") is RequestState.CLAIMING


def test_a_machine_that_was_reported_before_its_id_was_known_is_not_counted_twice() -> None:
    site = Site()
    site.join("node1", cpus=2)
    site.submit("r")
    site.answer()
    site.machines("node1", machine("m1"))
    site.submit("second")
    assert site.state("second") is RequestState.WAITING
    site.moves(site.part("r"), PartState.STARTING, machine="m1", cause=Cause.START)
    assert site.state("second") is RequestState.CLAIMING


def test_a_machine_on_its_way_out_takes_room_until_it_is_gone() -> None:
    site = Site()
    site.join("node1", cpus=1)
    site.submit("r")
    site.answer()
    site.run("r", machine="m1")
    site.machines("node1", machine("m1"))
    site.submit("second")
    site.finish("r")
    assert site.state("second") is RequestState.WAITING
    site.machines("node1")
    assert site.state("second") is RequestState.CLAIMING


def test_disks_count_what_is_promised_and_what_is_free() -> None:
    site = Site()
    site.join("node1", readings={"disk_total": 101 * GIB, "disk_free": 31 * GIB})
    site.submit("r1", size=Size(1, GIB, 20 * GIB))
    site.submit("r2", size=Size(1, GIB, 20 * GIB))
    assert site.state("r1") is RequestState.CLAIMING
    assert site.sentence("r2") == "node1 has less than 20 GiB of disk free"
    site.read("node1", disk_free=60 * GIB)
    assert site.state("r2") is RequestState.CLAIMING


def test_requirements_are_met() -> None:
    site = Site()
    site.join("a", readings={"kvm": "absent"})
    site.join("b", readings={"kvm": "works"})
    site.join("c")
    site.submit("r", requirements="host.kvm == 'works'")
    assert site.host("r") == "b"


def test_a_host_that_comes_to_meet_the_requirements_is_chosen_then() -> None:
    site = Site()
    site.join("a", readings={"load1": 9.0})
    site.submit("r", requirements="host.load1 < 2")
    assert site.cause("r") is Cause.REQUIREMENTS
    assert site.sentence("r") == "a does not meet host.load1 < 2"
    site.read("a", load1=1.0)
    assert site.state("r") is RequestState.CLAIMING


def test_what_a_host_has_is_told_as_people_write_it() -> None:
    site = Site()
    site.join("a", readings={"load1": 9.25, "disk_free": 3 << 29, "kvm": "absent"})
    site.submit(
        "r",
        requirements="host.disk_free > 64 * GiB and max(h.disk_free for h in hosts) > 0"
        " and host.load1 < 2 and host.kvm == 'works'",
    )
    [reason] = site.why("r").hosts
    assert reason.sentence.endswith(
        ": host.disk_free is 1.5 GiB, max(h.disk_free for h in hosts) is 1.5 GiB,"
        " host.load1 is 9.25, host.kvm is 'absent'"
    )


def test_requirements_about_all_hosts_are_looked_at_again_after_a_while() -> None:
    site = Site()
    for number in range(300):
        site.join(f"node{number:03}", readings={"load1": 1.0})
    site.submit("r", requirements="host.load1 * 2 < mean(h.load1 for h in hosts)")
    assert site.cause("r") is Cause.REQUIREMENTS
    site.read("node007", load1=0.1)
    due = site.core.next_look()
    assert due is not None
    site.wait_until(due)
    assert site.host("r") == "node007"


def test_requirements_about_the_time_are_looked_at_again() -> None:
    site = Site()
    site.join("a")
    site.submit("r", requirements=f"now > {site.now + 25}")
    assert site.cause("r") is Cause.REQUIREMENTS
    for _ in range(3):
        due = site.core.next_look()
        assert due is not None
        site.wait_until(due)
    assert site.state("r") is RequestState.CLAIMING


def test_a_host_that_offers_no_such_command_takes_none() -> None:
    site = Site()
    site.join("a", commands=())
    site.submit("r")
    assert site.cause("r") is Cause.ENVIRONMENT
    assert site.sentence("r") == "a takes no requests of a site"


def test_hosts_make_machines_only_for_owners_they_can_make_them_for() -> None:
    site = Site()
    site.submit("early", owner="berta")
    site.join("a", owners=("anna",))
    site.submit("r", owner="berta")
    assert site.cause("r") is Cause.ENVIRONMENT or site.cause("early") is Cause.ENVIRONMENT
    site.submit("own", owner="anna")
    assert site.host("own") == "a"
    site.join("b", owners=("berta", "clara"))
    assert site.host("r") == site.host("early") == "b"


def test_hosts_that_are_not_there_are_not_chosen() -> None:
    site = Site()
    site.join("a")
    site.lose("a")
    site.submit("r")
    assert site.cause("r") is Cause.NO_HOSTS
    assert site.sentence("r") == "a is not there"
    site.join("a")
    assert site.host("r") == "a"


def test_a_host_that_tells_nothing_is_not_chosen() -> None:
    site = Site()
    site.join("a", readings={"memory_total": None})
    site.submit("r")
    assert site.sentence("r") == "a does not tell its processors and memory"
    site.read("a", memory_total=8 * GIB)
    assert site.state("r") is RequestState.CLAIMING


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────


def test_the_requests_own_rank_comes_first_and_the_sites_decides_between_equals() -> None:
    site = Site(Policy(rank=("spread",)))
    site.join("a", readings={"load1": 1.0})
    site.join("b", readings={"load1": 0.5})
    site.join("c", readings={"load1": 0.5}, machines=(machine("m"),))
    site.submit("r", rank="-host.load1")
    assert site.host("r") == "b"


def test_packing_fills_one_host_before_the_next() -> None:
    site = Site(Policy(rank=("pack",)))
    site.join("a")
    site.join("b", machines=(machine("m"),))
    hosts = [site.place(f"r{number}") for number in range(4)]
    assert hosts == ["b", "b", "b", "a"]


def test_spreading_takes_the_emptiest() -> None:
    site = Site(Policy(rank=("spread",)))
    site.join("a")
    site.join("b")
    assert [site.place(f"r{number}") for number in range(4)] == ["a", "b", "a", "b"]


def test_a_host_where_the_environment_is_ready_is_preferred() -> None:
    site = Site(Policy(rank=("ready", "spread")))
    site.join("a")
    site.join("b", readings={"images": ["mini:2"]})
    site.knows("mini", image="mini")
    assert site.place("r1") == "b"
    site.join("c", readings={"templates": ["mini"]})
    assert site.place("r2") == "c"
    # A machine has come up on b, so that its template lies there now.
    assert site.place("r3") == "b"


def test_where_another_image_is_wanted_the_environment_being_ready_is_no_use() -> None:
    site = Site(Policy(rank=("ready", "spread")))
    site.join("a", readings={"templates": ["mini"]})
    site.join("b", readings={"images": ["special:1"]})
    site.knows("mini", image="mini")
    assert site.place("r1") == "a"
    owner = request("r").machine.owner
    special = MachineRequest(environment="mini", image="special:1", owner=owner)
    assert site.place("r2", machine=special) == "b"


def test_a_machine_that_stands_idle_takes_no_room_and_draws_the_next_job() -> None:
    site = Site(Policy(rank=("ready", "spread")))
    site.join("a", cpus=1)
    site.join("b", cpus=1, machines=(machine("m", idle=True),))
    assert site.place("r") == "b"
    site.machines("b", machine("m"))
    assert site.place("r2") == "a"


def test_the_fastest_is_idle_and_has_hardware_virtualization() -> None:
    site = Site(Policy(rank=("fastest",)))
    site.join("a", readings={"kvm": "absent", "load1": 0.0})
    site.join("b", readings={"kvm": "works", "load1": 2.0})
    site.join("c", readings={"kvm": "works", "load1": 0.1})
    assert site.place("r1") == "c"
    site.read("c", load1=3.0)
    assert site.place("r2") == "b"


def test_equal_hosts_are_chosen_by_name() -> None:
    site = Site(Policy(rank=()))
    for name in ("c", "a", "b"):
        site.join(name)
    assert site.place("r") == "a"


@pytest.mark.parametrize("rank", ["1 / (host.load1 - 1)", "host.gpus", "float(host.kvm)"])
def test_a_host_of_which_the_rank_is_not_known_comes_last(rank: str) -> None:
    site = Site()
    site.join("a", readings={"load1": 1.0})
    site.join("b", cpus=2, readings={"load1": 2.0, "gpus": 1, "kvm": "7"})
    assert [site.place(f"r{number}", rank=rank) for number in range(4)] == ["b", "b", "a", "a"]
    site.submit("large", rank=rank, count=3)
    (reason,) = [host for host in site.why("large").hosts if host.host == "a"]
    assert reason.sentence.startswith("ranks last: ")


def test_hosts_that_meet_a_condition_come_first_if_the_rank_is_one() -> None:
    site = Site()
    for name in ("a", "b", "c"):
        site.join(name, readings={"kvm": "works" if name == "b" else "not there"})
    assert site.place("r", rank="host.kvm == 'works'") == "b"
    with pytest.raises(EncampError, match="a number is needed here"):
        site.core.placement.check(request("x", rank="host.kvm"))


def test_a_rank_that_runs_long_costs_no_more_than_its_bound() -> None:
    site = Site()
    site.join("a", readings={"images": [str(number) for number in range(2000)]})
    rank = "sum(len([y for y in host.images if y != x]) for x in host.images)"
    site.submit("r", rank=rank)
    assert site.host("r") == "a"


# ── groups ───────────────────────────────────────────────────────────────────────────────────────


def test_all_machines_of_a_group_are_placed_or_none() -> None:
    site = Site()
    site.join("a", cpus=2)
    assert site.submit("g", count=3) == []
    assert site.cause("g") is Cause.NO_ROOM
    site.submit("small", count=2)
    assert site.state("small") is RequestState.CLAIMING
    site.join("b", cpus=3)
    assert {part.host for part in site.record("g").parts} == {"b"}


def test_a_group_is_spread_over_several_hosts() -> None:
    site = Site()
    for name in "abc":
        site.join(name, cpus=2)
    site.submit("g", count=6)
    hosts = [part.host for part in site.record("g").parts]
    assert sorted(hosts) == ["a", "a", "b", "b", "c", "c"]


def test_the_rank_holds_between_machines_of_a_group() -> None:
    site = Site(Policy(rank=("spread",)))
    for name in "abc":
        site.join(name)
    site.submit("g", count=3)
    assert sorted(part.host for part in site.record("g").parts) == ["a", "b", "c"]


def test_a_group_on_one_host() -> None:
    site = Site()
    site.join("a", cpus=2)
    site.join("b", cpus=2)
    site.submit("g", count=3, together=Together.ONE_HOST)
    assert site.state("g") is RequestState.WAITING
    site.join("c", cpus=3)
    assert [part.host for part in site.record("g").parts] == ["c", "c", "c"]


def test_a_group_apart() -> None:
    site = Site()
    site.join("a")
    site.join("b")
    site.submit("g", count=3, together=Together.APART)
    assert site.state("g") is RequestState.WAITING
    assert site.sentence("g") == "2 hosts have room for some of it"
    site.join("c")
    assert sorted(part.host for part in site.record("g").parts) == ["a", "b", "c"]


def test_nothing_is_begun_before_all_hosts_of_a_group_have_promised() -> None:
    site = Site()
    site.join("a", cpus=1)
    site.join("b", cpus=1)
    site.submit("g", count=2)
    site.answer()
    assert site.begun == []
    site.answer()
    assert len(site.begun) == 2
    assert site.state("g") is RequestState.STARTING


def test_a_group_runs_when_all_its_machines_do_and_ends_when_all_have() -> None:
    site = Site()
    site.join("a")
    site.submit("g", count=2)
    site.answer_all()
    site.run("g", 0)
    assert site.state("g") is RequestState.STARTING
    site.run("g", 1)
    assert site.state("g") is RequestState.RUNNING
    site.finish("g", 0, exit_code=3)
    assert site.state("g") is RequestState.RUNNING
    site.finish("g", 1)
    assert site.state("g") is RequestState.DONE
    assert site.record("g").exit_code == 3


# ── neighbours ───────────────────────────────────────────────────────────────────────────────────


def test_near_means_on_a_host_of_such_a_machine_of_the_same_owner() -> None:
    site = Site(Policy(rank=()))
    for name in "abc":
        site.join(name)
    site.place("db", label="db", requirements="host.name == 'b'")
    site.place("other", label="db", owner="berta", requirements="host.name == 'c'")
    assert site.place("web", near=("db",)) == "b"
    site.submit("lonely", near=("cache",))
    assert site.cause("lonely") is Cause.NEIGHBOURS
    assert site.sentence("lonely") == "3 hosts have no machine of cache"
    site.place("cache", label="cache", requirements="host.name == 'c'")
    assert site.host("lonely") == "c"


def test_away_means_on_no_host_of_such_a_machine() -> None:
    site = Site(Policy(rank=()))
    site.join("a")
    site.join("b")
    site.place("one", label="one")
    assert site.place("two", label="two", away=("one",)) == "b"
    site.submit("three", away=("one", "two"))
    assert site.cause("three") is Cause.NEIGHBOURS
    site.finish("one")
    assert site.host("three") == "a"


def test_being_away_from_ones_own_label_keeps_a_group_apart() -> None:
    site = Site(Policy(rank=()))
    site.join("a")
    site.join("b")
    site.submit("g", count=2, label="x", away=("x",))
    assert sorted(part.host for part in site.record("g").parts) == ["a", "b"]


def test_the_first_of_those_that_want_to_be_near_one_another_goes_anywhere() -> None:
    site = Site(Policy(rank=("spread",)))
    site.join("a")
    site.join("b")
    assert site.place("one", label="x", near=("x",)) == "a"
    assert site.place("two", label="x", near=("x",)) == "a"
    site.finish("one")
    site.finish("two")
    site.lose("a")
    assert site.place("three", label="x", near=("x",)) == "b"
