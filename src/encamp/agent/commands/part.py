"""One machine of a request: made, used and told about, with its client or without one."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import AsyncIterable, AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.agent.caller import caller
from encamp.agent.commands.ground import Ground
from encamp.agent.commands.stage import IMAGE, RUNNING, START
from encamp.agent.copying import Copied
from encamp.agent.keeper import Keeper
from encamp.agent.phases import Phases
from encamp.agent.reuse import may_reuse, run_again, take_idle
from encamp.agent.run import Control, Window, run_in, run_job
from encamp.describe.settings import SettingsError, load_settings
from encamp.door.questions import Exec
from encamp.home import default_home
from encamp.meeting.host import Conversation
from encamp.model.driver import DriverError
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import Copy, Job, MachineRequest, Outcome
from encamp.model.machine import Machine
from encamp.model.request import PartResult, Request
from encamp.progress import Progress, Silent

IMAGE_MISSING = frozenset({Code.BUILD_FAILED, Code.UNREACHABLE})
"""How it fails before a machine is there if its image is not on this host, nor to be had."""

FAREWELL = 2.0
"""Seconds to tell a client that its job was ended by somebody."""

REQUEST = frozenset(
    {
        Code.USAGE,
        Code.UNKNOWN_ENVIRONMENT,
        Code.INPUT_MISSING,
        Code.UNKNOWN_ENVIRONMENT,
        Code.UNKNOWN_MACHINE,
        Code.NOT_PERMITTED,
        Code.COPY_FAILED,
        Code.WRONG_STATE,
        Code.TIMEOUT,
    }
)
"""What is wrong with the request itself, wherever it is tried."""

IN_THE_WAY = frozenset(
    {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
)
"""How files fail that their owner has changed, not the host."""


def in_words(error: EncampError | OSError) -> EncampError:
    """For a process that has become the owner's: what owners have done to their own directory on
    the host is their own affair. Any other mistake of the system's is raised again."""
    if isinstance(error, EncampError):
        return error
    home = default_home().root
    path = Path(str(error.filename or "/"))
    if error.errno not in IN_THE_WAY or not path.is_relative_to(home):
        raise error
    return EncampError(
        Code.NOT_PERMITTED,
        f"Cannot use {path}: {error.strerror}.",
        f"{home} is your own on this host: let it be as Encamp has made it, or remove it when you"
        " have no machines there.",
    )


class MetFiles:
    """Files of a client, packed and unpacked at its end."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def pack(self, number: int, source: Path, name: str) -> AsyncIterator[bytes]:
        return self._conversation.bring(number, name)

    async def unpack(self, number: int, copy: Copy, pieces: AsyncIterable[bytes]) -> Copied:
        copied = Copied(files=1)
        out = self._conversation.send(number)
        try:
            async for piece in pieces:
                copied.size += len(piece)
                await out.write(piece)
        except EncampError as error:
            out.finish(error)
            if error.code is not Code.DISK_FULL:
                raise
            copied.problems.append(f"Not copied: {copy.source}: {error.sentence}")
        else:
            out.finish()
        return copied


class Part:
    """What is known of it as it goes."""

    def __init__(self, ground: Ground, *, own: bool = False) -> None:
        """`own`: of an environment that its owner has described."""
        self.ground = ground
        self.own = own
        self.machine = ""
        self.began = False
        self.gone = False
        """Its client did not come, or went away."""
        self.problems: list[str] = []
        """What could not be kept of what it has printed."""
        self.phases = Phases()
        self.phases.on_image = self._image
        self.phases.on_machine = self._made

    def _image(self) -> None:
        self.ground.telling.tell(IMAGE)

    def _made(self, machine: Machine) -> None:
        self.machine = machine.id
        self.ground.telling.tell(START, machine.id)

    def begin(self) -> None:
        """Its command is about to begin: who looks after a crash must know."""
        self.began = True
        self.ground.telling.tell(RUNNING, self.machine)

    async def image(self, progress: Progress) -> None:
        """Wait for what is being got for all owners."""
        # Getting it fails over a mistake in the site's settings, too, and would be counted.
        load_settings()
        if self.ground.fetching is not None:
            self._image()
            await self.ground.fetching.done(progress)

    def trouble(self, error: EncampError) -> None:
        if error.sentence not in self.problems:
            self.problems.append(error.sentence)

    def ended(self, outcome: Outcome) -> PartResult:
        return PartResult(
            machine=outcome.machine,
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            began=True,
            phases=outcome.phases,
            missing=outcome.missing,
            problems=outcome.problems,
            saved=outcome.saved,
        )

    def failed(self, error: EncampError) -> PartResult:
        failure, of_settings = error.sentence, isinstance(error, SettingsError)
        if of_settings:
            # Whoever asks later is told this sentence alone, and needs the place of the mistake.
            failure = " ".join([failure, *error.detail.splitlines()])
        # What is wrong with somebody's own description is wrong everywhere, until he mends it.
        blamed = self.own or error.code in REQUEST or of_settings or isinstance(error, DriverError)
        final = self.gone or (blamed and not error.transient and error.code is not Code.NO_ROOM)
        return PartResult(
            machine=self.machine,
            began=self.began,
            failure=failure,
            code=error.code,
            hint=error.hint,
            image=not (self.began or final) and error.code in IMAGE_MISSING,
            environment=not (self.began or final or error.code is Code.NO_ROOM),
            final=final,
            transient=error.transient,
            phases=self.phases.done(),
        )


async def refused(part: Part, error: EncampError | OSError) -> PartResult:
    return part.failed(in_words(error))


async def run_part(
    part: Part,
    keeper: Keeper,
    environment: Environment,
    request: Request,
    machine: MachineRequest,
    ticket: str,
) -> PartResult:
    # The owner as this host knows him, whose process this is by now.
    machine = msgspec.structs.replace(machine, owner=caller())
    if request.job is None:
        ready = request.reuse and environment.reuse
        return await _stand(part, keeper, environment, machine, ready=ready)
    conversation = Conversation(ticket, part.ground.kept)
    job = msgspec.structs.replace(request.job, machine=machine)
    expected = not request.detached or bool(job.inputs)
    # The name of somebody's own environment can mean another one next time.
    reuse = request.reuse and not request.own and may_reuse(job, environment)
    work = _run(part, keeper, environment, job, conversation, expected=expected, reuse=reuse)
    return await _converse(part, conversation, work)


async def run_in_machine(
    part: Part, keeper: Keeper, machine: Machine, wanted: Exec, ticket: str
) -> PartResult:
    """Run something in a machine that is there already."""
    part.machine = machine.id
    conversation = Conversation(ticket)

    async def work() -> Outcome:
        await conversation.arrived()
        return await run_in(
            keeper,
            machine,
            wanted.command,
            caller(),
            conversation,
            _control(part, conversation),
            wanted.timeout,
            conversation.window,
            inputs=wanted.inputs,
            outputs=wanted.outputs,
            files=MetFiles(conversation),
        )

    return await _converse(part, conversation, work())


async def _stand(
    part: Part, keeper: Keeper, environment: Environment, machine: MachineRequest, *, ready: bool
) -> PartResult:
    """A machine that is wanted for itself; `ready`: or for the next job of its owner's, and then it
    is nobody's until that comes."""
    try:
        await part.image(Silent())
        made = await keeper.start(machine, Silent(), part.phases, environment, idle=ready)
    except (EncampError, OSError) as error:
        return part.failed(in_words(error))
    part.begin()
    return PartResult(machine=made.id, began=True, standing=not ready, phases=made.phases)


