"""Commands about machines: every move the keeper of this host can make with one.

Machines that are started here belong to the user the agent runs as. No directories of the host can
be shared with them: whoever may start machines here could read everything that user can. Machines
of requests belong to whoever asked for them; what is done with such a one is done by a process of
its owner's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

from encamp.agent.commands.plugin import Context, command
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value

if TYPE_CHECKING:
    from encamp.agent.keeper import Keeper
    from encamp.model.job import MachineRequest
    from encamp.model.machine import Machine

Reference = Annotated[str, "its name, id, or the beginning of its id"]
Owner = Annotated[str, "whose it is, if the id is whole; empty: whoever has it"]
Environment = Annotated[str, "the environment"]
Name = Annotated[str | None, "the machine's name"]
Cpus = Annotated[int | None, "number of processors"]
Memory = Annotated[str | None, "memory, such as 512M"]
Disk = Annotated[str | None, "a disk of its own for what it writes, such as 10G"]
Network = Annotated[str | None, "'none', 'user' or 'bridge'"]
Image = Annotated[str | None, "another image than the environment's"]


@command(timeout=600)
async def start(
    context: Context,
    *,
    environment: Environment = "mini",
    name: Name = None,
    cpus: Cpus = None,
    memory: Memory = None,
    disk: Disk = None,
    network: Network = None,
    image: Image = None,
    ready: Annotated[bool, "make it idle, for the next job that may reuse one"] = False,
) -> dict[str, Value]:
    """Start a machine that stays until it is ended. Returns the machine."""
    from encamp.agent.commands.lines import Lines

    request = _request(environment, name, cpus, memory, disk, network, image)
    return _described(await _keeper(context).start(request, Lines(context), idle=ready))


@command(timeout=86400)
async def run(
    context: Context,
    *,
    arguments: Annotated[list[Value], "the program and its arguments"],
    environment: Environment = "mini",
    name: Name = None,
    cpus: Cpus = None,
    memory: Memory = None,
    disk: Disk = None,
    network: Network = None,
    image: Image = None,
    variables: Annotated[dict[str, Value] | None, "variables it finds"] = None,
    workdir: Annotated[str | None, "where in the machine it starts"] = None,
) -> dict[str, Value]:
    """Run a program in a fresh machine, which is gone afterwards. Fails as the program does."""
    from encamp.agent.commands.lines import Lines
    from encamp.agent.run import Control, run_job
    from encamp.model.job import Command, Job

    words = _texts("arguments", arguments)
    values = _texts("variables", [*(variables or {}), *(variables or {}).values()])
    half = len(values) // 2
    if not words:
        raise EncampError(Code.USAGE, "'arguments' is empty: there is nothing to run.")
    if workdir is not None and not workdir.startswith("/"):
        raise EncampError(Code.USAGE, "'workdir' must be an absolute path in the machine.")
    job = Job(
        machine=_request(environment, name, cpus, memory, disk, network, image),
        command=Command(
            arguments=words,
            variables=tuple(zip(values[:half], values[half:], strict=True)),
            workdir=workdir,
        ),
    )
    lines = Lines(context)
    outcome = await run_job(
        _keeper(context), job, _Streams(context), control=Control(), progress=lines
    )
    for problem in outcome.problems:
        context.write(f"{problem}\n")
    context.ended(outcome.exit_code)
    return {"machine": outcome.machine, "reason": outcome.reason}


@command(timeout=120)
async def stop(context: Context, *, machine: Reference, owner: Owner = "") -> dict[str, Value]:
    """Let a machine shut itself down; its record stays."""
    return await _moved(context, machine, owner, lambda keeper, found: keeper.stop(found))


@command(timeout=60)
async def kill(context: Context, *, machine: Reference, owner: Owner = "") -> dict[str, Value]:
    """End a machine at once; its record stays."""
    return await _moved(context, machine, owner, lambda keeper, found: keeper.kill(found))


@command(timeout=60)
async def pause(context: Context, *, machine: Reference, owner: Owner = "") -> dict[str, Value]:
    """Let a machine stand still. It keeps its memory and uses no processor."""
    return await _moved(context, machine, owner, lambda keeper, found: keeper.pause(found))


@command(timeout=60)
async def resume(context: Context, *, machine: Reference, owner: Owner = "") -> dict[str, Value]:
    """Let a paused machine go on."""
    return await _moved(context, machine, owner, lambda keeper, found: keeper.resume(found))


@command(timeout=600)
async def suspend(context: Context, *, machine: Reference, owner: Owner = "") -> dict[str, Value]:
    """Put a machine into a file; it uses neither memory nor processor until it is restored."""
    return await _moved(context, machine, owner, lambda keeper, found: keeper.suspend(found))


@command(timeout=600)
async def restore(context: Context, *, machine: Reference, owner: Owner = "") -> dict[str, Value]:
    """Wake a suspended machine up, just as it was."""
    return await _moved(context, machine, owner, lambda keeper, found: keeper.restore(found))


@command(timeout=120)
async def remove(
    context: Context,
    *,
    machine: Reference,
    force: Annotated[bool, "also if it is running: kill it first"] = False,
    idle: Annotated[bool, "one that is idle, unless a job has taken it meanwhile"] = False,
    owner: Owner = "",
) -> None:
    """Remove a machine that has ended or is suspended."""
    keeper, found = _found(context, machine, owner)
    if not idle and found.node is not None:
        from encamp.agent.nodes import removing

        await removing.remove(keeper, found, force=force)
        return
    if not idle:
        await keeper.remove(found, force=force)
        return
    from encamp.agent.reuse import remove_idle

    if not await remove_idle(keeper, [found.id]):
        raise EncampError(
            Code.WRONG_STATE,
            f"Machine {found.name} is not idle: a job has taken it, or it was never left to one.",
            "Leave 'idle' out to remove it all the same.",
        )


@command(timeout=3600)
async def save(
    context: Context,
    *,
    machine: Reference,
    image: Annotated[str, "its NAME or NAME:VERSION"],
    compression: Annotated[str, "how it is packed: zstd, xz, gzip, lz4 or none"] = "zstd",
    owner: Owner = "",
) -> dict[str, Value]:
    """Save a running machine as an image of its owner's on this host. The machine goes on."""
    import msgspec

    from encamp.agent.commands.lines import Lines
    from encamp.agent.saving import save as save_machine
    from encamp.model.recipe import Compression

    try:
        packed = Compression(compression)
    except ValueError:
        kinds = ", ".join(kind.value for kind in Compression)
        raise EncampError(
            Code.USAGE, f"'compression' is {compression!r}, and can be one of {kinds}."
        ) from None
    keeper, found = _found(context, machine, owner)
    saved = await save_machine(keeper, found, image, Lines(context), packed)
    return dict(msgspec.structs.asdict(saved))


