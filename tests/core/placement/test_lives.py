"""What becomes of a request once hosts were chosen for it."""

from __future__ import annotations

from typing import Any

import pytest

from encamp.core.actions import BeginPart, ClaimRoom, EndPart, ReleaseRoom, WriteRequest
from encamp.core.happenings import PartMoved, Remembered, TimePassed
from encamp.core.placement.claims import MARGIN, PASSED_OVER
from encamp.model.errors import Code
from encamp.model.host import Presence
from encamp.model.policy import Policy
from encamp.model.request import Cause, PartState, RequestRecord, RequestState, claim_id
from encamp.model.size import Size
from tests.core.placement.small_site import GIB, Site, machine


def running(count: int = 1, **more: object) -> Site:
    """A request `r` that runs, on as many hosts as it has machines."""
    site = Site(Policy(patience=600.0))
    for number in range(count):
        site.join(f"node{number}", cpus=1)
    site.place("r", count=count, **more)
    assert site.state("r") is RequestState.RUNNING
    return site


# ── claims ───────────────────────────────────────────────────────────────────────────────────────


def test_a_request_walks_from_the_queue_to_its_end() -> None:
    site = Site()
    site.join("node")
    site.submit("r")
    assert (site.state("r"), site.cause("r")) == (RequestState.CLAIMING, Cause.CLAIM)
    site.answer()
    assert (site.state("r"), site.cause("r")) == (RequestState.STARTING, Cause.START)
    part = site.part("r")
    site.moves(part, PartState.STARTING, cause=Cause.IMAGE)
    assert site.cause("r") is Cause.IMAGE
    site.moves(part, PartState.STARTING, cause=Cause.START, machine="m")
    assert site.record("r").parts[0].machine == "m"
    site.run("r")
    assert (site.state("r"), site.cause("r")) == (RequestState.RUNNING, Cause.NONE)
    site.finish("r", exit_code=4)
    record = site.record("r")
    assert (record.state, record.exit_code, record.parts[0].machine) == (
        RequestState.DONE,
        4,
        "m",
    )
    assert record.started == record.ended == site.now
    assert "r" not in site.core.placement.records


def test_a_host_that_refuses_is_passed_over_and_others_are_asked() -> None:
    site = Site(Policy(rank=()))
    site.join("a")
    site.join("b")
    site.submit("r")
    site.answer("its memory is taken by others")
    assert (site.host("r"), site.record("r").attempt) == ("b", 2)
    site.answer("so is mine")
    assert site.state("r") is RequestState.WAITING
    assert site.sentence("r") == "2 hosts could not take it just now"
    assert [reason.cause for reason in site.why("r").hosts] == [Cause.CLAIM, Cause.CLAIM]
    site.wait(PASSED_OVER)
    assert site.host("r") == "a"


def test_one_refusal_gives_back_what_others_of_a_group_have_promised() -> None:
    site = Site()
    site.join("a", cpus=1)
    site.join("b", cpus=1)
    site.submit("g", count=2)
    site.answer()
    site.answer("no")
    released = {action.host for action in site.actions if isinstance(action, ReleaseRoom)}
    assert released == {"a", "b"}
    assert site.state("g") is RequestState.WAITING
    assert site.submit("small")
    assert site.state("small") is RequestState.CLAIMING


def test_a_claim_that_is_not_answered_expires() -> None:
    site = Site(Policy(claim=30.0, rank=()))
    site.join("a")
    site.join("b")
    site.submit("r")
    site.wait(30.0 + MARGIN)
    assert site.host("r") == "b"
    assert any("a did not answer" in line for line in site.why("r").history)


def test_a_slow_claim_holds_up_nobody() -> None:
    site = Site(Policy(rank=()))
    site.join("slow", cpus=1)
    site.join("zeta", cpus=1)
    site.submit("r1")
    site.submit("r2")
    assert [claim.host for claim in site.claims] == ["slow", "zeta"]
    del site.claims[0]
    site.answer()
    assert site.state("r2") is RequestState.STARTING


