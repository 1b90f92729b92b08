"""Traffic is let through evenly."""

from __future__ import annotations

import itertools

from encamp.manager.traffic import Pace


def test_messages_are_spaced_evenly_and_never_come_in_bursts() -> None:
    pace = Pace(10)
    moments = [pace.reserve(100.0) for _ in range(25)]
    gaps = [later - sooner for sooner, later in itertools.pairwise(moments)]
    assert moments[0] == 100.0
    assert all(abs(gap - 0.1) < 1e-9 for gap in gaps)


def test_a_pause_is_not_made_up_for() -> None:
    pace = Pace(10)
    for _ in range(3):
        pace.reserve(0.0)
    after = [pace.reserve(60.0) for _ in range(3)]
    assert after[0] == 60.0
    assert abs(after[2] - 60.2) < 1e-9


async def test_without_a_limit_nobody_waits() -> None:
    pace = Pace(None)
    assert not pace.limited
    for _ in range(10_000):
        await pace.turn()
