"""Carrying out a batch job: a machine is made for it, or taken over from the last job of its
owner's, and the job runs in it, with the files that its starter was given.

The starter is told before the command can begin, and how it ended once all of its output is
written. If the starter goes, so does the machine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from encamp.agent.bait import frames
from encamp.agent.bait.calling import Calling
from encamp.agent.bait.errand import KILLED, Carried, Errand, told_of
from encamp.agent.bait.grouping import Groups
from encamp.agent.bait.handing import Handed
from encamp.agent.bait.housing import Housing, fault_of
from encamp.agent.bait.inside import command_of, exec_of, interpreter_of
from encamp.agent.bait.line import Line
from encamp.agent.bait.lodging import Lodging
from encamp.agent.bait.pausing import follow, follow_alone, until_going
from encamp.agent.bait.streams import FileStreams
from encamp.agent.caller import as_user
from encamp.agent.commands.fetching import Fetching
from encamp.agent.commands.stage import ENDED, IMAGE, RUNNING, START, Telling
from encamp.agent.keeper import Keeper
from encamp.agent.phases import Phases
from encamp.agent.run import Control
from encamp.agent.streams import attend
from encamp.guest.channel import Channel, Exec, Exit, Kind, Stream
from encamp.machines.engine import Engine, MachineStoppedError
from encamp.model.batch import BatchSettings
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine, Phase, State
from encamp.progress import Progress

DEADLY = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU}
)
"""What ends a command that has not begun."""

QUIET = 60.0
"""Seconds after which a starter that waits for an image is told how far it is."""
LAST = 3.0
"""Seconds in which a machine whose starter is gone tells how its command has ended."""

QUEUED = "A task of the job was lost, and the job is back in the queue."

FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds after which one that failed to begin comes again."""


class KilledError(Exception):
    """The job was ended by a signal before it had begun."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class DesertedError(Exception):
    """Its starter is gone."""


class Notes(Progress):
    """What takes long is told, now and then."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._told = time.monotonic()

    def update(self, what: str, fraction: float | None = None) -> None:
        now = time.monotonic()
        if now - self._told > QUIET:
            self._told = now
            done = "" if fraction is None else f" ({fraction:.0%})"
            self._line.say(frames.note(f"{what}{done}"))