def test_a_late_answer_of_an_earlier_attempt_does_not_count() -> None:
    site = Site(Policy(rank=()))
    site.join("a")
    site.join("b")
    site.submit("r")
    first = site.claims[0]
    site.answer("no")
    site.claims.insert(0, first)
    site.answer()
    assert site.state("r") is RequestState.CLAIMING
    site.answer()
    assert site.begun == [BeginPart(request="r", number=0, attempt=2, host="b")]


def test_a_host_lost_while_it_is_asked_is_not_waited_for() -> None:
    site = Site(Policy(rank=()))
    site.join("a")
    site.join("b")
    site.submit("r")
    site.lose("a")
    assert site.host("r") == "b"
    assert not any(isinstance(action, ReleaseRoom) for action in site.actions)


def test_promises_that_nobody_wants_are_given_back_when_a_host_joins() -> None:
    site = Site()
    site.join("a", claims=(claim_id("old.one", 2, 7), "nonsense"))
    assert site.actions == [ReleaseRoom(request="old.one", number=2, attempt=7, host="a")]


def test_a_promise_that_a_host_has_forgotten_is_asked_for_again() -> None:
    site = Site(Policy(rank=()))
    site.join("a", cpus=1)
    site.join("b", cpus=1)
    site.submit("g", count=2)
    site.answer()
    site.join("a", cpus=1, instance="two", claims=(claim_id("g", 0, 1),))
    assert site.record("g").attempt == 1
    site.join("a", cpus=1, instance="three")
    assert site.record("g").attempt == 2


# ── starts that fail ─────────────────────────────────────────────────────────────────────────────


def test_a_machine_that_could_not_be_made_is_tried_elsewhere() -> None:
    site = Site(Policy(rank=()))
    site.join("a")
    site.join("b")
    site.submit("r")
    site.answer()
    site.fail("r", why="the guest never answered")
    assert (site.host("r"), site.record("r").failures) == ("b", 1)
    site.answer()
    site.run("r")
    site.finish("r")
    assert site.state("r") is RequestState.DONE


def test_a_promise_that_has_lapsed_is_nobodys_failure() -> None:
    site = Site(Policy(tries=1))
    site.join("a")
    site.submit("r")
    for attempt in range(1, 4):
        site.answer()
        assert site.record("r").attempt == attempt
        site.fail("r", why="it has forgotten its promise", cause=Cause.CLAIM)
    assert site.state("r") is RequestState.CLAIMING
    assert site.record("r").failures == 0


def test_a_request_that_would_fail_everywhere_is_not_tried_again() -> None:
    site = Site()
    site.join("a")
    site.join("b")
    site.submit("r")
    site.answer()
    site.fail("r", why="there is no such image", final=True)
    record = site.record("r")
    assert (record.state, record.reason.sentence) == (
        RequestState.FAILED,
        "a: there is no such image",
    )
    site.submit("other")
    assert site.host("other") == "a"


def test_a_request_is_given_up_after_so_many_failures() -> None:
    site = Site(Policy(tries=3, rank=()))
    for name in "abcd":
        site.join(name)
    site.submit("r")
    for _ in range(3):
        assert site.state("r") is RequestState.CLAIMING
        site.answer()
        site.fail("r")
    assert site.state("r") is RequestState.FAILED


def test_a_command_that_has_begun_is_never_begun_again() -> None:
    site = running()
    site.fail("r", why="the machine died", began=True)
    assert site.state("r") is RequestState.FAILED
    assert site.sentence("r") == "node0: the machine died"


def test_a_group_of_which_one_machine_fails_is_ended_and_tried_again_if_none_has_begun() -> None:
    site = Site(Policy(rank=()))
    site.join("a", cpus=1)
    site.join("b", cpus=1)
    site.submit("g", count=2)
    site.answer_all()
    site.fail("g", 0)
    assert site.actions[1:] == [EndPart(request="g", number=1, attempt=1, host="b")]
    assert site.state("g") is RequestState.STARTING
    site.fail("g", 1, why="it was cancelled")
    assert site.state("g") is RequestState.WAITING
    site.join("c", cpus=1)
    assert site.record("g").attempt == 2


