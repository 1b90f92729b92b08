"""When worker nodes leave: never under a job, and not for want of a moment's work."""

from __future__ import annotations

import pytest

from encamp.agent.nodes.deciding import UNKNOWN_FOR, Step, decide
from encamp.batch.enrol.workers import Seen
from encamp.model.node import Node, NodeState

NOW = 1000.0
BUSY, IDLE = Seen(up=True, jobs=1), Seen(up=True, jobs=0)


def node(state: NodeState = NodeState.MEMBER, **fields: float | str) -> Node:
    given = {"system": "slurm", "name": "n1", "since": 0.0, "idle": 60.0, "told": True, **fields}
    return Node(state=state, **given)  # type: ignore[arg-type]


def step(one: Node, seen: Seen | None, *, alive: bool = True, joining: bool = False) -> Step:
    return decide(one, seen, alive=alive, joining=joining, now=NOW).step


def test_node_with_a_job_stays_and_is_not_idle() -> None:
    decision = decide(node(quiet=1.0), BUSY, alive=True, joining=False, now=NOW)
    assert decision.step is Step.STAY
    assert decision.node.quiet is None


def test_node_that_would_get_no_job_is_not_open() -> None:
    for seen, is_open in (
        (IDLE, True),
        (None, True),
        (Seen(up=False, jobs=0), False),
        (Seen(up=True, jobs=0, closed=True), False),
        (Seen(up=True, jobs=1, closed=True), False),
    ):
        decision = decide(node(open=not is_open), seen, alive=True, joining=False, now=NOW)
        assert (decision.step, decision.node.open) == (Step.STAY, is_open)


def test_node_leaves_after_its_idle_time_and_is_closed_first() -> None:
    assert step(node(), IDLE) is Step.STAY
    assert step(node(quiet=NOW - 59), IDLE) is Step.STAY
    decision = decide(node(quiet=NOW - 60), IDLE, alive=True, joining=False, now=NOW)
    assert decision.step is Step.CLOSE
    assert decision.node.state is NodeState.LEAVING


def test_jobs_that_came_and_went_between_two_looks_count() -> None:
    assert step(node(quiet=NOW - 600), Seen(up=True, jobs=0, busy=NOW - 5)) is Step.STAY


@pytest.mark.parametrize("seen", [BUSY, IDLE])
def test_node_whose_lease_is_over_is_closed(seen: Seen) -> None:
    assert step(node(until=NOW + 1), seen) is Step.STAY
    assert step(node(until=NOW), seen) is Step.CLOSE


def test_node_that_leaves_is_removed_only_without_a_job() -> None:
    leaving = node(NodeState.LEAVING)
    assert step(leaving, Seen(up=True, jobs=1, closed=True)) is Step.STAY
    assert step(leaving, BUSY) is Step.CLOSE, "closing it has not worked"
    assert step(leaving, Seen(up=True, jobs=0, closed=True)) is Step.REMOVE


def test_node_that_was_never_closed_is_not_removed_though_it_has_no_job() -> None:
    """Whoever wrote down that it leaves may have been killed before it was closed."""
    assert step(node(NodeState.LEAVING), IDLE) is Step.CLOSE


@pytest.mark.parametrize(
    "one",
    [
        node(quiet=0.0),
        node(quiet=0.0, until=NOW),
        node(NodeState.LEAVING),
        node(NodeState.JOINING),
    ],
    ids=["member", "end of lease", "leaving", "joining"],
)
def test_node_that_was_forgotten_stays_for_a_while_whatever_it_was(one: Node) -> None:
    first = decide(one, None, alive=True, joining=False, now=NOW)
    assert (first.step, first.node.unseen) == (Step.STAY, NOW)
    for after, expected in ((UNKNOWN_FOR - 1, Step.STAY), (UNKNOWN_FOR, Step.REMOVE)):
        later = decide(first.node, None, alive=True, joining=False, now=NOW + after)
        assert later.step is expected
    # Once it is known again, all is as it was.
    again = decide(first.node, BUSY, alive=True, joining=False, now=NOW + 1)
    assert again.step is (Step.STAY if first.node.state is NodeState.MEMBER else Step.CLOSE)
    assert again.node.unseen is None


def test_machine_that_the_batch_system_takes_for_ended_is_ended() -> None:
    """Whoever was to end it may not have been heard."""
    gone = Seen(up=False, jobs=0, closed=True, ended=True)
    assert step(node(), gone) is Step.REMOVE
    assert step(node(NodeState.JOINING), gone, joining=True) is Step.STAY


def test_node_without_a_machine_is_given_up_whatever_it_was() -> None:
    for state in NodeState:
        assert step(node(state), BUSY, alive=False) is Step.LOST


def test_node_that_was_left_on_its_way_leaves_again() -> None:
    assert step(node(NodeState.JOINING), None, joining=True) is Step.STAY
    assert step(node(NodeState.JOINING), IDLE) is Step.CLOSE


@pytest.mark.parametrize("seen", [None, IDLE, BUSY])
def test_machine_of_which_nobody_was_told_ends_without_a_word(seen: Seen | None) -> None:
    """What the batch system says of that name is about another host's node."""
    untold = node(NodeState.JOINING, told=False)
    assert step(untold, seen, joining=True) is Step.STAY
    assert step(untold, seen) is Step.END
    for joining in (True, False):
        assert step(untold, seen, alive=False, joining=joining) is Step.END


@pytest.mark.parametrize("state", [NodeState.MEMBER, NodeState.LEAVING])
def test_node_of_an_older_record_that_has_joined_is_known_to_its_batch_system(
    state: NodeState,
) -> None:
    assert step(node(state, told=False), BUSY) is not Step.END
    assert step(node(state, told=False), BUSY, alive=False) is Step.LOST
