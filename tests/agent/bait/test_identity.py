"""Whose job a starter belongs to is found out once, by a thread, or not at all."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from encamp.agent.bait.frames import Asked
from encamp.agent.bait.identity import T, identify
from encamp.agent.bait.starter import Visit
from encamp.model.batch import BatchJob, Task
from encamp.model.errors import EncampError
from tests.agent.bait.pretended import Pretended


class Telling(Pretended):
    """Knows one job, as long as its process is seen in it."""

    def __init__(self, looks: int = 100) -> None:
        super().__init__()
        self.looks = looks
        self.threads: set[int] = set()

    def job_of(self, pid: int) -> str | None:
        self.threads.add(threading.get_ident())
        self.looks -= 1
        return "17" if self.looks >= 0 else None

    def task_of(self, pid: int, variables: Mapping[str, str]) -> Task:
        return Task(step="3" if self.job_of(pid) else "")

    def describe(self, id: str) -> BatchJob:
        self.threads.add(threading.get_ident())
        return BatchJob(system=self.name, id=id, uid=os.geteuid())


@pytest.fixture
def visit() -> Iterator[Visit]:
    ours, its = socket.socketpair()
    with ours, its:
        visit = Visit(ours)
        visit.recognize()
        visit.asked = Asked(system="pretended", arguments=(b"true",))
        yield visit


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def test_nothing_that_may_take_a_while_is_asked_by_the_loop(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, looked_up = Telling(), pwd.getpwuid

    def getpwuid(uid: int) -> pwd.struct_passwd:
        system.threads.add(threading.get_ident())
        return looked_up(uid)

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    job, task = await identify(visit, system, in_thread)
    assert (job.id, task.step) == ("17", "3")
    assert visit.user.uid == os.geteuid()
    assert threading.get_ident() not in system.threads


@pytest.mark.parametrize("looks", [1, 2])
async def test_process_whose_job_ends_meanwhile_is_not_taken_for_its_script(
    visit: Visit, looks: int
) -> None:
    with pytest.raises(EncampError, match="cannot be told") as raised:
        await identify(visit, Telling(looks), in_thread)
    assert raised.value.transient


async def test_process_of_no_job_is_refused(visit: Visit) -> None:
    with pytest.raises(EncampError, match="belongs to no job") as raised:
        await identify(visit, Telling(0), in_thread)
    assert not raised.value.transient