def test_a_group_of_which_a_command_has_begun_fails_with_one_machine() -> None:
    site = Site()
    site.join("a")
    site.submit("g", count=2)
    site.answer_all()
    site.run("g", 1)
    site.fail("g", 0, why="no answer")
    site.fail("g", 1, why="it was cancelled")
    assert site.state("g") is RequestState.FAILED
    assert site.sentence("g") == "a: no answer"


# ── hosts that are spared ────────────────────────────────────────────────────────────────────────


def fail_once(site: Site, name: str) -> None:
    site.submit(name)
    site.answer()
    site.fail(name, why="no answer", final=True, blames_environment=True)


def test_an_environment_of_ones_own_that_fails_keeps_nobody_elses_from_a_host() -> None:
    site = Site()
    site.join("a")
    for owner in ("anna", "bert"):
        site.submit(owner, owner=owner, environment="tools", own=True)
        site.answer()
        site.fail(owner, why="no answer")
        assert site.cause(owner) is Cause.LEFT_ALONE
    site.submit("cleo", owner="cleo", environment="tools", own=True)
    assert site.state("cleo") is RequestState.CLAIMING


def test_a_host_where_an_environment_fails_is_spared_for_a_growing_while() -> None:
    site = Site(Policy(pause=15.0, longest_pause=50.0))
    site.join("a")
    for number, pause in enumerate((15.0, 30.0, 50.0, 50.0)):
        fail_once(site, f"bad{number}")
        site.submit(f"r{number}")
        assert site.cause(f"r{number}") is Cause.LEFT_ALONE
        failed = "a is not tried for a while, since mini failed there: no answer"
        assert site.sentence(f"r{number}") == failed
        site.submit(f"other{number}", environment="other")
        assert site.state(f"other{number}") is RequestState.CLAIMING
        site.answer_all()
        site.finish(f"other{number}")
        site.wait(pause - 0.1)
        assert site.state(f"r{number}") is RequestState.WAITING
        site.wait(0.2)
        assert site.state(f"r{number}") is RequestState.CLAIMING
        site.end(f"r{number}")
    assert "after 4 failures: no answer" in str(site.core.placement.why_host("a", site.now))


def test_then_it_is_tried_with_one_machine_until_that_has_come_up() -> None:
    site = Site(Policy(pause=15.0))
    site.join("a")
    fail_once(site, "bad")
    for number in range(3):
        site.submit(f"r{number}")
    site.wait(16)
    assert len(site.claims) == 1
    assert site.sentence("r1") == "a is being tried with one other job, since mini failed there"
    site.answer()
    assert site.state("r1") is RequestState.WAITING
    site.run("r0")
    assert site.state("r1") is site.state("r2") is RequestState.CLAIMING


def test_a_trial_that_fails_doubles_the_pause_and_one_that_is_cancelled_does_not() -> None:
    site = Site(Policy(pause=15.0, rank=()))
    site.join("a")
    fail_once(site, "bad")
    site.submit("trial")
    site.submit("next")
    site.wait(16)
    site.end("trial")
    assert site.state("next") is RequestState.CLAIMING
    site.answer()
    site.fail("next")
    assert site.cause("next") is Cause.LEFT_ALONE
    site.wait(29)
    assert site.state("next") is RequestState.WAITING
    site.wait(2)
    assert site.state("next") is RequestState.CLAIMING


def test_failures_of_one_moment_count_once() -> None:
    site = Site(Policy(pause=15.0))
    site.join("a")
    for number in range(4):
        site.submit(f"r{number}")
    site.answer_all()
    for number in range(4):
        site.fail(f"r{number}", final=True, blames_environment=True)
    site.submit("next")
    site.wait(16)
    assert site.state("next") is RequestState.CLAIMING


