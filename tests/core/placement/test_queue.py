"""Who is placed first: fair share between owners, priority within one, nobody for ever last."""

from __future__ import annotations

import pytest

from encamp.core.actions import ClaimRoom
from encamp.core.placement.ordered import LARGEST, Ordered
from encamp.model.policy import Limit, Per, Policy
from encamp.model.request import Cause, RequestState
from encamp.model.size import Size
from tests.core.placement.small_site import GIB, Site, machine


def full_site(policy: Policy | None = None, hosts: int = 1) -> Site:
    """Every host has one processor, and a request of somebody else runs on each."""
    site = Site(policy or Policy())
    for number in range(hosts):
        site.join(f"node{number}", cpus=1)
        site.place(f"first{number}", owner="root")
    return site


def placed_in_turn(site: Site, first: str = "first0") -> list[str]:
    """Whose turn it is, one after another, on a site with one place."""
    order: list[str] = []
    running = first
    while True:
        site.finish(running)
        claims = [action for action in site.actions if isinstance(action, ClaimRoom)]
        if not claims:
            return order
        running = claims[0].request
        order.append(running)
        site.answer()
        site.wait(60.0)
        site.run(running)


def test_a_host_tells_what_is_left_of_its_disk() -> None:
    site = Site()
    site.join("node")
    site.place("r", size=Size(1, GIB, 20 * GIB))
    told = " ".join(site.core.placement.why_host("node", site.now).history)
    assert "3 of 4 processors, 7 GiB of 8 GiB memory and 80 GiB of 100 GiB disk are left" in told
    site.read("node", disk_free=0)
    explained = site.core.placement.why_host("node", site.now)
    assert explained.reason.sentence == "it has room, but none on its disk"


def test_requests_of_one_owner_are_placed_in_the_order_they_came() -> None:
    site = full_site()
    for name in ("c", "a", "b"):
        site.submit(name)
    assert placed_in_turn(site) == ["c", "a", "b"]


def test_the_more_urgent_of_one_owner_comes_first() -> None:
    site = full_site()
    site.submit("low", priority=-1)
    site.submit("normal")
    site.submit("high", priority=5)
    assert placed_in_turn(site) == ["high", "normal", "low"]


def test_priority_does_not_help_against_others() -> None:
    site = full_site()
    for number in range(3):
        site.submit(f"anna{number}", owner="anna", priority=100)
        site.submit(f"berta{number}", owner="berta")
    order = placed_in_turn(site)
    assert [name[:-1] for name in order] == ["anna", "berta"] * 3


def test_whoever_has_used_less_comes_first() -> None:
    site = full_site()
    for number in range(4):
        site.submit(f"many{number}", owner="many")
    site.submit("one", owner="few")
    order = placed_in_turn(site)
    assert order.index("one") == 1


def test_shares_weigh_what_was_used() -> None:
    policy = Policy(shares={"heavy": 3.0, "@staff": 3.0}, aging=1e9)
    site = full_site(policy)
    for number in range(8):
        site.submit(f"heavy{number}", owner="heavy")
        site.submit(f"light{number}", owner="light")
        site.submit(f"staff{number}", owner="member", groups=("staff", "users"))
    first = [name.rstrip("01234567") for name in placed_in_turn(site)[:14]]
    assert [first.count(name) for name in ("heavy", "staff", "light")] == [6, 6, 2]


def test_those_that_come_at_the_same_time_get_the_same() -> None:
    site = Site()
    for number in range(10):
        site.submit(f"anna{number}", owner="anna")
    for number in range(10):
        site.submit(f"berta{number}", owner="berta")
    site.join("node", cpus=10, memory=64)
    placed = [claim.request.rstrip("0123456789") for claim in site.claims]
    assert placed.count("anna") == placed.count("berta") == 5


def test_what_was_used_counts_less_as_time_goes_by() -> None:
    site = Site(Policy(half_life=100.0))
    site.join("node")
    site.place("r", size=Size(2, GIB))
    site.wait(100)
    used = site.core.placement.usage(site.now)["anna"]
    assert used == pytest.approx(2 * 100 / 0.6931 * 0.5, rel=0.01)
    site.finish("r")
    site.wait(200)
    assert site.core.placement.usage(site.now)["anna"] == pytest.approx(used / 4)