class Carrying:
    """One job, from here to its end."""

    def __init__(
        self,
        errand: Errand,
        handed: Handed,
        keeper: Keeper,
        environment: Environment,
        telling: Telling,
        groups: Groups,
        fetching: Fetching | None,
    ) -> None:
        self._errand = errand
        self._asked = handed.asked
        self._keeper = keeper
        self._telling = telling
        self._fetching = fetching
        self._line = Line(handed.connection)
        self._streams = FileStreams(handed.input, handed.output, handed.error)
        self._control = Control()
        self._deserted = False
        """Its starter is gone, and its command was killed if it was there."""
        self._killed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._line.on_signal = self._signalled
        self._calling = Calling(
            self._line, self._asked, errand.commands, errand.environment, self._is_queued
        )
        who = errand.starter
        self._user = as_user(who.uid, who.gid, who.groups)
        self._phases = Phases()
        self._phases.on_image = lambda: self._telling.tell(IMAGE)
        self._phases.on_machine = self._made
        self._carried = Carried()
        self._housing: Housing | Lodging = (
            Lodging(errand, keeper, self._phases)
            if errand.host
            else Housing(errand, self._asked, keeper, environment, self._user, self._phases, groups)
        )
        self._housing.first = self._prepare
        self._held: Stream | None = None
        """Its command, if the machine has it ready."""

    async def run(self) -> Carried:
        try:
            ended = await self._unless_gone(self._work())
        except DesertedError:
            return self._note(deserted=True, failure="Its starter was ended.")
        except KilledError as killed:
            self._line.say(frames.ended(signal=killed.number))
            return self._note(ended=KILLED + killed.number)
        except EncampError as error:
            return self._failed(error)
        finally:
            used = self._housing
            self._note(
                phases=self._phases.done(),
                cpu_seconds=used.cpu_seconds,
                peak_memory=used.peak_memory,
            )
        # With that its batch system may end everything that is left of it, this process included.
        with suppress(OSError):
            self._telling.used(self._carried.cpu_seconds, self._carried.peak_memory)
        self._say_end(ended)
        self._line.close()
        return self._carried

    # ── what happens around it ───────────────────────────────────────────────────────────────────

    async def _unless_gone(self, work: Coroutine[object, object, int]) -> int:
        """Do the work as long as somebody wants it."""
        working = asyncio.create_task(work)
        gone = asyncio.create_task(self._line.gone.wait())
        try:
            queued = self._calling.queued
            waiting: set[asyncio.Future[Any]] = {working, gone, queued, self._killed}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if self._killed.done():
                raise KilledError(self._killed.result())
            if queued.done():
                self._note(queued=True)
                raise EncampError(Code.MACHINE_LOST, QUEUED)
            return await self._unless_killed(working)
        finally:
            gone.cancel()
            working.cancel()
            await asyncio.wait({working, gone})

    async def _unless_killed(self, working: asyncio.Task[int]) -> int:
        """Nobody wants it any more. But its command may have ended just before: that is known only
        in the machine, where it is killed if it has not."""
        if self._carried.began:
            self._deserted = True
            self._control.signal(signal.SIGKILL)
            await asyncio.wait({working}, timeout=LAST)
        if not working.done():
            raise DesertedError
        return working.result()

    def _is_queued(self) -> bool:
        """Asks the batch system, as anybody can."""
        from encamp.batch.adapters import open_batch_system

        job = self._errand.job
        settings = BatchSettings(system=job.system, programs=self._errand.programs)
        return open_batch_system(settings).is_queued(job.id)

    def _signalled(self, number: int, alone: bool) -> None:
        if number == signal.SIGWINCH:
            if self._streams.is_terminal:
                self._control.resize(*self._streams.window())
        elif number in DEADLY and not self._carried.began:
            if not self._killed.done():
                self._killed.set_result(number)
        elif number in signal.valid_signals():
            if number in DEADLY and isinstance(self._housing, Housing):
                self._housing.cancelled = True
            self._control.signal(number, alone=alone)

    def _made(self, machine: Machine) -> None:
        self._note(machine=machine.id)
        self._telling.tell(START, machine.id)

    def _note(self, **changes: object) -> Carried:
        self._carried = msgspec.structs.replace(self._carried, **changes)
        return self._carried

    def _failed(self, error: EncampError) -> Carried:
        """One that has begun is not tried again here: its starter sees the connection end, and
        asks what to do."""
        if self._carried.began:
            self._line.say(frames.note(error.sentence))
            self._line.close()
        else:
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2**self._errand.tries)
            self._line.say(frames.again(delay, told_of(error)))
        fault = None
        if not (self._carried.came_up or self._errand.host):
            fault = fault_of(error, fetching=self._fetching is not None)
        return self._note(failure=error.sentence, fault=fault)

    # ── the work ─────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> int:
        notes = Notes(self._line)
        if self._fetching is not None:
            self._telling.tell(IMAGE)
            await self._fetching.done(notes)
            self._fetching = None
        async with self._housing.machine(notes) as (machine, engine, channel):
            self._note(came_up=True)
            await until_going(self._errand.starter)
            return await self._command(machine, engine, channel)

    async def _command(self, machine: Machine, engine: Engine, channel: Channel) -> int:
        """Run the command, and note how it ended: from then on that is known, whatever happens."""
        streams = self._streams
        same = (share.path for share in machine.shares if share.source == share.path)
        self._calling.shared = tuple(same)
        with self._phases.time(Phase.COMMAND, "ran") as how, streams.raw():
            following = asyncio.create_task(self._follow(machine))
            try:
                self._begin(machine)
                async with self._calling.ended():
                    stream = self._held or channel.execute(self._wanted(machine))
                    if self._held is not None:
                        stream.go()
                    self._control.attach(stream)
                    ended = await _guarded(machine, engine, attend(stream, streams))
            finally:
                following.cancel()
                await asyncio.wait({following})
            how.word = _described(ended)
        if self._deserted and (ended.kind, ended.value) == (Kind.KILLED, signal.SIGKILL):
            raise DesertedError
        if ended.kind is Kind.NOT_FURNISHED:
            raise EncampError(Code.COPY_FAILED, f"In machine {machine.name} {ended.text}.")
        code = KILLED + ended.value if ended.kind is Kind.KILLED else ended.code
        if code == 0 and streams.trouble:
            code = Code.DISK_FULL.value  # It has not done what it was to do.
        with suppress(OSError):  # On a full disk the starter's word is enough.
            self._telling.tell(ENDED, machine.id, code)
        self._line.say(frames.over())
        self._note(ended=code)
        if ended.kind is Kind.NOT_STARTED:
            self._line.say(frames.note(self._why_not_started(ended)))
        elif ended.text:
            self._line.say(frames.note(ended.text))
        return code

    def _prepare(self, channel: Channel, machine: Machine) -> None:
        """What can be said before the guest answers. That of a new machine is as new as we are, and
        has the command ready by the time when everybody has been told that it begins."""
        self._calling.offer(channel, self._user.uid)
        if machine.state is State.STARTING and not machine.whole:
            held = msgspec.structs.replace(self._wanted(machine), held=True)
            self._held = channel.execute(held)

    def _wanted(self, machine: Machine) -> Exec:
        streams = self._streams
        terminal = streams.window() if streams.is_terminal else None
        wanted = exec_of(
            self._asked,
            self._user,
            machine,
            terminal=terminal,
            merged=terminal is None and streams.is_one,
        )
        return self._calling.with_commands(wanted)

    def _why_not_started(self, ended: Exit) -> str:
        """A script that is there cannot be missing: what its first line names is."""
        if ended.value == errno.ENOENT and (program := interpreter_of(self._asked)):
            if program.endswith("\r"):
                return (
                    "The script's first line ends with a carriage return, which counts as a part of"
                    " the program's name: its lines end as on another system."
                )
            return (
                f"Environment '{self._errand.environment}' has no '{program}', which the script's"
                " first line names."
            )
        command = os.fsdecode(command_of(self._asked)[0])
        return f"'{command}': {ended.text or os.strerror(ended.value)}"

    async def _follow(self, machine: Machine) -> None:
        if self._errand.host:
            await follow_alone(self._errand.starter, self._control)
        else:
            await follow(self._errand.starter, self._keeper, machine)

    def _begin(self, machine: Machine) -> None:
        """Everybody is told before anything can happen: whoever looks after a crash, and then the
        starter."""
        self._telling.tell(RUNNING, machine.id)
        self._note(began=True)
        if not self._line.say(frames.begun()):
            raise DesertedError

    def _say_end(self, code: int) -> None:
        trouble = self._streams.trouble
        if trouble:
            self._note(failure=trouble)
            self._line.say(frames.note(trouble))
        if code >= KILLED:
            self._line.say(frames.ended(signal=code - KILLED))
        else:
            self._line.say(frames.ended(code=code))


async def _guarded(machine: Machine, engine: Engine, work: Coroutine[object, object, Exit]) -> Exit:
    """What needs the machine; if that dies over it, say so."""
    try:
        return await engine.unless_stopped(work)
    except EncampError as error:
        if error.code is not Code.MACHINE_LOST or isinstance(error, MachineStoppedError):
            raise
        with suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await engine.process.ended()
        raise engine.explain(f"Machine {machine.name} died while the job was in it.") from error


def _described(ended: Exit) -> str:
    match ended.kind:
        case Kind.EXITED:
            return f"exit code {ended.value}"
        case Kind.KILLED:
            return f"killed by signal {ended.value}"
        case Kind.NOT_STARTED | Kind.NOT_FURNISHED:
            return "not started"