def test_a_host_that_breaks_its_promises_is_spared_everything() -> None:
    site = Site(Policy(rank=(), pause=100.0))
    site.join("liar")
    for number in range(3):
        site.submit(f"r{number}", environment=f"environment{number}")
        site.answer("it has no memory left")
    site.join("zeta")
    site.submit("next")
    assert site.host("next") == "zeta"
    site.submit("only there", requirements="host.name == 'liar'")
    assert site.cause("only there") is Cause.LEFT_ALONE
    assert site.sentence("only there").startswith("liar is not tried for a while, since it")
    explained = site.core.placement.why_host("liar", site.now)
    assert explained.reason.cause is Cause.LEFT_ALONE
    assert any("everything is not tried there" in line for line in explained.history)


def test_a_group_does_not_use_a_host_that_is_to_be_tried_for_more_than_one() -> None:
    site = Site(Policy(pause=15.0, rank=()))
    site.join("a")
    fail_once(site, "bad")
    site.join("b", cpus=1)
    site.wait(16)
    site.submit("three", count=3)
    assert site.state("three") is RequestState.WAITING
    site.submit("two", count=2)
    assert sorted(part.host for part in site.record("two").parts) == ["a", "b"]


def fail_for(site: Site, owner: str, name: str, **more: Any) -> None:
    """A job of an owner's whose machine does not come up, on the one host there is."""
    site.submit(name, owner=owner)
    site.answer()
    site.fail(name, why=f"no answer to {owner}", **{"final": True, **more}, blames_environment=True)


def test_what_fails_for_one_owner_is_kept_from_that_owner_alone() -> None:
    site = Site(Policy(pause=15.0))
    site.join("a")
    site.submit("early", owner="eve", size=Size(8, GIB))
    for number in range(3):
        fail_for(site, "eve", f"bad{number}")
        assert site.place(f"good{number}", owner="anna") == "a"
        site.finish(f"good{number}")
        site.submit(f"more{number}", owner="eve")
        assert site.cause(f"more{number}") is Cause.LEFT_ALONE
        assert "no answer to eve" in site.why(f"more{number}").hosts[0].sentence
        site.wait(15.0 * 2**number + 1)
        site.end(f"more{number}")
    everything = site.core.placement.why_host("a", site.now)
    assert "eve" in str(everything)
    assert everything.reason.cause is Cause.NONE
    assert "eve" not in str(site.core.placement.why_host("a", site.now, "anna"))
    assert "no answer" in str(site.core.placement.why_host("a", site.now, "eve"))


def test_what_fails_for_two_owners_is_kept_from_all() -> None:
    site = Site(Policy(pause=15.0))
    site.join("a")
    fail_for(site, "eve", "e")
    fail_for(site, "bob", "b")
    site.submit("r", owner="anna")
    assert site.cause("r") is Cause.LEFT_ALONE
    assert site.core.placement.why_host("a", site.now).reason.cause is Cause.LEFT_ALONE
    site.wait(16)
    assert site.state("r") is RequestState.CLAIMING
    # One owner alone cannot make that last longer.
    site.end("r")
    fail_for(site, "eve", "again")
    site.submit("r2", owner="anna")
    assert site.state("r2") is RequestState.CLAIMING


def test_owners_whose_failures_others_machines_lie_between_are_not_added_up() -> None:
    site = Site(Policy(pause=15.0))
    site.join("a")
    fail_for(site, "eve", "e")
    site.place("works", owner="carl")
    fail_for(site, "bob", "b")
    site.submit("r", owner="anna")
    assert site.state("r") is RequestState.CLAIMING


def test_a_pause_ends_when_what_has_caused_it_is_cancelled() -> None:
    site = Site(Policy(pause=1000.0))
    site.join("a")
    for name in ("one", "two"):
        site.submit(name)
    site.answer_all()
    for name in ("one", "two"):
        site.fail(name)
    site.submit("next")
    site.end("one")
    assert site.cause("next") in (Cause.LEFT_ALONE, Cause.BEHIND)
    assert site.state("next") is RequestState.WAITING
    site.end("two")
    assert site.state("next") is RequestState.CLAIMING


