"""Which jobs are sent on from worker nodes, and by which of their names."""

from __future__ import annotations

import pytest

from encamp.batch.slurm import sending
from encamp.batch.slurm.names import ONCE, may_begin_again
from encamp.batch.slurm.queue import FIELDS, Entry, entry

NODES = {"w1": {"tiny"}, "w2": {"tiny"}}
VALUES = {
    **dict.fromkeys(FIELDS, ""),
    **dict.fromkeys(("uid", "gid", "status", "restarts", "submitted"), "0"),
    "number": "7",
    "id": "7",
    "state": "RUNNING",
    "cpus": "1",
    "nodes": "w1",
    "requeue": "1",
    "batch": "1",
    "admin_comment": "env=mini",
}


def job(**values: str) -> Entry:
    return entry((VALUES | values).values())


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({}, "w1"),
        ({"requeue": "0"}, "w1"),
        ({"nodes": "w[1-2]"}, "w1"),
        # Its script has begun, where that is possible.
        ({"nodes": "n1,w2"}, "w2"),
        ({"nodes": "n1,w2", "requeue": "0"}, ""),
        ({"nodes": "n1,w2", "admin_comment": f"env=mini; encamp: x; {ONCE}"}, ""),
        # There is nothing to send on, or nothing that could be.
        ({"admin_comment": "env=tiny"}, ""),
        ({"admin_comment": ""}, ""),
        ({"comment": "env=mini", "admin_comment": "(null)"}, ""),
        ({"nodes": "n1"}, ""),
        ({"nodes": ""}, ""),
        ({"batch": "0"}, ""),
        # What has failed was not begun, or failed by itself.
        ({"state": "FAILED", "reason": "JobLaunchFailure"}, "w1"),
        ({"state": "FAILED", "reason": "NonZeroExitCode"}, ""),
        ({"state": "FAILED", "reason": "JobLaunchFailure", "requeue": "0"}, ""),
    ],
)
def test_only_jobs_for_machines_are_in_the_wrong_place(values: dict[str, str], where: str) -> None:
    assert sending._wrong_place(job(**values), NODES) == where


@pytest.mark.parametrize(
    ("number", "id", "called", "whole"),
    [("7", "7", "7", "7"), ("7", "7_3", "7_3", "7_3"), ("9", "8+1", "9", "8")],
)
def test_task_of_an_array_is_never_called_by_the_number_of_all(
    number: str, id: str, called: str, whole: str
) -> None:
    entry = job(number=number, id=id)
    assert (entry.called, entry.whole) == (called, whole)


def test_job_that_had_to_be_queued_again_may_not_be_begun_twice() -> None:
    assert may_begin_again(job())
    assert not may_begin_again(job(requeue="0"))
    assert not may_begin_again(job(admin_comment=f"env=mini; encamp: somewhere; {ONCE}"))