@command(timeout=60)
def console(context: Context, *, machine: Reference, owner: Owner = "") -> None:
    """Print what a machine's guest has printed since it booted; the last 16 MiB of that."""
    from encamp.model.command import LARGEST_OUTPUT

    keeper, found = _found(context, machine, owner)
    for piece in keeper.journal.directory(found.id).printed(LARGEST_OUTPUT):
        context.write(piece)


class _Streams:
    """Nothing comes in; both streams are the command's output."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def read(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        self._context.write(data)

    async def write_error(self, data: bytes) -> None:
        self._context.write(data)


def _keeper(context: Context) -> Keeper:
    from encamp.agent.keeper import Keeper

    return Keeper.open(context.home)


def _found(context: Context, reference: str, owner: str = "") -> tuple[Keeper, Machine]:
    """A machine of the agent's, of this owner or whoever has it, and its keeper."""
    from encamp.agent.commands.ground import keeper_for
    from encamp.agent.owned import identified, locate
    from encamp.agent.owners import account

    if owner:
        uid, machine = identified(context.home, reference, account(owner).pw_uid)
    else:
        uid, machine = locate(context.home, reference)
    return keeper_for(context.home, uid), machine


async def _moved(
    context: Context,
    reference: str,
    owner: str,
    move: Callable[[Keeper, Machine], Awaitable[Machine]],
) -> dict[str, Value]:
    keeper, found = _found(context, reference, owner)
    return _described(await move(keeper, found))


def _described(machine: Machine) -> dict[str, Value]:
    import msgspec

    return {
        name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(machine).items()
    }


def _request(
    environment: str,
    name: str | None,
    cpus: int | None,
    memory: str | None,
    disk: str | None,
    network: str | None,
    image: str | None,
) -> MachineRequest:
    from encamp.agent.caller import caller
    from encamp.model.job import MachineRequest
    from encamp.model.size import parse_bytes
    from encamp.model.wanted import check_network

    check_network(network)
    return MachineRequest(
        environment=environment,
        owner=caller(),
        name=name,
        cpus=cpus,
        memory=None if memory is None else parse_bytes(memory, "memory"),
        disk=None if disk is None else parse_bytes(disk, "disk"),
        network=network,
        image=image,
    )


def _texts(name: str, values: list[Value]) -> tuple[str, ...]:
    texts = tuple(value for value in values if isinstance(value, str) and "\0" not in value)
    if len(texts) != len(values):
        raise EncampError(Code.USAGE, f"'{name}' must consist of texts, and nothing else.")
    return texts