def test_what_is_kept_from_all_is_so_no_longer_when_one_of_two_causes_is_cancelled() -> None:
    site = Site(Policy(pause=1000.0))
    site.join("a")
    fail_for(site, "eve", "e", final=False)
    fail_for(site, "bob", "b")
    site.submit("r", owner="anna")
    assert site.state("r") is RequestState.WAITING
    site.end("e")
    assert site.state("r") is RequestState.CLAIMING
    site.submit("r2", owner="bob")
    assert site.cause("r2") is Cause.LEFT_ALONE


def test_pauses_end_when_the_policy_is_read_again() -> None:
    site = Site(Policy(pause=1000.0))
    site.join("a")
    fail_for(site, "eve", "e")
    site.submit("r", owner="eve")
    assert site.state("r") is RequestState.WAITING
    site.rule(Policy(pause=1000.0))
    assert site.state("r") is RequestState.CLAIMING


def test_a_request_that_is_at_fault_itself_fails_with_its_code_and_is_not_counted() -> None:
    site = Site()
    site.join("a")
    site.submit("r")
    site.answer()
    site.fail("r", why="you may not", final=True, code=Code.NOT_PERMITTED, hint="Ask.")
    record = site.record("r")
    assert (record.state, record.code) == (RequestState.FAILED, Code.NOT_PERMITTED)
    assert (record.reason.sentence, record.reason.next) == ("a: you may not", "Ask.")
    assert site.place("next") == "a"


def test_what_has_no_image_fails_at_once_unless_another_host_has_it() -> None:
    said: dict[str, Any] = {
        "why": "the archive is not there",
        "cause": Cause.IMAGE,
        "blames_environment": True,
    }
    site = Site(Policy(rank=()))
    site.knows("mini", image="mini")
    site.join("a", readings={"images": []})
    site.join("b", readings={"images": ["other"]})
    site.submit("r")
    site.answer()
    site.fail("r", code=Code.BUILD_FAILED, hint="Pull it.", **said)
    record = site.record("r")
    assert (record.state, record.code) == (RequestState.FAILED, Code.BUILD_FAILED)
    assert (record.reason.sentence, record.reason.next) == (
        "a: the archive is not there",
        "Pull it.",
    )
    # It is nobody's fault there: others are told at once, too.
    site.submit("next")
    assert site.host("next") == "a"
    site.end("next")
    site.read("b", images=["mini:1"])
    site.submit("r2")
    assert site.host("r2") == "a"
    site.answer()
    site.fail("r2", **said)
    assert site.host("r2") == "b"
    # What an owner describes has only its name in common with that.
    site.submit("own", owner="bert", own=True)
    site.answer_all()
    site.fail("own", **said)
    assert site.state("own") is RequestState.FAILED


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def test_cancelling_what_waits() -> None:
    site = Site()
    site.submit("r")
    (written,) = site.end("r")
    assert isinstance(written, WriteRequest)
    assert written.record.state is RequestState.CANCELLED
    assert written.record.reason.sentence == "anna wanted it to end"
    assert site.end("r") == []


def test_what_has_waited_for_as_long_as_it_was_to_is_withdrawn_with_the_reason() -> None:
    site = Site()
    site.join("a", cpus=1)
    site.place("first")
    site.submit("patient")
    site.submit("hasty", wait_at_most=90.0, size=Size(1, 2 * GIB))
    site.wait(89)
    assert site.state("hasty") is RequestState.WAITING
    site.wait(1)
    assert site.state("patient") is RequestState.WAITING
    record = site.written["hasty"]
    assert (record.state, record.reason.cause) == (RequestState.CANCELLED, Cause.NOT_BEGUN)
    assert record.reason.sentence == (
        "it had not begun after 90 seconds: a has less than 1 processor free"
    )


def test_what_was_to_wait_no_longer_while_no_manager_was_there_is_withdrawn_then() -> None:
    former = Site()
    former.submit("r", wait_at_most=90.0)
    record = former.record("r")
    site = Site()
    site.happens(Remembered(record))
    site.wait(100)
    assert site.written["r"].reason.cause is Cause.NOT_BEGUN


