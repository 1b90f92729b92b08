"""How many machines a job has on a host: one that is just ending keeps no step from beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from encamp.agent.bait.errand import Carried, Errand
from encamp.agent.bait.joining import Joining
from encamp.agent.bait.remembering import Former, Formers
from encamp.agent.bait.starter import GoneError, Starter, Visit
from encamp.model.batch import BatchJob, Task
from encamp.model.errors import EncampError
from encamp.model.size import MIB, Size

JOB = BatchJob(system="slurm", id="17", uid=1000, cpus=1)
STARTER = Starter(pid=1, uid=1000, gid=1000, groups=(), began=1)


def former(record: str, *, step: str, host: str = "", tasks: int = 0) -> Former:
    made = Former(
        record,
        Errand(
            job=JOB,
            task=Task(step=step),
            starter=STARTER,
            environment="mini",
            size=Size(1, 128 * MIB),
            record=record,
            host=host,
            tasks=tasks,
        ),
    )
    made.carried = Carried(began=True)
    return made


class Host:
    """Where a job has these already."""

    def __init__(self, *formers: Former) -> None:
        self.formers = list(formers)
        self.is_gone = False

    def of_job(self, id: str) -> list[Former]:
        return self.formers

    async def comes(self) -> Former | None:
        visit = SimpleNamespace(is_gone=lambda: self.is_gone)
        joining = Joining(cast("Formers", self))
        return await joining.host_of(cast("Visit", visit), JOB, Task(step="1"), "mini")


def of_two_tasks() -> Former:
    return former("a", step="0", tasks=2)


def of_an_ended_command() -> Former:
    """In another environment."""
    ended = former("a", step="0")
    ended.carried = Carried(began=True, ended=0)
    return ended


@pytest.mark.parametrize("before", [of_two_tasks, of_an_ended_command])
async def test_step_waits_for_the_machine_of_one_that_has_ended(
    before: Callable[[], Former],
) -> None:
    host = Host(before())
    coming = asyncio.create_task(host.comes())
    await asyncio.sleep(0.3)
    assert not coming.done()
    host.formers = []
    assert await coming is None


async def test_step_is_refused_as_long_as_others_run() -> None:
    others = (former("a", step="0", tasks=2), former("b", step="0", host="a"))
    with pytest.raises(EncampError, match="as many machines on this host as processors"):
        await Host(*others).comes()
    with pytest.raises(EncampError, match="as many machines on this host as processors"):
        await Host(former("a", step="0")).comes()


async def test_nobody_is_waited_for_who_is_gone() -> None:
    host = Host(former("a", step="0", tasks=2))
    host.is_gone = True
    with pytest.raises(GoneError):
        await host.comes()
