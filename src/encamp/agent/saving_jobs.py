"""Jobs whose machine is saved as an image when they are done."""

from __future__ import annotations

import msgspec

from encamp.agent.keeper import Keeper
from encamp.agent.live import Live
from encamp.agent.saving import save
from encamp.images.reference import check_tag
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import Job
from encamp.model.machine import After
from encamp.progress import Progress


def check_save(job: Job, environment: Environment, after: After) -> str:
    """The name that the machine is to be saved as, before one is made for it."""
    if after is not After.SAVE:
        raise EncampError(
            Code.USAGE,
            f"--save-as {job.save_as} and --after {after.value} exclude each other.",
            "The machine is saved, and then destroyed, with --after save.",
        )
    name = job.save_as if job.save_as is not None else environment.save_as
    if name is None:
        raise EncampError(
            Code.USAGE,
            "A machine that is saved becomes an image, which needs a name.",
            "Give it one: --save-as NAME or --save-as NAME:VERSION.",
        )
    return check_tag(name)


async def save_and_destroy(keeper: Keeper, live: Live, name: str, progress: Progress) -> str:
    """Save the machine as an image, then destroy it; the image's digest. What the job has done is
    not lost if that fails: then the machine stays."""
    await live.hang_up()
    try:
        saved = await save(keeper, live.machine, name, progress)
    except Exception as error:
        if not live.engine.process.alive():
            raise
        live.record(msgspec.structs.replace(live.machine, tied=False))
        await live.let_go()
        kept = (
            f"Machine {live.machine.name} was kept: 'encamp save {live.machine.name} {name}' tries"
            " again, 'encamp rm -f' removes it."
        )
        if not isinstance(error, EncampError):
            # A mistake of our own costs nobody a day's work either.
            raise EncampError(
                Code.INTERNAL,
                f"Encamp made a mistake while it saved machine {live.machine.name}:"
                f" {type(error).__name__}: {error}.",
                kept,
            ) from error
        error.hint = f"{error.hint} {kept}".lstrip()
        raise
    await live.destroy()
    return saved.digest
