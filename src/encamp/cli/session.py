"""A command in a machine of this host, with the caller's streams, terminal and signals."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from encamp.agent.deciding import check_request
from encamp.agent.keeper import Keeper
from encamp.agent.run import Control, run_in, run_job
from encamp.cli.bar import Bar
from encamp.cli.steering import conclude, window_changes, with_signals
from encamp.cli.streams import StandardStreams
from encamp.cli.terminal import raw_terminal, window
from encamp.describe.environments import find_environment
from encamp.home import default_home
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Job, MachineRequest, Outcome
from encamp.model.recipe import Kind, Recipe


def run_here(job: Job, *, timings: bool, as_json: bool) -> int:
    return conclude(asyncio.run(_run(job)), timings=timings, as_json=as_json)


async def _run(job: Job) -> Outcome:
    keeper = Keeper.open(default_home())
    control = Control()
    with ExitStack() as held:
        bar = held.enter_context(Bar())
        control.on_start = bar.finish
        streams = StandardStreams()
        held.callback(streams.close)
        if job.command.terminal is not None:
            held.enter_context(raw_terminal())
            held.enter_context(window_changes(control))
        work = run_job(keeper, job, streams, control=control, progress=bar, window=window())
        return await with_signals(work, control)


def own_command(request: MachineRequest) -> list[str]:
    """What the environment's image runs if it is not told anything else, as a container does. The
    image is got first: nothing else knows."""
    environment = find_environment(request.environment)
    keeper = Keeper.open(default_home())
    wish = check_request(keeper.home, request, environment)
    wanted, images = wish.environment.image, keeper.maker.images
    command: tuple[str, ...] = ()
    with Bar() as bar:
        if isinstance(wanted, str):
            command = images.fetch(wanted, bar).defaults.command
        elif of_container(wanted):
            command = images.ensure(wanted, bar).defaults.command
    if not command:
        raise EncampError(
            Code.USAGE,
            f"There is no command to run, and the image of '{environment.name}' names none.",
            f"Write it behind the options: encamp run -e {environment.name} -- COMMAND. See"
            " 'encamp run --help'.",
        )
    return list(command)


def of_container(recipe: Recipe) -> bool:
    """Can an image of this recipe name a command? Those of Debian and the like do not."""
    if recipe.kind is Kind.LAYER:
        return not isinstance(recipe.parent, Recipe) or of_container(recipe.parent)
    return recipe.kind is Kind.OCI


def execute_here(reference: str, command: Command, timeout: float | None) -> int:
    outcome = asyncio.run(_execute(reference, command, timeout))
    return conclude(outcome, timings=False, as_json=False)


async def _execute(reference: str, command: Command, timeout: float | None) -> Outcome:
    from encamp.cli.options import caller

    keeper = Keeper.open(default_home())
    machine = keeper.journal.find(reference)
    control = Control()
    with ExitStack() as held:
        streams = StandardStreams()
        held.callback(streams.close)
        if command.terminal is not None:
            held.enter_context(raw_terminal())
            held.enter_context(window_changes(control))
        work = run_in(keeper, machine, command, caller(), streams, control, timeout, window())
        return await with_signals(work, control)