async def _run(
    part: Part,
    keeper: Keeper,
    environment: Environment,
    job: Job,
    conversation: Conversation,
    *,
    expected: bool,
    reuse: bool,
) -> Outcome:
    async def arrived() -> Window:
        if expected:
            await conversation.arrived()
        return conversation.window

    await part.image(conversation)
    control, files = _control(part, conversation), MetFiles(conversation)
    if reuse:
        idle = take_idle(keeper, job, environment)
        if idle is not None:
            part.phases.on_machine(idle.machine)
            return await run_again(idle, job, conversation, control, part.phases, files, arrived)
    return await run_job(
        keeper,
        job,
        conversation,
        control=control,
        progress=conversation,
        phases=part.phases,
        files=files,
        arrived=arrived,
        environment=environment,
        leave_idle=reuse,
    )


async def _converse(
    part: Part, conversation: Conversation, work: Coroutine[object, object, Outcome]
) -> PartResult:
    """Do the work among those who come for it, and tell them how it ended."""
    conversation.on_trouble = part.trouble
    async with conversation.serve(part.ground.listener):
        try:
            outcome = await conversation.attend(work)
        except (EncampError, OSError) as error:
            told = in_words(error)
            part.gone = conversation.vanished
            await conversation.failed(told)
            return part.failed(told)
        except asyncio.CancelledError:
            ended = EncampError(Code.COMMAND_FAILED, "It was cancelled, or its time was up.")
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    await conversation.failed(ended)
            raise
        problems = (*outcome.problems, *part.problems)
        outcome = msgspec.structs.replace(outcome, problems=problems)
        await conversation.ended(outcome)
        return part.ended(outcome)


def _control(part: Part, conversation: Conversation) -> Control:
    control = Control()
    control.on_begin = part.begin
    control.on_start = conversation.began

    def signalled(number: int) -> None:
        with suppress(ValueError):
            control.signal(signal.Signals(number))

    conversation.on_signal = signalled
    conversation.on_resize = control.resize
    return control


def machine_of(request: Request, number: int) -> MachineRequest:
    """What is to be made here, of the size that was promised."""
    wanted = request.machine
    name = wanted.name
    if name is not None and request.count > 1:
        name = f"{name}-{number}"
    return msgspec.structs.replace(
        wanted,
        environment=request.environment,
        name=name,
        cpus=request.size.cpus,
        memory=request.size.memory,
        disk=request.size.disk,
    )
