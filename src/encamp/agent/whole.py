"""Waiting for a machine made from a whole disk, which comes up in its own way and time.

Its guest program is started by cloud-init, from the seed; where there is no cloud-init, through
qemu-guest-agent. A disk that has neither can only be reached by ssh.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.agent.live import Live
from encamp.agent.plan import Plan
from encamp.machines import sockets
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import BootDisk, Engine
from encamp.machines.freeze import GUEST_PROGRAM
from encamp.machines.qemu import AGENT, SSH_PORT
from encamp.machines.qemu_agent import agent
from encamp.machines.seed import START_GUEST, seed
from encamp.machines.storage import give
from encamp.machines.whole_disk import disk_size
from encamp.model.environment import Answer, Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import MachineRequest
from encamp.model.machine import Machine
from encamp.model.size import MIB, Size, format_bytes
from encamp.model.storage import Storage

GREETING = b"SSH-"
GREETING_WAIT = 5.0
"""Seconds for an ssh server to say what it is."""
GUEST_FOLLOWS = 15.0
"""Seconds in which the guest program comes up after the ssh server, if it does at all; or as long
as that took: cloud-init starts the guest program last, on slow hosts as on fast ones."""

LEAST_MEMORY = 192 * MIB
"""With less, a distribution's kernel ends before anybody could tell why."""

FAREWELL = 30.0
"""Seconds to let qemu-guest-agent finish what it was asked to do."""

UNLESS_CLOUD_INIT = """\
[ -d /run/cloud-init ] && [ ! -e /run/cloud-init/disabled ] && exit 0
"""
"""cloud-init will start the guest program itself, when all it has to do is done."""

Tell = Callable[[str], None]
"""Called with what is waited for now."""


def fit(
    disk: Path, size: Size, request: MachineRequest, environment: Environment
) -> tuple[Size, Storage]:
    """What a machine of this disk gets; what could never work is refused before it is made."""
    network = request.network or environment.network
    if environment.ready.answer is Answer.SSH and network != "user":
        raise EncampError(
            Code.CONFIGURATION,
            f"Environment '{environment.name}' is ready when ssh answers, and has no network.",
            "Give it one ('network: user', or --network user), or another 'ready.answer'.",
        )
    if environment.kernel_arguments:
        raise EncampError(
            Code.CONFIGURATION,
            f"Environment '{environment.name}' boots from a disk, whose own boot loader says what"
            " the kernel's arguments are.",
            "Leave 'kernel_arguments' out, or change the disk.",
        )
    if size.memory < LEAST_MEMORY:
        raise EncampError(
            Code.USAGE,
            f"A machine made from a disk needs at least {format_bytes(LEAST_MEMORY)} of memory, not"
            f" {format_bytes(size.memory)}.",
            "Ask for more with --memory, or 'memory:' in the environment's description.",
        )
    wanted = request.storage or environment.storage
    if wanted not in (Storage.AUTO, Storage.QCOW2):
        raise EncampError(
            Code.USAGE,
            "A machine made from a disk keeps what it writes in a qcow2 overlay, not in storage"
            f" '{wanted.value}'.",
            "Leave 'storage' out, or say qcow2.",
        )
    return Size(size.cpus, size.memory, max(size.disk, disk_size(disk))), Storage.QCOW2


def write_seed(plan: Plan, machine: Machine, directory: MachineDirectory) -> BootDisk:
    """Put beside the machine's disk what it reads at its first start."""
    context, network = plan.environment.context, plan.hardware.network
    directory.seed.write_bytes(seed(machine, context, network, GUEST_PROGRAM))
    give(directory.seed, plan.user)
    return BootDisk()


async def answered(live: Live, environment: Environment, *, for_command: bool, tell: Tell) -> str:
    """Wait until the machine answers as its environment says, and its guest program does. Who
    answered, in words. There is a time limit: the environment's."""
    ready = environment.ready
    waiting = "nothing yet"

    def now(what: str) -> None:
        nonlocal waiting
        waiting = what
        tell(f"waiting for '{environment.name}': {what}")

    ways: dict[Answer, Callable[[], Awaitable[str]]] = {
        Answer.GUEST: lambda: _by_guest(live, now),
        Answer.QEMU_AGENT: lambda: _by_agent(live, now),
        Answer.SSH: lambda: _by_ssh(live, ready.interval, now, for_command=for_command),
    }

    async def wait() -> str:
        return await ways[ready.answer]()

    try:
        async with asyncio.timeout(ready.timeout):
            return await live.engine.unless_ended(wait())
    except TimeoutError:
        raise _silent(live.engine, environment, waiting) from None


