"""Requirements of requests cost what is looked at, not how many of them there are."""

from __future__ import annotations

import gc

import pytest

from encamp.core.placement.keeping import MOST_AGGREGATES, MOST_OF_ALL, MOST_OF_OWNER
from encamp.core.placement.passing import FIRST, FURTHER
from encamp.core.placement.views import MOST_WATCHED
from encamp.model.errors import Code, EncampError
from encamp.model.request import RequestState
from tests.core.placement.small_site import Site, request


def counting(number: int) -> str:
    return f"count(h for h in hosts if h.load1 > {number}.5) > 99"


def try_to_submit(site: Site, name: str, requirements: str, owner: str = "anna") -> None:
    site.core.check_request(request(name, requirements=requirements, owner=owner))
    site.submit(name, requirements=requirements, owner=owner)


def test_only_so_many_different_requirements_about_all_hosts_may_wait_of_one_owner() -> None:
    site = Site()
    site.join("a")
    for number in range(MOST_OF_OWNER):
        try_to_submit(site, f"r{number}", counting(number))
    with pytest.raises(EncampError) as refused:
        try_to_submit(site, "more", counting(MOST_OF_OWNER))
    assert refused.value.code is Code.NO_ROOM
    assert refused.value.transient
    assert f"anna that wait have {MOST_OF_OWNER} different" in refused.value.sentence
    # As many as one likes that are alike; of others; and again when there is room.
    for number in range(3):
        try_to_submit(site, f"alike{number}", counting(0))
    try_to_submit(site, "others", counting(MOST_OF_OWNER), owner="bert")
    try_to_submit(site, "plain", "host.load1 > 99")
    site.end("r1")
    try_to_submit(site, "more", counting(MOST_OF_OWNER))
    for name in ("alike0", "alike1", "alike2", "r0"):
        with pytest.raises(EncampError):
            site.core.check_request(request("x", requirements=counting(1)))
        site.end(name)
    site.core.check_request(request("x", requirements=counting(1)))


def test_only_so_many_different_requirements_about_all_hosts_may_wait_of_all_owners() -> None:
    site = Site()
    site.join("a")
    for number in range(MOST_OF_ALL):
        try_to_submit(site, f"r{number}", counting(number), f"user{number // MOST_OF_OWNER}")
    with pytest.raises(EncampError, match=f"on this site have {MOST_OF_ALL} different"):
        try_to_submit(site, "more", counting(MOST_OF_ALL))
    try_to_submit(site, "alike", counting(0))


@pytest.mark.parametrize("where", ["requirements", "rank"])
def test_one_expression_has_only_so_many_aggregates(where: str) -> None:
    site = Site()
    site.join("a")
    parts = [f"count(h for h in hosts if h.load1 > {number})" for number in range(5)]
    assert len(parts) == MOST_AGGREGATES + 1

    def written(count: int) -> str:
        return " + ".join(parts[:count]) + (" > 0" if where == "requirements" else "")

    site.core.check_request(request("r", **{where: written(MOST_AGGREGATES)}))
    with pytest.raises(EncampError) as refused:
        site.core.check_request(request("r", **{where: written(MOST_AGGREGATES + 1)}))
    assert refused.value.code is Code.USAGE
    assert not refused.value.transient


def test_news_of_a_host_cost_the_same_however_many_requirements_read_it() -> None:
    site = Site()
    for number in range(30):
        site.join(f"n{number}")
    count = 4 * (FIRST + FURTHER)
    for number in range(count):
        site.submit(f"r{number}", requirements=f"host.load1 > {number}.5 + 99", owner=f"u{number}")
    site.wait(60)
    views = site.core.placement._books.views
    before = views.judged
    site.read("n1", load1=1.0)
    assert views.judged - before <= FIRST + FURTHER
    assert len(views._following) == 0


def test_what_nobody_waits_for_any_more_is_not_kept_up_to_date_for_ever() -> None:
    site = Site()
    site.join("a")
    for number in range(2 * MOST_WATCHED):
        try_to_submit(site, f"r{number}", counting(number))
        site.end(f"r{number}")
    assert len(site.core.placement._books.views._following) <= MOST_WATCHED + 1


@pytest.mark.parametrize(
    "requirements", ["host.load1 > {0}.5", "max(h.load1 for h in hosts) > {0}.5"]
)
def test_one_far_behind_is_placed_when_a_host_comes_to_meet_its_requirements(
    requirements: str,
) -> None:
    site = Site()
    site.join("a")
    for number in reversed(range(100)):
        owner = f"user{number % 5}"
        site.submit(f"r{number}", requirements=requirements.format(number), owner=owner)
    site.wait(60)
    assert not site.claims
    site.read("a", load1=1.0)
    site.wait(60)
    assert site.state("r0") is RequestState.CLAIMING
    assert [claim.request for claim in site.claims] == ["r0"]


def test_one_that_waits_for_a_time_is_placed_then_though_its_neighbours_come_and_go() -> None:
    site = Site()
    site.join("a", cpus=8)
    site.submit("late", requirements="now > 1500", label="x", near=("x",))
    site.place("neighbour", label="x")
    site.finish("neighbour")
    assert site.state("late") is RequestState.WAITING
    site.wait(520)
    assert site.state("late") is RequestState.CLAIMING


def test_the_collector_of_garbage_does_not_go_through_all_that_wait() -> None:
    site = Site()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        site.submit(f"r{number}", label=f"label{number}")
    assert len(site.core.placement.records) == 1000
    site.actions.clear()
    assert len(gc.get_objects()) - before < 500
