"""What simulated faults have found, each in the few steps that it takes."""

from __future__ import annotations

from encamp.core.actions import EndPart
from encamp.core.happenings import Remembered
from encamp.model.policy import Limit, Per, Policy
from encamp.model.request import (
    NOT_YET,
    Cause,
    PartState,
    RequestRecord,
    RequestState,
    Together,
)
from encamp.model.size import Size
from tests.core.placement.small_site import GIB, Site, machine, request

WHOLE = Size(4, GIB)
"""All processors of a host."""


def of_two(site: Site) -> None:
    """A job on two hosts, of which both are lost for longer than anybody waits."""
    for name in ("node0", "node1"):
        site.join(name)
    site.place("r", count=2, together=Together.APART)
    site.lose("node0")
    site.lose("node1")


def test_a_request_of_several_machines_that_was_lost_is_done_when_all_hosts_have_told() -> None:
    site = Site()
    of_two(site)
    site.wait(700.0)
    assert site.state("r") is RequestState.LOST
    site.join("node0")
    site.finish("r", 0)
    assert site.state("r") is RequestState.LOST
    site.join("node1")
    site.finish("r", 1, exit_code=3)
    assert (site.state("r"), site.record("r").exit_code) == (RequestState.DONE, 3)


def test_a_request_of_several_machines_that_was_lost_has_failed_if_one_of_them_has() -> None:
    site = Site()
    of_two(site)
    site.wait(700.0)
    site.finish("r", 0)
    site.fail("r", 1, "the host has crashed", began=True)
    assert site.state("r") is RequestState.FAILED


def test_what_was_given_up_before_a_restart_is_lost_after_it() -> None:
    """One host was given up, the other comes back and tells."""
    site = Site(Policy(patience=60.0))
    of_two(site)
    site.wait(50.0)
    site.join("node1")
    site.wait(20.0)
    record = site.record("r")
    assert (record.state, record.parts[0].lost) == (RequestState.RUNNING, True)
    after = Site()
    after.now = site.now
    after.core.settled = False
    after.happens(Remembered(record))
    after.written = {"r": record}
    after.begun = site.begun
    after.join("node1")
    after.core.settled = True
    after.finish("r", 1)
    assert after.state("r") is RequestState.LOST
    after.finish("r", 0)
    assert after.state("r") is RequestState.DONE


def test_a_machine_that_comes_up_after_it_was_to_end_is_ended() -> None:
    """That it is to end, and that it stands, cross on their way."""
    site = Site()
    site.join("node0")
    site.submit("r", job=None)
    site.answer_all()
    site.end("r")
    site.run("r", machine="m")
    assert EndPart(request="r", number=0, attempt=1, host="node0") in site.actions
    site.run("r", machine="m")
    assert EndPart(request="r", number=0, attempt=1, host="node0") in site.actions


def test_a_remembered_request_that_was_never_tried_can_say_why_it_waits() -> None:
    site = Site(settled=False)
    site.happens(Remembered(RequestRecord(request=request("r"))))
    assert (site.cause("r"), site.sentence("r")) == (Cause.BEHIND, NOT_YET)


def test_room_is_not_kept_for_one_behind_the_head_of_its_line() -> None:
    """Only heads are tried: one that comes back to the head would wait for what is kept for the
    one behind it, and that one for the head."""
    site = Site(Policy(reservation=10.0))
    for name in ("node0", "node1", "node2"):
        site.join(name)
    alike = {"count": 2, "together": Together.APART, "size": WHOLE}
    site.place("blocks", size=WHOLE)
    site.submit("first", **alike)
    site.submit("second", **alike)
    site.wait(20.0)
    kept = site.core.placement.why("second", site.now)
    assert kept.state == "waiting"
    site.finish("blocks")
    site.answer("no")
    site.claims.clear()
    site.wait(60.0)
    assert site.state("first") is not RequestState.WAITING


def test_machines_on_a_host_that_is_gone_for_good_do_not_hold_up_their_owner() -> None:
    site = Site(Policy(patience=60.0, limits=(Limit(name="all", per=Per.ALL, machines=1),)))
    for name in ("node0", "node1"):
        site.join(name)
    host = site.place("r")
    site.moves(site.part("r"), PartState.RUNNING, machine="m", began=True)
    site.machines(host, machine("m"))
    site.lose(host)
    site.submit("next")
    assert site.cause("next") is Cause.LIMIT
    site.wait(61.0)
    assert site.state("r") is RequestState.LOST
    assert site.state("next") is RequestState.CLAIMING


def test_a_host_that_was_given_up_may_tell_before_the_others_have() -> None:
    site = Site(Policy(patience=60.0))
    of_two(site)
    site.wait(50.0)
    site.join("node1")
    site.wait(20.0)
    site.join("node0")
    site.finish("r", 0)
    assert site.state("r") is RequestState.RUNNING
    site.finish("r", 1)
    assert site.state("r") is RequestState.DONE