async def _by_guest(live: Live, now: Tell) -> str:
    """The guest program, started by cloud-init or, without that, through qemu-guest-agent."""
    now("its guest program has not answered")
    talking = asyncio.Event()

    async def help_it() -> None:
        try:
            await _start_guest(live.engine, UNLESS_CLOUD_INIT, talking)
        except EncampError as error:
            # What did not help is no mistake, but may be why nothing else happens.
            now(f"its guest program has not answered ({error.sentence.rstrip('.')})")

    helping = asyncio.create_task(help_it())
    try:
        await live.ready()
        if talking.is_set():
            # Whoever hangs up on it now leaves it waiting for ever to give its answer.
            await asyncio.wait({helping}, timeout=FAREWELL)
    finally:
        helping.cancel()
        await asyncio.wait({helping})
    return "its guest answered"


async def _by_agent(live: Live, now: Tell) -> str:
    """qemu-guest-agent, and then at once the guest program, whatever cloud-init is doing."""
    now("its qemu-guest-agent has not answered")
    try:
        await _start_guest(live.engine, "", asyncio.Event())
    except EncampError as error:
        if error.code is not Code.NOT_PERMITTED:
            raise
        # It must not run commands for us; cloud-init may.
    now("its qemu-guest-agent answered, but its guest program has not")
    await live.ready()
    return "its qemu-guest-agent and its guest answered"


async def _by_ssh(live: Live, interval: float, now: Tell, *, for_command: bool) -> str:
    """The ssh server; then the guest program, which a job needs, and others can do without."""
    now("its ssh server has not answered")
    began = time.monotonic()
    port = await live.engine.forward(SSH_PORT)
    live.record(msgspec.structs.replace(live.machine, ssh=port))
    while not await _greeted(port):
        await asyncio.sleep(interval)
    now("its ssh server answered, but its guest program has not")
    reason = f"its ssh server answered on port {port} of this host"
    if for_command:
        await _by_guest(live, now)
        return reason
    try:
        async with asyncio.timeout(max(GUEST_FOLLOWS, time.monotonic() - began)):
            await _by_guest(live, lambda _: None)
    except TimeoutError:
        live.record(msgspec.structs.replace(live.machine, guest=False))
        reason += "; it has no guest program, so only ssh leads into it"
    return reason


async def _greeted(port: int) -> bool:
    """Whether an ssh server says so at this port of the host."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(GREETING_WAIT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return await reader.readexactly(len(GREETING)) == GREETING
            finally:
                writer.close()
    return False


async def _start_guest(engine: Engine, unless: str, talking: asyncio.Event) -> None:
    """Have qemu-guest-agent start the guest program, once it is there itself."""
    async with agent(sockets.connect(engine.directory.path, AGENT)) as helper:
        await helper.answered()
        talking.set()
        code = await helper.run(unless + START_GUEST)
        if code != 0:
            raise EncampError(
                Code.NO_ANSWER,
                "The guest program could not be started through the machine's qemu-guest-agent:"
                f" exit code {code}.",
                "It needs mount, cp and a volume of type iso9660.",
            )


def _silent(engine: Engine, environment: Environment, waiting: str) -> EncampError:
    seconds = environment.ready.timeout
    error = engine.explain(
        f"Environment '{environment.name}' was not ready after {seconds:.0f} seconds: {waiting}.",
        Code.NO_ANSWER,
    )
    error.hint = (
        "A disk has to bring cloud-init or qemu-guest-agent, or be reached by ssh ('ready.answer');"
        " 'ready.timeout' gives it more time. Its console shows what the kernel says only with"
        " 'console=ttyS0' on the kernel's command line."
    )
    return error
