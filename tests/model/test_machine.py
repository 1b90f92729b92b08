"""The table of a machine's states, checked as plain data."""

from __future__ import annotations

import pytest

from encamp.model.errors import Code, EncampError
from encamp.model.machine import ALIVE, COMMANDS, TRANSITIONS, Machine, Move, State, possible
from encamp.model.size import MIB, Size

GONE = None
STARTING, RUNNING, PAUSED = State.STARTING, State.RUNNING, State.PAUSED
SUSPENDED, STOPPED, FAILED = State.SUSPENDED, State.STOPPED, State.FAILED

ALLOWED: dict[tuple[State, Move], State | None] = {
    (STARTING, Move.ACTIVATE): RUNNING,
    (STARTING, Move.KILL): STOPPED,
    (STARTING, Move.FAIL): FAILED,
    (RUNNING, Move.EXECUTE): RUNNING,
    (RUNNING, Move.PAUSE): PAUSED,
    (RUNNING, Move.SUSPEND): SUSPENDED,
    (RUNNING, Move.SAVE): RUNNING,
    (RUNNING, Move.STOP): STOPPED,
    (RUNNING, Move.KILL): STOPPED,
    (RUNNING, Move.FAIL): FAILED,
    (PAUSED, Move.RESUME): RUNNING,
    (PAUSED, Move.SUSPEND): SUSPENDED,
    (PAUSED, Move.KILL): STOPPED,
    (PAUSED, Move.FAIL): FAILED,
    (SUSPENDED, Move.RESTORE): RUNNING,
    (SUSPENDED, Move.KILL): STOPPED,
    (SUSPENDED, Move.REMOVE): GONE,
    (STOPPED, Move.REMOVE): GONE,
    (FAILED, Move.REMOVE): GONE,
}
"""What a person may expect, written the other way round than the program's own table."""

PAIRS = [(state, move) for state in State for move in Move]


def machine(state: State) -> Machine:
    return Machine(
        id="0" * 32,
        name="work",
        host="here",
        owner=0,
        environment="mini",
        image="f" * 64,
        size=Size(1, 128 * MIB),
        state=state,
        reason="for a test",
        created=1.0,
        changed=1.0,
    )


@pytest.mark.parametrize(("state", "move"), [pair for pair in PAIRS if pair in ALLOWED])
def test_allowed_move_leads_where_it_should(state: State, move: Move) -> None:
    before = machine(state)
    target = ALLOWED[state, move]
    assert before.check(move) is target
    if target is not None:
        after = before.moved(move, "because", 2.0)
        assert (after.state, after.reason, after.changed) == (target, "because", 2.0)
        assert (after.id, after.name, after.created) == (before.id, before.name, before.created)


@pytest.mark.parametrize(("state", "move"), [pair for pair in PAIRS if pair not in ALLOWED])
def test_wrong_move_is_refused_with_the_state_and_what_is_possible(
    state: State, move: Move
) -> None:
    with pytest.raises(EncampError) as refused:
        machine(state).check(move)
    assert refused.value.code is Code.WRONG_STATE
    assert f"Cannot {move.value} machine work" in refused.value.sentence
    assert f"it is {state.value} (for a test)" in refused.value.sentence
    allowed = [COMMANDS[other] for other in Move if other in COMMANDS and (state, other) in ALLOWED]
    assert refused.value.hint == f"Possible now: {', '.join(allowed)}."


def test_every_move_and_every_persons_move_is_in_the_tables() -> None:
    assert set(TRANSITIONS) == set(Move)
    # These two happen to a machine; nobody makes them.
    assert set(Move) - set(COMMANDS) == {Move.ACTIVATE, Move.FAIL}


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_left_by_a_person(state: State) -> None:
    assert possible(state)


@pytest.mark.parametrize("state", State)
def test_only_a_machine_with_a_process_can_fail(state: State) -> None:
    assert (state in TRANSITIONS[Move.FAIL]) == (state in ALIVE)