def test_what_has_begun_is_not_withdrawn_and_waits_anew_when_it_was_lost() -> None:
    site = running(wait_at_most=90.0, retries=1)
    site.wait(200)
    assert site.state("r") is RequestState.RUNNING
    site.lose("node0")
    site.wait(600)
    assert site.state("r") is RequestState.WAITING
    site.wait(89)
    assert site.state("r") is RequestState.WAITING
    site.wait(1)
    assert site.written["r"].reason.cause is Cause.NOT_BEGUN


def test_cancelling_what_is_asked_for_gives_back_the_room() -> None:
    site = Site()
    site.join("a", cpus=1)
    site.submit("r")
    site.submit("next")
    site.end("r")
    assert site.state("r") is RequestState.CANCELLED
    assert ReleaseRoom(request="r", number=0, attempt=1, host="a") in site.actions
    assert site.state("next") is RequestState.CLAIMING


def test_cancelling_what_runs_ends_its_machines_first() -> None:
    site = running(2)
    assert [type(action) for action in site.end("r")] == [WriteRequest, EndPart, EndPart]
    assert site.record("r").to_stop
    site.fail("r", 0, why="it was cancelled", began=True)
    assert site.state("r") is RequestState.RUNNING
    site.fail("r", 1, why="it was cancelled", began=True)
    assert site.state("r") is RequestState.CANCELLED


def test_a_job_that_ended_before_it_could_be_cancelled_is_done() -> None:
    site = running()
    site.end("r")
    site.finish("r")
    assert site.state("r") is RequestState.DONE


def test_machines_that_were_wanted_for_themselves_are_done_when_they_are_removed() -> None:
    site = running(job=None)
    site.moves(site.part("r"), PartState.OVER, began=True)
    assert site.state("r") is RequestState.DONE


def test_machines_that_were_wanted_for_themselves_can_be_cancelled_too() -> None:
    site = running(job=None)
    site.end("r")
    site.moves(site.part("r"), PartState.OVER, began=True)
    assert site.state("r") is RequestState.CANCELLED
    assert site.record("r").reason.sentence == "anna wanted it to end"


# ── hosts that are gone ──────────────────────────────────────────────────────────────────────────


def test_a_lost_host_is_waited_for_and_what_it_tells_settles_it() -> None:
    site = running()
    site.lose("node0")
    assert (site.state("r"), site.cause("r")) == (RequestState.RUNNING, Cause.HOST_LOST)
    assert site.written["r"].reason.cause is Cause.HOST_LOST
    site.wait(500)
    site.join("node0", cpus=1, instance="two")
    assert site.cause("r") is Cause.NONE
    site.wait(500)
    site.finish("r")
    assert site.state("r") is RequestState.DONE


@pytest.mark.parametrize("presence", [Presence.LEFT, Presence.LOST])
def test_a_request_is_lost_when_its_host_does_not_come_back(presence: Presence) -> None:
    site = running()
    site.go("node0", presence)
    site.wait(601)
    record = site.record("r")
    assert (record.state, record.reason.sentence) == (
        RequestState.LOST,
        "node0 did not come back",
    )
    assert "r" not in site.core.placement.records


def test_a_request_that_may_be_retried_is_begun_anew() -> None:
    site = running(retries=1)
    site.lose("node0")
    site.wait(601)
    assert (site.state("r"), site.record("r").lost) == (RequestState.WAITING, 1)
    site.join("node1")
    site.answer()
    assert site.begun[-1] == BeginPart(request="r", number=0, attempt=2, host="node1")
    site.run_part(site.begun[-1])
    site.lose("node1")
    site.wait(601)
    assert site.state("r") is RequestState.LOST


def test_retries_cover_a_host_that_is_restarted_and_a_process_that_is_killed() -> None:
    site = running(2, retries=1)
    site.fail("r", 0, why="its host was restarted", began=True, lost=True)
    site.fail("r", 1, why="it was cancelled", began=True)
    record = site.record("r")
    assert (record.state, record.lost, record.attempt) == (RequestState.CLAIMING, 1, 2)
    site.answer_all()
    for number in range(2):
        site.run("r", number)
    site.fail("r", 0, why="its host was restarted", began=True, lost=True)
    site.fail("r", 1, why="it was cancelled", began=True)
    assert site.state("r") is RequestState.FAILED
    assert site.sentence("r").endswith("its host was restarted")


