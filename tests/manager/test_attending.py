"""Jobs in the queue that nobody waits for any more are given up."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from encamp.manager.attending import PATIENCE, Attendance
from encamp.manager.following import Followers
from encamp.model.request import Request, RequestRecord, RequestState
from tests.manager.playing import request


def attended(**fields: Any) -> tuple[Attendance, Followers, Request]:
    followers = Followers()
    asked = request(id="r1", **fields)
    attendance = Attendance(followers, lambda happening: None)
    attendance.opened(asked)
    return attendance, followers, asked


def test_a_job_is_given_up_when_nobody_has_asked_after_it_for_long() -> None:
    attendance, _, _ = attended()
    now = time.monotonic()
    assert attendance.deserted(now + PATIENCE - 1) == []
    assert attendance.deserted(now + PATIENCE + 1) == ["r1"]
    assert attendance.deserted(now + 2 * PATIENCE) == []


def test_whoever_follows_is_there() -> None:
    attendance, followers, _ = attended()
    now = time.monotonic()
    with followers.follow(["r1"]):
        assert attendance.deserted(now + 10 * PATIENCE) == []
    assert attendance.deserted(now + 10 * PATIENCE + 1) == []
    assert attendance.deserted(now + 11 * PATIENCE + 1) == ["r1"]


def test_detached_jobs_and_machines_wait_for_themselves() -> None:
    for fields in ({"detached": True}, {"job": None}):
        attendance, _, _ = attended(**fields)
        assert attendance.deserted(time.monotonic() + 10 * PATIENCE) == []


def test_what_has_hosts_is_theirs_to_watch_until_it_waits_again() -> None:
    attendance, _, asked = attended()
    started = RequestRecord(request=asked, state=RequestState.STARTING)
    attendance.moved(started)
    late = time.monotonic() + 10 * PATIENCE
    assert attendance.deserted(late) == []
    attendance.moved(msgspec.structs.replace(started, state=RequestState.WAITING))
    assert attendance.deserted(late) == ["r1"]
