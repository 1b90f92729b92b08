"""Running a job in a machine made for it: the seven phases, from request to outcome."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TypeVar

import msgspec

from encamp.agent.copying import (
    HOST_FILES,
    Copied,
    Files,
    check_inputs,
    check_outputs,
    copy_in,
    copy_out,
    is_directory,
    more_room,
)
from encamp.agent.disk_errors import disk_errors, failed_writes
from encamp.agent.keeper import Keeper
from encamp.agent.live import Live
from encamp.agent.phases import Phases
from encamp.agent.streams import Streams, attend
from encamp.agent.surroundings import starting_points, variables_for
from encamp.describe.environments import find_environment
from encamp.guest.channel import Channel, Exec, Exit, Kind, Stream
from encamp.machines.engine import Engine, MachineStoppedError
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Copy, Job, Outcome, User
from encamp.model.machine import After, Machine, Phase
from encamp.progress import Progress

GRACE = 5.0
"""Seconds a command has to end after its time is up, before its machine is destroyed."""

T = TypeVar("T")

Window = tuple[int, int] | None
"""Rows and columns of a terminal, if there is one."""

Arrived = Callable[[], Awaitable[Window]]
"""Waits for whoever is to be there when the command begins."""

ENDS = {
    After.DESTROY: "destroyed",
    After.SHUTDOWN: "shut down",
    After.PAUSE: "paused",
    After.SUSPEND: "suspended",
    After.KEEP: "kept",
    After.SAVE: "saved",
}


class Control:
    """What the outside may do to a job under way."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._waiting: list[Callable[[Stream], None]] = []
        self.on_start: Callable[[], None] = lambda: None
        """Called when the command begins."""
        self.on_begin: Callable[[], None] = lambda: None
        """Called before anything is done that could make it begin."""

    def attach(self, stream: Stream) -> None:
        self.on_start()
        self._stream = stream
        for action in self._waiting:
            action(stream)
        self._waiting.clear()

    @property
    def started(self) -> bool:
        return self._stream is not None

    def signal(self, number: int, *, alone: bool = False) -> None:
        """To the whole job, or to its first process."""
        self._do(lambda stream: stream.signal(number, alone=alone))

    def resize(self, rows: int, columns: int) -> None:
        self._do(lambda stream: stream.resize(rows, columns))

    def _do(self, action: Callable[[Stream], None]) -> None:
        if self._stream is None:
            self._waiting.append(action)
        else:
            action(self._stream)


def exec_message(command: Command, owner: User, machine: Machine, window: Window) -> Exec:
    variables = variables_for(owner, machine)
    if command.terminal is not None:
        variables["TERM"] = command.terminal
    variables.update(command.variables)
    workdir, fallback = starting_points(command, owner, machine)
    return Exec(
        args=list(command.arguments),
        env=variables,
        cwd=workdir,
        fallback=fallback,
        uid=owner.uid,
        gid=owner.gid,
        groups=list(owner.groups),
        terminal=None if command.terminal is None else window or (24, 80),
    )


async def run_job(
    keeper: Keeper,
    job: Job,
    streams: Streams,
    *,
    control: Control,
    progress: Progress,
    window: Window = None,
    phases: Phases | None = None,
    files: Files = HOST_FILES,
    arrived: Arrived | None = None,
    environment: Environment | None = None,
    leave_idle: bool = False,
) -> Outcome:
    """Run a job from request to outcome. If this is cancelled, the machine is destroyed.

    `arrived`: wait for that when the machine is there, before its command begins. `leave_idle`: a
    machine that would be destroyed afterwards is left to the next job of its owner's."""
    if files is HOST_FILES:
        check_inputs(job.inputs)
        check_outputs(job.outputs)
    environment = environment or find_environment(job.machine.environment)
    after = job.after or environment.after
    if leave_idle and after is After.DESTROY:
        after = After.KEEP
    else:
        leave_idle = False
    save_as = ""
    if after is After.SAVE or job.save_as is not None:
        from encamp.agent.saving_jobs import check_save

        save_as = check_save(job, environment, after)
    phases = phases or Phases()
    stream: Stream | None = None
    owner = job.machine.owner
    saved = ""
    failures: tuple[str, ...] = ()

    def begin(channel: Channel, machine: Machine) -> None:
        nonlocal stream
        control.on_begin()
        stream = channel.execute(exec_message(job.command, owner, machine, window))

    early = not job.inputs and arrived is None
    live = await keeper.maker.make(
        job.machine,
        environment,
        tied=True,
        outlives=after in (After.KEEP, After.PAUSE, After.SAVE),
        phases=phases,
        progress=progress,
        command=job.command.arguments,
        first=begin if early else None,
        after=after,
    )
    try:
        if arrived is not None:
            window = await arrived()
        workdir = await _workdir(live, job)
        with phases.time(Phase.INPUT, "nothing") as how:
            if job.inputs:
                brought = await _guarded(
                    live, copy_in(live.channel, live.machine, job.inputs, workdir, owner, files)
                )
                how.word = brought.summary
        with phases.time(Phase.COMMAND, "ran") as how:
            if not early:
                begin(live.channel, live.machine)
            assert stream is not None
            control.attach(stream)
            ended = await _guarded(live, attend_in_time(stream, streams, job.timeout))
            how.word = describe(ended, job.command)
        live.record(msgspec.structs.replace(live.machine, phases=phases.done()))
        copied = Copied()
        failures = await _reasons(keeper, live.machine, live.engine, ended)
        with phases.time(Phase.OUTPUT, "nothing") as how:
            if job.outputs:
                copied = await _guarded(
                    live, copy_out(live.channel, job.outputs, workdir, owner, files)
                )
                how.word = copied.summary
        if after is After.SAVE and ended.code != 0:
            after = After.DESTROY
            copied.problems.append(f"Not saved as '{save_as}': the command failed.")
        with phases.time(Phase.END, ENDS[after]):
            if after is After.SAVE:
                from encamp.agent.saving_jobs import save_and_destroy

                saved = await save_and_destroy(keeper, live, save_as, progress)
            elif leave_idle:
                await live.hang_up()
                # With this the next job may have it: nothing is written here from then on.
                idle = msgspec.structs.replace(live.machine, tied=False, idle=True)
                live.record(idle)
                await live.let_go()
            else:
                await _end(keeper, live, after)
    except BaseException:
        await live.destroy()
        raise
    if after not in (After.DESTROY, After.SAVE) and not leave_idle:
        live.record(msgspec.structs.replace(live.machine, phases=phases.done()))
    return Outcome(
        machine=live.machine.id,
        exit_code=ended.code,
        reason=describe(ended, job.command),
        started=ended.started,
        phases=phases.done(),
        missing=tuple(copied.missing),
        problems=(*failures, *copied.problems),
        saved=saved,
    )