def test_what_nobody_can_tell_the_end_of_is_lost_until_somebody_can() -> None:
    nobody = {"failure": "nobody knows", "began": True, "lost": True, "unknown": True}
    site = running(retries=1)
    site.moves(site.part("r"), PartState.OVER, **nobody)
    assert site.record("r").attempt == 2
    site = running()
    part = site.part("r")
    for _ in range(2):
        site.moves(part, PartState.OVER, **nobody)
        assert (site.state("r"), site.sentence("r")) == (RequestState.LOST, "node0: nobody knows")
    site.moves(part, PartState.OVER, exit_code=0, began=True)
    assert site.state("r") is RequestState.DONE


def test_what_may_have_begun_is_not_begun_anew_unless_that_was_allowed() -> None:
    site = running()
    site.fail("r", why="its host was restarted", began=True, lost=True)
    assert site.state("r") is RequestState.FAILED
    site = running(retries=1)
    site.end("r")
    site.fail("r", why="its host was restarted", began=True, lost=True)
    assert site.state("r") is RequestState.CANCELLED
    site = running(retries=1)
    site.fail("r", why="the machine died", began=True)
    assert site.state("r") is RequestState.FAILED


def test_what_goes_on_of_an_attempt_that_was_given_up_is_ended() -> None:
    site = running(retries=1)
    old = site.part("r")
    site.lose("node0")
    site.wait(601)
    site.join("node0", cpus=1)
    site.moves(old, PartState.RUNNING, host="node0")
    assert EndPart(request="r", number=0, attempt=1, host="node0") in site.actions


def test_a_lost_request_whose_host_comes_back_tells_how_it_ended() -> None:
    site = running()
    part = site.part("r")
    site.lose("node0")
    site.wait(601)
    site.join("node0", cpus=1)
    site.moves(part, PartState.RUNNING)
    assert site.actions == [EndPart(request="r", number=0, attempt=1, host="node0")]
    site.moves(part, PartState.OVER, exit_code=5, began=True)
    assert (site.state("r"), site.record("r").exit_code) == (RequestState.DONE, 5)


def test_a_lost_request_stays_lost_if_its_host_knows_nothing_of_it_any_more() -> None:
    site = running()
    part = site.part("r")
    site.lose("node0")
    site.wait(601)
    site.join("node0", cpus=1, instance="with another disk")
    site.moves(part, PartState.OVER, failure="it was cancelled before it came")
    assert (site.state("r"), site.sentence("r")) == (RequestState.LOST, "node0 did not come back")


def test_what_had_begun_is_not_begun_again_since_its_host_knows_nothing_of_it_any_more() -> None:
    site = Site(Policy(patience=600.0))
    site.join("node0", cpus=1)
    site.join("node1", cpus=1)
    site.submit("r", count=2)
    site.answer_all()
    begun, other = site.begun
    site.run_part(begun)
    site.lose(begun.host)
    site.wait(601)
    site.join(begun.host, cpus=1, instance="with another disk")
    site.moves(begun, PartState.OVER, failure="it was cancelled before it came")
    site.moves(other, PartState.OVER, failure="it was cancelled before it began")
    assert site.state("r") is RequestState.FAILED


def test_a_group_that_has_lost_a_machine_is_ended_elsewhere_first() -> None:
    site = running(2, retries=1)
    site.lose("node0")
    site.wait(601)
    assert site.state("r") is RequestState.RUNNING
    site.fail("r", 1, why="it was cancelled", began=True)
    assert (site.state("r"), site.record("r").lost) == (RequestState.WAITING, 1)