def test_what_was_used_is_known_to_a_later_manager() -> None:
    site = Site(Policy(half_life=100.0))
    site.core.placement.recall_usage({"anna": 1000.0}, site.now)
    site.submit("a", owner="anna")
    site.submit("b", owner="berta")
    site.join("node", cpus=1)
    assert site.state("b") is RequestState.CLAIMING
    assert site.core.placement.usage(site.now + 100)["anna"] == pytest.approx(500.0)


def test_whoever_has_waited_long_enough_comes_before_newer_ones() -> None:
    site = full_site(Policy(aging=1000.0, half_life=1e9, reservation=1e9))
    site.join("other", cpus=1)
    site.place("used", owner="heavy")
    site.submit("old", owner="heavy")
    site.wait(900)
    site.submit("new", owner="light")
    site.finish("first0")
    assert site.state("new") is RequestState.CLAIMING
    site.submit("newer", owner="light2")
    site.wait(200)
    site.submit("newest", owner="light3")
    site.finish("used")
    assert site.state("old") is RequestState.CLAIMING


def test_others_pass_one_that_cannot_be_placed() -> None:
    site = Site()
    site.join("node", cpus=4)
    site.place("r", size=Size(2, GIB))
    site.submit("large", size=Size(4, GIB))
    site.submit("small")
    assert site.state("large") is RequestState.WAITING
    assert site.state("small") is RequestState.CLAIMING


def test_room_is_kept_for_a_large_one_that_has_waited_for_long() -> None:
    site = Site(Policy(reservation=300.0))
    site.join("node", cpus=4)
    for number in range(4):
        site.place(f"r{number}")
    site.submit("large", size=Size(4, GIB))
    site.finish("r0")
    site.submit("early")
    assert site.state("early") is RequestState.CLAIMING
    site.answer()
    site.wait(301)
    site.finish("r1")
    site.submit("late")
    assert site.cause("late") is Cause.NO_ROOM
    (reason,) = site.why("late").hosts
    assert reason.sentence == "is kept free for request large, which has waited for long"
    assert (
        "room is kept free for request large"
        in site.core.placement.why_host("node", site.now).history
    )
    site.run("early")
    for name in ("r2", "r3", "early"):
        site.finish(name)
    assert site.state("large") is RequestState.CLAIMING
    assert site.state("late") is RequestState.WAITING


def test_small_ones_still_go_where_room_is_not_kept() -> None:
    site = Site(Policy(reservation=300.0))
    site.join("a", cpus=4)
    site.join("b", cpus=2)
    for number in range(6):
        site.place(f"r{number}")
    site.submit("large", size=Size(4, GIB))
    site.wait(301)
    site.submit("small")
    on_b = [f"r{number}" for number in range(6) if site.host(f"r{number}") == "b"]
    site.finish(on_b[0])
    assert site.host("small") == "b"


def test_kept_room_is_given_up_with_the_request_it_is_kept_for() -> None:
    site = Site(Policy(reservation=300.0))
    site.join("node", cpus=2)
    site.place("r0")
    site.submit("large", size=Size(2, GIB))
    site.wait(301)
    site.submit("small")
    assert site.state("small") is RequestState.WAITING
    site.end("large")
    assert site.state("small") is RequestState.CLAIMING


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def test_a_limit_caps_each_owner_and_says_so() -> None:
    limit = Limit(name="two each", machines=2)
    site = Site(Policy(limits=(limit,)))
    site.join("node", cpus=16, memory=64)
    for number in range(3):
        site.submit(f"a{number}", owner="anna")
    site.submit("b", owner="berta")
    assert site.state("a2") is RequestState.WAITING
    reason = site.record("a2").reason
    assert (reason.cause, reason.limit) == (Cause.LIMIT, "two each")
    assert reason.sentence == "limit 'two each' is reached: 2 of 2 machines are taken by anna"
    assert site.state("b") is RequestState.CLAIMING
    site.answer_all()
    site.finish("a0")
    assert site.state("a2") is RequestState.CLAIMING


def test_a_limit_of_all_counts_every_machine_of_such_environments() -> None:
    limit = Limit(name="licences", per=Per.ALL, environments=("win*",), machines=2)
    site = Site(Policy(limits=(limit,)))
    site.join("node", cpus=16, memory=64, machines=(machine("m", environment="win10"),))
    site.submit("a", environment="win11")
    site.submit("b", environment="win10", owner="berta")
    site.submit("c", environment="linux", owner="berta")
    assert site.record("b").reason.limit == "licences"
    assert site.state("c") is RequestState.CLAIMING
    site.machines("node")
    assert site.state("b") is RequestState.CLAIMING


