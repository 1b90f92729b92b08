"""Beginning what carries a job out: a process of its user's, which gets all that is known of the
job, and the starter's own connection and files."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import msgspec

from encamp.agent.bait import frames
from encamp.agent.bait.choosing import (
    check_no_nodes,
    choose_size,
    is_text,
    may_stay,
    memory_limit,
)
from encamp.agent.bait.errand import Errand
from encamp.agent.bait.handing import hand_over, wait_here
from encamp.agent.bait.identity import InThread
from encamp.agent.bait.policy import Records
from encamp.agent.bait.remembering import Former, Formers
from encamp.agent.bait.starter import GoneError, Visit
from encamp.agent.commands.bait import HOLD, PLUGIN
from encamp.agent.commands.directory import OWN
from encamp.agent.commands.supervising import Commands
from encamp.batch.system import BatchSystem
from encamp.bus.messages import Claim
from encamp.describe.environments import check_use
from encamp.model.batch import BatchJob, BatchSettings, Offered, Task
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.property import Value

CLAIMED = 120.0
"""Seconds in which a command has begun that has room."""

LOOK = 0.5
"""Seconds between two looks at whether somebody who waits is still there."""
NOBODY = -1
"""The number of what is there for all tasks of a step, and is none of them."""


class Making:
    """Of a machine for all tasks of a step: by the command of this id."""

    def __init__(self, id: str, task: asyncio.Task[Former]) -> None:
        self.id = id
        self.task = task
        self.waiting = 0
        """How many tasks do."""


class Beginning:
    """`batch`: the batch system, and how this host works with it, as they are at the moment."""

    def __init__(
        self,
        commands: Commands,
        formers: Formers,
        records: Records,
        in_thread: InThread,
        batch: Callable[[], tuple[BatchSystem, BatchSettings]],
    ) -> None:
        self._own = commands.own
        self._formers = formers
        self._records = records
        self._in_thread = in_thread
        self._batch = batch
        self._making: dict[tuple[str, str, str], Making] = {}
        """By job, step and environment."""

    async def begin(
        self,
        visit: Visit,
        job: BatchJob,
        task: Task,
        environment: Environment,
        user: User,
        host: Former | None,
    ) -> None:
        """`host`: who has the machine that it joins. Tasks of a step that begin together have one
        machine, which the first of them has made."""
        name = environment.name
        await self._in_thread(lambda: check_use(environment, user))
        check_no_nodes(environment)
        if host is None and task.together:
            host = await self._host(visit, job, task, environment, user)
        id = f"{OWN}{secrets.token_hex(12)}"
        record = self._formers.record_of((job.id, task.step, task.number)) or id
        if host is None:
            errand = await self._errand(visit, job, task, environment, record)
        else:
            errand = Errand(
                job=job,
                task=task,
                starter=visit.starter,
                environment=name,
                size=host.errand.size,
                commands=await self._commands_in(name),
                programs=self._batch()[1].programs,
                tries=visit.asked.tries,
                record=record,
                host=host.errand.record,
                machine=host.stage.machine,
                tasks=host.errand.tasks,
            )
        with wait_here(self._own.directory(id)) as listener:
            self._records.came(record, job, environment=name, user=user.name, step=task.step)
            await self._issue(id, errand, user, PLUGIN, {})
            await visit.say(frames.accepted(job.id))
            try:
                await hand_over(listener, visit, lambda: self._formers.is_over(id))
            except BaseException:
                await self._own.cancel(id)
                raise

    async def close(self) -> None:
        """What is being made goes on, and is found by the next agent."""
        tasks = [making.task for making in self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _errand(
        self, visit: Visit, job: BatchJob, task: Task, environment: Environment, record: str
    ) -> Errand:
        """With a machine of its own."""
        system, settings = self._batch()
        limit = await self._in_thread(lambda: memory_limit(visit.starter.pid))
        marks: tuple[int, ...] = ()
        if may_stay(environment):
            marks = await self._in_thread(lambda: system.marks_of(visit.starter.pid))
        return Errand(
            job=job,
            task=task,
            starter=visit.starter,
            environment=environment.name,
            size=choose_size(job, task, environment, settings, limit),
            shares=settings.shares,
            marks=marks,
            commands=await self._commands_in(environment.name),
            programs=settings.programs,
            tries=visit.asked.tries,
            record=record,
        )

    async def _commands_in(self, environment: str) -> dict[str, Offered]:
        system, _ = self._batch()
        return await self._in_thread(lambda: system.commands(environment))

    async def _issue(
        self, id: str, errand: Errand, user: User, plugin: str, more: dict[str, Value]
    ) -> Former:
        arguments = {"errand": msgspec.to_builtins(errand), **more}
        former = self._formers.coming(id, errand)
        try:
            if errand.host:
                await self._own.begin_without_room(id, user.name, plugin, arguments)
                return former
            claim = Claim(
                id=id,
                owner=user.name,
                environment=errand.environment,
                size=errand.size,
                seconds=CLAIMED,
            )
            await self._own.begin(claim, plugin, arguments)
            return former
        except BaseException as error:
            self._formers.not_begun(id, str(error))
            raise

    # ── one machine for a step ───────────────────────────────────────────────────────────────────

    async def _host(
        self, visit: Visit, job: BatchJob, task: Task, environment: Environment, user: User
    ) -> Former:
        """Whoever comes while it is made waits with the first, and fails with it. It is made for
        nobody else."""
        key = job.id, task.step, environment.name
        if key not in self._making:
            id = f"{OWN}{secrets.token_hex(12)}"
            work = self._make_host(id, visit, job, task, environment, user)
            self._making[key] = Making(id, asyncio.create_task(work))
            self._making[key].task.add_done_callback(lambda done: self._made(key, done))
        making = self._making[key]
        making.waiting += 1
        try:
            while not making.task.done():
                await asyncio.wait({making.task}, timeout=LOOK)
                if visit.is_gone():
                    raise GoneError
            return making.task.result()
        except GoneError:
            if making.waiting == 1:
                await self._own.cancel(making.id)
            raise
        finally:
            making.waiting -= 1

    def _made(self, key: tuple[str, str, str], done: asyncio.Task[Former]) -> None:
        del self._making[key]
        if not done.cancelled():
            done.exception()  # Whoever waited is told; perhaps nobody did any more.

    async def _make_host(
        self,
        id: str,
        visit: Visit,
        job: BatchJob,
        task: Task,
        environment: Environment,
        user: User,
    ) -> Former:
        whole = msgspec.structs.replace(task, number=NOBODY, count=1)
        errand = await self._errand(visit, job, whole, environment, id)
        errand = msgspec.structs.replace(errand, tasks=task.count)
        directory = visit.asked.directory
        more: dict[str, Value] = {"directory": directory if is_text(directory) else "/"}
        host = await self._issue(id, errand, user, HOLD, more)
        await host.settled.wait()
        if not host.began:
            why = host.carried.failure or "The machine of its step did not come up."
            raise EncampError(Code.MACHINE_LOST, why, transient=True)
        return host