def test_what_was_given_up_and_had_not_begun_is_tried_again_once_its_host_says_so() -> None:
    site = Site(Policy(patience=600.0))
    site.join("node0", cpus=1)
    site.join("node1", cpus=1)
    site.submit("r", count=2)
    site.answer_all()
    [lost] = [part for part in site.begun if part.host == "node0"]
    site.lose("node0")
    site.wait(601)
    assert site.state("r") is RequestState.STARTING
    site.join("node0", cpus=1)
    site.moves(lost, PartState.OVER, failure="the guest never answered")
    site.fail("r", 1 - lost.number, why="it was cancelled")
    assert site.record("r").attempt == 2
    assert site.record("r").failures == 1
    assert site.state("r") is RequestState.CLAIMING


def test_a_lost_host_is_given_up_though_one_of_its_two_machines_never_began() -> None:
    site = Site(Policy(patience=600.0))
    site.join("node0", cpus=2)
    site.submit("r", count=2)
    site.answer_all()
    site.lose("node0")
    site.fail("r", 1, why="node0 is not there", cause=Cause.ABSENT)
    assert site.cause("r") is Cause.HOST_LOST
    site.wait(601)
    assert site.state("r") is RequestState.LOST


def test_a_host_that_is_forgotten_takes_its_requests_with_it_at_once() -> None:
    site = running()
    site.lose("node0")
    site.forget("node0")
    assert site.state("r") is RequestState.LOST
    site.submit("next")
    assert site.cause("next") is Cause.NO_HOSTS


# ── a manager that starts anew ───────────────────────────────────────────────────────────────────


def records_of(site: Site) -> list[RequestRecord]:
    return list(site.written.values())


def anew(old: Site) -> Site:
    site = Site(settled=False)
    site.now = old.now
    for record in records_of(old):
        site.happens(Remembered(record))
        site.written[record.request.id] = record
    assert site.actions == []
    return site


def test_nothing_is_decided_before_the_picture_is_whole() -> None:
    old = Site()
    old.join("a", cpus=2)
    old.place("runs")
    old.submit("asked")
    site = anew(old)
    site.submit("new")
    site.join("a", cpus=2)
    assert site.actions == []
    assert site.core.next_look() is None
    site.core.settled = True
    site.happens(TimePassed())
    kinds = [type(action) for action in site.actions]
    assert kinds == [ReleaseRoom, WriteRequest, WriteRequest, ClaimRoom]
    assert site.host("asked") == "a"
    assert site.record("asked").attempt == 2
    assert site.state("runs") is RequestState.RUNNING
    assert site.state("new") is RequestState.WAITING


def test_what_was_about_to_begin_is_begun_again_by_the_same_name() -> None:
    old = Site()
    old.join("a")
    old.submit("r")
    old.answer()
    site = anew(old)
    site.join("a")
    site.core.settled = True
    assert site.happens(TimePassed()) == old.begun


def test_a_host_that_does_not_come_back_after_a_restart_is_waited_for() -> None:
    old = running()
    site = anew(old)
    site.core.settled = True
    site.happens(TimePassed())
    assert site.cause("r") is Cause.HOST_LOST
    site.wait(601)
    assert site.state("r") is RequestState.LOST


def test_what_was_to_end_before_a_restart_is_to_end_after_it() -> None:
    old = running()
    old.end("r")
    site = anew(old)
    site.join("node0")
    site.core.settled = True
    site.happens(TimePassed())
    assert EndPart(request="r", number=0, attempt=1, host="node0") in site.actions


def test_machines_of_remembered_requests_are_not_counted_twice() -> None:
    old = Site()
    old.join("a", cpus=2)
    old.submit("r")
    old.answer()
    old.run("r", machine="m1")
    site = anew(old)
    site.join("a", cpus=2, machines=(machine("m1"),))
    site.core.settled = True
    site.submit("r2", size=Size(1, GIB))
    assert site.state("r2") is RequestState.CLAIMING


def test_a_lost_request_is_settled_by_a_later_manager_too() -> None:
    old = running()
    old.lose("node0")
    old.wait(601)
    site = anew(old)
    site.core.settled = True
    site.join("node0")
    over = PartMoved(
        request="r", number=0, attempt=1, state=PartState.OVER, exit_code=0, began=True
    )
    site.happens(over)
    assert site.state("r") is RequestState.DONE