async def _workdir(live: Live, job: Job) -> str:
    """What paths of files to be copied are relative to: where the command starts."""
    owner = job.machine.owner
    workdir, fallback = starting_points(job.command, owner, live.machine)
    if fallback is None or not (job.inputs or job.outputs):
        return workdir
    there = await _guarded(live, is_directory(live.channel, workdir, owner))
    return workdir if there else fallback


async def run_in(
    keeper: Keeper,
    machine: Machine,
    command: Command,
    user: User,
    streams: Streams,
    control: Control,
    timeout: float | None,
    window: Window,
    *,
    inputs: Sequence[Copy] = (),
    outputs: Sequence[Copy] = (),
    files: Files = HOST_FILES,
) -> Outcome:
    """Run a command in a machine that is there already; without one, only copy files."""
    ended = Exit(Kind.EXITED, 0)
    problems: tuple[str, ...] = ()
    copied = Copied()
    async with keeper.speak(machine) as (engine, channel):
        workdir, fallback = starting_points(command, user, machine)
        if fallback is not None and (inputs or outputs):
            workdir = workdir if await is_directory(channel, workdir, user) else fallback
        await copy_in(channel, machine, inputs, workdir, user, files)
        if command.arguments:
            control.on_begin()
            failed = await failed_writes(machine, engine)
            stream = channel.execute(exec_message(command, user, machine, window))
            control.attach(stream)
            ended = await engine.unless_stopped(attend_in_time(stream, streams, timeout))
            problems = await _reasons(keeper, machine, engine, ended, failed)
        if outputs:
            copied = await copy_out(channel, outputs, workdir, user, files)
    return Outcome(
        machine=machine.id,
        exit_code=ended.code,
        reason=describe(ended, command),
        started=ended.started,
        missing=tuple(copied.missing),
        problems=(*problems, *copied.problems),
    )


async def _reasons(
    keeper: Keeper, machine: Machine, engine: Engine, ended: Exit, failed: int = 0
) -> tuple[str, ...]:
    """What of the machine may have made a command fail, or lose what it wrote."""
    said = (f"{ended.text} {_cure(ended.text, machine)}",) if ended.started and ended.text else ()
    return (*said, *await disk_errors(keeper.home, machine, engine, failed))


def _cure(said: str, machine: Machine) -> str:
    """What gives a machine more of that which the guest program says it has run out of."""
    if "memory" in said:
        return "--memory gives one more."
    return more_room(machine)


def describe(ended: Exit, command: Command) -> str:
    match ended.kind:
        case Kind.EXITED:
            return f"exit code {ended.value}"
        case Kind.KILLED:
            return f"killed by signal {ended.value}"
        case Kind.NOT_STARTED | Kind.NOT_FURNISHED:
            return f"'{command.arguments[0]}': {ended.text or os.strerror(ended.value)}"


async def attend_in_time(stream: Stream, streams: Streams, timeout: float | None) -> Exit:
    attending = asyncio.create_task(attend(stream, streams))
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.shield(attending)
    except TimeoutError:
        stream.signal(signal.SIGTERM)
        await asyncio.wait({attending}, timeout=GRACE)
        raise EncampError(
            Code.TIMEOUT,
            f"The command was ended after its time limit of {timeout:g} seconds.",
            "Give it more with --timeout.",
        ) from None
    finally:
        attending.cancel()
        await asyncio.wait({attending})


async def _guarded(live: Live, work: Coroutine[object, object, T]) -> T:
    """Work that needs the machine; if the machine dies over it, say how."""
    try:
        return await live.engine.unless_stopped(work)
    except EncampError as error:
        if error.code is not Code.MACHINE_LOST or isinstance(error, MachineStoppedError):
            raise
        # Its process goes a moment after its channel does.
        try:
            async with asyncio.timeout(GRACE):
                await live.engine.process.ended()
        except TimeoutError:
            raise error from None
        raise live.engine.explain(
            f"Machine {live.machine.name} died while the job was in it."
        ) from error


async def _end(keeper: Keeper, live: Live, after: After) -> None:
    """What becomes of the machine. Until that is done it stays tied to this process."""
    if after is After.DESTROY:
        await live.destroy()
        return
    await live.hang_up()
    moved = live.machine
    if after is After.SHUTDOWN:
        moved = await keeper.stop(moved, job_is_over=True)
    elif after is After.PAUSE:
        moved = await keeper.pause(moved)
    elif after is After.SUSPEND:
        moved = await keeper.suspend(moved, job_is_over=True)
    live.record(msgspec.structs.replace(moved, tied=False))
    await live.let_go()