def test_limits_of_classes_and_groups() -> None:
    limits = (
        Limit(name="students", owners=("@students",), cpus=2),
        Limit(name="gpu class", classes=("gpu",), memory=2 * GIB, per=Per.ALL),
    )
    site = Site(Policy(limits=limits))
    site.join("node", cpus=16, memory=64)
    site.submit("s1", owner="s", groups=("students",), size=Size(2, GIB))
    site.submit("s2", owner="s", groups=("students",))
    site.submit("g1", owner="a", classes=("gpu",), size=Size(1, 2 * GIB))
    site.submit("g2", owner="b", classes=("gpu", "other"))
    assert site.sentence("s2") == "limit 'students' is reached: 2 of 2 processors are taken by s"
    assert site.sentence("g2") == "limit 'gpu class' is reached: 2 GiB of 2 GiB memory are taken"


def test_a_machine_on_its_way_out_counts_against_its_owners_limit() -> None:
    site = Site(Policy(limits=(Limit(name="one", machines=1),)))
    site.join("node")
    site.submit("r1")
    site.answer()
    site.run("r1", machine="m1")
    site.machines("node", machine("m1"))
    site.finish("r1")
    site.submit("r2")
    assert site.cause("r2") is Cause.LIMIT
    site.machines("node")
    assert site.state("r2") is RequestState.CLAIMING


def test_a_group_needs_room_in_the_limit_for_all_of_it() -> None:
    site = Site(Policy(limits=(Limit(name="three", machines=3),)))
    site.join("node", cpus=16, memory=64)
    site.submit("r", count=2)
    site.submit("g", count=2)
    assert site.cause("g") is Cause.LIMIT
    site.submit("one", count=1)
    assert site.state("one") is RequestState.CLAIMING


def test_limits_that_are_read_anew_hold_at_once() -> None:
    site = Site()
    site.join("node")
    site.place("r1")
    site.rule(Policy(limits=(Limit(name="one", machines=1),)))
    site.submit("r2")
    assert site.cause("r2") is Cause.LIMIT
    site.rule(Policy())
    assert site.state("r2") is RequestState.CLAIMING


# ── many ─────────────────────────────────────────────────────────────────────────────────────────


def test_lines_far_behind_the_head_have_their_turn() -> None:
    """Hundreds of different requests that cannot be placed do not hold up the one that can."""
    site = Site()
    site.join("node", cpus=4)
    site.place("r", size=Size(3, GIB))
    for number in range(400):
        site.submit(f"large{number}", size=Size(2, GIB + number))
    site.submit("small", priority=-1)
    assert site.state("small") is RequestState.CLAIMING
    assert site.cause("large399") is Cause.NO_ROOM
    assert site.sentence("large399") == "no host has 2 cpu, 1.0 GiB free"
    assert site.why("large399").reason.sentence == "node has less than 2 processors free"
    site.finish("r")
    assert site.state("large0") is RequestState.CLAIMING
    assert site.state("large1") is RequestState.WAITING
    site.end("small")
    assert site.state("large1") is RequestState.CLAIMING


def test_a_step_has_a_bound_and_the_rest_follows_at_once() -> None:
    site = Site()
    for number in range(1000):
        site.submit(f"r{number}")
    site.join("node", cpus=5000, memory=5000)
    assert len(site.claims) == 1000
    assert site.steps > 3


def test_an_ordered_collection_stays_in_order() -> None:
    ordered: Ordered[int] = Ordered()
    numbers = [number * 7919 % 5003 for number in range(5003)]
    for number in numbers:
        ordered.add(number)
    assert list(ordered) == sorted(numbers)
    assert ordered.before(1234) == 1234
    assert list(ordered.after(5000)) == [5001, 5002]
    for number in numbers[: 5003 - LARGEST]:
        ordered.remove(number)
    assert list(ordered) == sorted(numbers[5003 - LARGEST :])
    assert ordered.first() == min(numbers[5003 - LARGEST :])
    for number in numbers[5003 - LARGEST :]:
        ordered.remove(number)
    assert not ordered
    assert ordered.first() is None
