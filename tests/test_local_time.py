"""Hours are those of this host."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from encamp.local_time import local_zone


def test_hours_are_those_of_this_host_in_summer_and_in_winter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Europe/Rome")
    zone = local_zone()
    offsets = [datetime(2026, month, 1, tzinfo=zone).utcoffset() for month in (1, 7)]
    assert offsets == [timedelta(hours=1), timedelta(hours=2)]


def test_a_zone_that_nobody_knows_is_no_reason_not_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Nowhere/Atlantis")
    assert datetime(2026, 1, 1, tzinfo=local_zone()).utcoffset() is not None
